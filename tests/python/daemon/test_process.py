# SPDX-License-Identifier: GPL-3.0-or-later
"""The client inside of a backend process, and Emacs at the other end of a real connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sexpdata import dumps

from fake_daemon import ROOT, TOKEN, FakeDaemon
from support import Backend, Home, as_dict

pytestmark = pytest.mark.anyio


@pytest.fixture
def process(home: Home) -> Iterator[Backend]:
    with Backend(home) as process:
        process.greet()
        yield process


async def call(process: Backend, method: str, **values: object) -> list[Any]:
    payload = dumps({**values, "request": "r"})
    return await asyncio.to_thread(process.emacs.call, method, payload)


async def wait_for(process: Backend, method: str, **values: object) -> dict[str, Any]:
    def good(payload: dict[str, Any]) -> bool:
        return all(str(payload.get(key)) == value for key, value in values.items())

    return await asyncio.to_thread(process.emacs.wait_until, method, good)


async def test_emacs_talks_to_a_daemon_through_the_backend(process: Backend, daemon: FakeDaemon) -> None:
    assert (await call(process, "daemon-connect", url=daemon.url, token=TOKEN, root=ROOT))[0] == "return"
    await wait_for(process, "daemon-state", state="connected")
    await wait_for(process, "daemon-reply")
    await call(process, "daemon-open")
    session = (await wait_for(process, "daemon-reply"))["session"]
    await wait_for(process, "daemon-session", state="idle", session=session)
    (theirs,) = daemon.sessions.values()
    theirs.script("answer")
    prompt = f'(:session {dumps(session)} :parts ((:kind text :text "hello")))'
    await asyncio.to_thread(process.emacs.call, "daemon-prompt", prompt)
    kinds: list[str] = []
    while "end" not in kinds:
        turn = await wait_for(process, "daemon-turn", session=session)
        kinds += [str(as_dict(change)["kind"]) for change in turn["changes"]]
    assert "text" in kinds
    await call(process, "daemon-disconnect")
    await wait_for(process, "daemon-state", state="off")
    assert not theirs.members
    assert (await call(process, "stop"))[0] == "return"
    assert await asyncio.to_thread(process.exit_code) == 0
    assert process.error_text() == ""


async def test_what_is_wrong_is_said_without_the_secret(process: Backend, daemon: FakeDaemon) -> None:
    await call(process, "daemon-connect", url=daemon.url.replace("//", "//me:hidden@"), token="hidden", root=ROOT)
    assert "token" in (await wait_for(process, "daemon-state", state="refused"))["text"]
    assert "token" in (await wait_for(process, "daemon-reply"))["error"]
    process.emacs.send('(call 9 daemon-connect ("a secret of Emacs" (:url "hidden" :token hidden)))')
    await call(process, "daemon-list")
    await wait_for(process, "daemon-reply")
    process.close_input()
    assert await asyncio.to_thread(process.exit_code) == 0
    assert "hidden" not in process.error_text()


def test_what_is_missing_is_said_in_answer_to_each_call(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "httpx2.py").write_text("raise ModuleNotFoundError('No module named httpx2', name='httpx2')")
    monkeypatch.setenv("PYTHONPATH", str(modules))
    with Backend(home, fresh=True) as process:
        process.greet()
        for request, payload in (("1", '(:request "1" :root "/r" :program ("q"))'), ("2", '(:request "2" :root 5)')):
            process.emacs.call("daemon-start", payload)
            state = process.emacs.wait_for("daemon-state")
            reply = process.emacs.wait_for("daemon-reply")
            assert (str(state["state"]), str(reply["problem"]), reply["request"]) == ("refused", "refused", request)
            assert "(httpx2): M-x qwen-companion-install-backend" in state["text"] == reply["error"]
        process.emacs.call("daemon-list", "(:request 5)")
        assert process.stopped() == ""
