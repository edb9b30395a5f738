# SPDX-License-Identifier: GPL-3.0-or-later
"""What a transcript tells of tokens, whatever else is in it."""

from __future__ import annotations

import json
import os
import tracemalloc
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from qwen_companion.conversations import recording
from qwen_companion.conversations.usage import Transcript, tokens
from qwen_companion.domain import Usage


def request(minute: int = 0, model: object = "m", **counts: object) -> bytes:
    """Return a line about a request in `minute` of some hour, as Qwen Code 0.24 writes it."""
    time = f"2026-11-26T11:{minute:02}:00.500Z"
    event: dict[str, Any] = {"event.name": "qwen-code.api_response", "event.timestamp": time, "model": model}
    numbers = {"input_token_count": 100, "output_token_count": 10, "cached_content_token_count": 60, **counts}
    entry = {"type": "system", "subtype": "ui_telemetry", "systemPayload": {"uiEvent": {**event, **numbers}}}
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


AT_MINUTE_1 = 1000 * int(datetime(2026, 11, 26, 11, 1, tzinfo=timezone.utc).timestamp())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chat.jsonl"


def read(path: Path) -> Transcript:
    transcript = Transcript(str(path))
    transcript.read()
    return transcript


def total(path: Path) -> tuple[Usage, ...]:
    return read(path).total()


def test_only_what_was_appended_is_read(path: Path) -> None:
    transcript = read(path)
    assert transcript.total() == ()
    path.write_bytes(request(0) + request(1, model="n"))
    transcript.read()
    assert transcript.total() == (Usage("m", 100, 10, 60), Usage("n", 100, 10, 60))
    # What was read is not looked at again, and half a line waits for the other half.
    half = request(2)
    with path.open("r+b") as file:
        file.write(b"x" * 20)
        file.seek(0, os.SEEK_END)
        file.write(half[:50])
    transcript.read()
    assert transcript.total()[0] == Usage("m", 100, 10, 60)
    with path.open("ab") as file:
        file.write(half[50:])
    transcript.read()
    transcript.read()
    assert transcript.total()[0] == Usage("m", 200, 20, 120)
    assert transcript.since(AT_MINUTE_1) == (Usage("n", 100, 10, 60), Usage("m", 100, 10, 60))
    assert tokens(transcript.since(AT_MINUTE_1)) == 220
    # A file that was cut, or is another one by now, is read anew.
    path.write_bytes(request(3))
    transcript.read()
    assert transcript.total() == (Usage("m", 100, 10, 60),)
    other = path.with_name("other")
    other.write_bytes(request(3) * 40)
    other.replace(path)
    transcript.read()
    assert transcript.total() == (Usage("m", 4000, 400, 2400),)


def test_odd_lines_count_for_nothing_and_hide_no_other(path: Path) -> None:
    mark = b'"qwen-code.api_response"'
    odd = [
        b"",
        mark,
        b"[" + mark + b"]",
        b"[" * 50_000 + mark,
        b'{"systemPayload":' + mark + b"}",
        b'{"systemPayload":{"uiEvent":[' + mark + b"]}}",
        b'{"systemPayload":{"uiEvent":{"event.name":["qwen-code.api_response"]}}}',
        b'{"text":"\\"event.name\\":\\"qwen-code.api_response\\"' + mark + b'"}',
        b"\xff\xfe" + mark,
        b"\0" * 1000,
        request().rstrip(b"\n}"),
    ]
    path.write_bytes(b"\n".join(odd) + b"\n" + request())
    assert total(path) == (Usage("m", 100, 10, 60),)


@pytest.mark.parametrize("value", [None, -1, 1.5, True, "7", [], {}, 10**30, float("nan"), float("inf")])
def test_a_number_that_is_none_counts_as_zero(path: Path, value: object) -> None:
    path.write_bytes(request(input_token_count=value, output_token_count=3))
    assert total(path) == (Usage("m", 0, 3, 60),)


def test_times_and_models_may_be_anything(path: Path) -> None:
    lines = [request(model=model) for model in (None, 5, ["m"], "x" * 5000, "\ud800\x1b[31m")]
    lines += [
        request().replace(b"2026-11-26T11:00:00.500Z", time) for time in (b"", b"now", b"9999-99-99", b"0001-01-01")
    ]
    path.write_bytes(b"".join(lines) + request(1))
    transcript = read(path)
    assert transcript.since(AT_MINUTE_1) == (Usage("m", 100, 10, 60),)
    assert [each.model for each in transcript.total()] == ["", "x" * 100, "\\ud800\\x1b[31m", "m"]
    assert sum(each.input for each in transcript.total()) == 1000


def test_a_line_without_end_takes_little_memory(path: Path) -> None:
    path.write_bytes(request() + b'{"text":"' + b"x" * 20_000_000)
    tracemalloc.start()
    try:
        transcript = read(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000_000
    with path.open("ab") as file:
        # The first is the end of that line still.
        file.write(request() + request())
    transcript.read()
    assert transcript.total() == (Usage("m", 200, 20, 120),)


def test_many_requests_and_models_are_bounded(path: Path) -> None:
    path.write_bytes(b"".join(request(1, model=f"m{number}") for number in range(5100)))
    transcript = read(path)
    assert len(transcript.total()) == 20
    assert (tokens(transcript.total()), tokens(transcript.since(0))) == (561_000, 550_000)


def test_a_file_that_never_ends_is_read_in_parts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_MOST_BYTES", 1 << 20)
    with path.open("wb") as file:
        file.truncate(3 << 20)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + request())
    transcript = Transcript(str(path))
    reads = 0
    while not transcript.total():
        transcript.read()
        reads += 1
    assert reads == 4


def test_only_a_file_is_read(path: Path, tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_bytes(request())
    path.symlink_to(real)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "directory").mkdir()
    for odd in (path, tmp_path / "fifo", tmp_path / "directory", Path("/dev/zero"), tmp_path / "none"):
        assert total(odd) == ()
