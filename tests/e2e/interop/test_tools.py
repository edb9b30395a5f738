# SPDX-License-Identifier: GPL-3.0-or-later
"""The tools of Emacs in a CLI that knows no hooks and no rules for tools, only servers that it trusts."""

from __future__ import annotations

import json

import pytest

from clis import CLIS
from stage import Stage

pytestmark = pytest.mark.interop


def test_an_old_cli_calls_tools_unasked(stage: Stage) -> None:
    cli = next(cli for cli in CLIS if cli.name == "qwen-0.12.0")
    variables = " ".join(f'(setenv "{name}" "{value}")' for name, value in cli.variables.items())
    command = f'(progn (setq qwen-companion-qwen-command (list "{cli.program}")) {variables})'
    stage.start_emacs(stage.sandbox.notes, stage.sandbox.greeting, forms=(command,))
    stage.start_cli()
    stage.model.call("mcp__emacs__symbols", path="greeting.py")
    stage.converse("what does it define", "It defines two functions.", cli)
    first, second = stage.model.next_request(), stage.model.next_request()
    assert "mcp__emacs__symbols" in first.tools
    assert "greeting.py:4: greet" in json.dumps(second.body["messages"][-1])
