# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages by the schema of the protocol, and damaged ones, to a real backend."""

from __future__ import annotations

import json
from typing import Any

import hypothesis

from schema_messages import client_messages
from support import Backend, Home


def test_any_message_by_the_schema_is_answered_or_refused(backend: Backend, home: Home) -> None:
    cli = backend.cli()
    files = home.files()
    answered: set[str] = set()

    # The same each time, for a start of `make test` is to say what the one before it did.
    @hypothesis.settings(max_examples=200, derandomize=True, database=None, deadline=None)
    @hypothesis.given(client_messages(str(home.work)))
    def check(message: Any) -> None:
        status, _, answer = cli.post(json.dumps(message).encode())
        assert status in (200, 202, 400, 404), (status, message)
        if status == 200:
            assert answer["jsonrpc"] == "2.0"
            assert answer["id"] == message["id"]
            assert ("result" in answer) != ("error" in answer)
            if "result" in answer:
                answered.add(message["method"])

    check()
    # Else the messages would be worth nothing.
    assert {"tools/call", "ping"} <= answered
    assert home.files() == files
    assert cli.tool("closeDiff", filePath=str(home.work / "a.txt"))["content"]
    assert backend.stopped() == ""
