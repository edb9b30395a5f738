# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import asyncio
import gc
import logging

import pytest
from sexpdata import dumps

from daemon_emacs import connected_emacs, lisp, text_part
from fake_daemon import ROOT, TOKEN, FakeDaemon, event
from qwen_companion.daemon.messages import (
    DaemonState,
    SessionChoices,
    parse_call,
)
from qwen_companion.wire.messages import DaemonCall
from qwen_companion.wire.plists import Plist
from qwen_companion.wire.spool import Spool

pytestmark = pytest.mark.anyio


async def test_token_never_in_epc_log_repr(
    spool: Spool, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    known: list[object] = []
    async with FakeDaemon() as daemon, connected_emacs(spool) as emacs:
        password = "password-in-the-url"
        url = daemon.url.replace("http://", f"http://somebody:{password}@") + "/?token=token-in-the-url"
        calls = [DaemonCall("daemon-connect", Plist(lisp(dumps({"url": url, "token": TOKEN, "root": ROOT}))))]
        emacs.dispatcher.handle(calls[0])
        await emacs.until(lambda: emacs.all(DaemonState, state="connected"))
        session = await emacs.open()
        (theirs,) = daemon.sessions.values()
        theirs.script("write", "answer")
        await emacs.prompt(session)
        asked = await emacs.permission(session, "open")
        await emacs.call("daemon-answer", **emacs.answer(asked, asked.options[1].id))
        await emacs.until(lambda: emacs.chats[session].ends)
        await emacs.until(lambda: emacs.all(SessionChoices))
        await emacs.call("daemon-model", session=session, model=emacs.last(SessionChoices).models[0].id)
        changed = event("approval_mode_changed") | {"type": "settings_changed"}
        changed["data"] = {"key": "env", "value": "value-of-a-setting"}
        changed["_meta"] = {"envKey": "name-of-a-key", "baseUrl": "http://base.example", "apiKey": "sk-key"}
        theirs.emit(changed, event("session_died") | {"data": {"reason": "channel_closed"}})
        theirs.die()
        await emacs.state(session, "dead")
        await emacs.refused("daemon-prompt", session=session, parts=[text_part("x")])
        await emacs.call("daemon-list")
        # Whatever goes wrong, with all it may quote.
        for bad in ("wrong token", f"{TOKEN}\n"):
            await emacs.refused("daemon-connect", url=url, token=bad, root=ROOT)
        for strange in (f"http://somebody:{password}@host:port", f"ftp://somebody:{password}@host"):
            await emacs.refused("daemon-connect", url=strange, token=TOKEN, root=ROOT)
        ids = [theirs.id, *theirs.members, *(item["promptId"] for item in theirs.history if "promptId" in item)]
        await emacs.connect(daemon)
        known = [*calls, *(parse_call(call, spool) for call in calls), *gc.get_objects()]
        ours = [item for item in known if str(type(item).__module__).startswith("qwen_companion")]
        assert {"Connect", "DaemonCall", "DaemonClient", "DaemonAddress"} - {type(item).__name__ for item in ours} <= {
            "DaemonAddress"
        }
        reprs = "\n".join(map(repr, ours))
        crossed = "\n".join(emacs.frames)
    secrets = [TOKEN, password, "token-in-the-url", "somebody"]
    private = ["value-of-a-setting", "name-of-a-key", "base.example", "sk-key", "sk-...hidden", "user:hidden"]
    written = "".join(capfd.readouterr())
    logged = "\n".join(record.getMessage() for record in caplog.records if not record.name.startswith("uvicorn"))
    for secret in secrets:
        for place, text in (("EPC", crossed), ("a log", logged), ("output", written), ("a repr", reprs)):
            assert secret not in text, f"{secret} is in {place}"
    for word in private:
        assert word not in crossed + logged + written, word
    # The daemon's ids do not cross either.
    for identifier in ids:
        assert identifier not in crossed, identifier
