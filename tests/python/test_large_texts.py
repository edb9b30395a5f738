# SPDX-License-Identifier: GPL-3.0-or-later
"""Proposals larger than Emacs reviews, and the memory of a real backend."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Iterator

import psutil
import pytest
from sexpdata import dumps

from support import TIMEOUT_S, Backend, Cli

TEXT_BYTES = 32_000_000
LIMIT_BYTES = 1_000_000
LINE = b'\\u0007\\"x\\\\' + b"x" * 40 + b"\\n"


def parts_of_proposal(path: str, size: int) -> Iterator[bytes]:
    """Parts of an `openDiff` for `path` as a CLI sends it, its id at the end; the text has some `size` bytes."""
    yield b'{"method":"tools/call","params":{"name":"openDiff","arguments":{"filePath":' + json.dumps(path).encode()
    yield b',"newContent":"'
    # A part that does not end where a character or an escape does.
    part = LINE * 1000
    for _ in range(size // len(part)):
        yield part[:-1]
        yield part[-1:]
    yield b'"}},"jsonrpc":"2.0","id":77}'


def propose(cli: Cli, path: str, size: int, *, chunked: bool) -> dict[str, object]:
    """Send a proposal of `size` bytes for `path`; return the answer that `cli` gets."""
    length = sum(map(len, parts_of_proposal(path, size)))
    headers = {**cli.headers, "mcp-session-id": cli.session}
    connection = http.client.HTTPConnection("127.0.0.1", cli.port, timeout=TIMEOUT_S)
    try:
        if not chunked:
            headers["Content-Length"] = str(length)
        connection.request("POST", "/mcp", parts_of_proposal(path, size), headers, encode_chunked=chunked)
        response = connection.getresponse()
        answer = json.loads(response.read())
    finally:
        connection.close()
    assert response.status == 200, answer
    return answer


def resident(backend: Backend, peak: bool = False) -> int:
    """Return the memory of `backend` in bytes, or with `peak`, where the system tells it, the most it ever was."""
    if peak and sys.platform == "linux":
        with open(f"/proc/{backend.process.pid}/status", encoding="utf-8") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))
    return psutil.Process(backend.process.pid).memory_info().rss


@pytest.mark.parametrize("chunked", [False, True], ids=["Content-Length", "chunked"])
def test_a_text_above_the_limit_is_refused_and_not_kept(backend: Backend, chunked: bool) -> None:
    backend.emacs.call("settings", dumps({"all-roots": True, "size-limit": LIMIT_BYTES}))
    path = str(backend.home.work / "large")
    cli = backend.cli()
    # Its start may have taken more for a moment than it has now.
    before = resident(backend, peak=True)
    answer = propose(cli, path, TEXT_BYTES, chunked=chunked)
    assert answer["id"] == 77
    assert answer["result"] == {
        "content": [
            {
                "type": "text",
                "text": f"The text for {path} is larger than the {LIMIT_BYTES} bytes that Emacs reviews "
                "(`qwen-companion-diff-size-limit'). Decide in the terminal instead.",
            }
        ],
        "isError": True,
    }
    # What is used for the first time takes a quarter of it: 7 MB, with Python 3.10 nine.
    assert resident(backend, peak=True) - before < TEXT_BYTES / 2
    assert backend.emacs.calls("proposal-open").empty()
    assert cli.tool("closeDiff", filePath=path)["content"][0]["text"] == '{"content": null}'
