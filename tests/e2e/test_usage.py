# SPDX-License-Identifier: GPL-3.0-or-later
"""The tokens of a real CLI's turns are shown, and a turn above the limit ends."""

from __future__ import annotations

import pytest

from sandbox import GREETING
from stage import Stage
from test_changes import FREE, FREE_QWEN, ask, run

pytestmark = pytest.mark.reuses_stage("free")

LIMIT = "(progn (setq qwen-companion-token-limit 9) (qwen-companion-privacy-update))"


def test_a_turn_says_what_it_has_used_and_ends_above_the_limit(stage: Stage) -> None:
    stage.start_emacs(stage.sandbox.greeting, forms=(FREE,))
    stage.start_cli()
    stage.emacs.eval("(qwen-companion-journal-watch 'test t)")
    # Each of the three requests of the scripted model has one token in and one out.
    stage.script_change(stage.sandbox.greeting, f"{GREETING}# changed\n")
    ask(stage, "change it", "Changed.")
    turn = "(car (qwen-companion-journal-turns))"
    stage.emacs.wait_until(
        f'(equal "scripted 3 in, 3 out" (qwen-companion-layer-usage (qwen-companion-turn-usage {turn})))'
    )
    used = "(qwen-companion-layer-tokens (qwen-companion-session-usage (car (qwen-companion-backend-sessions))))"
    before = int(stage.emacs.eval(used))
    stage.emacs.eval(LIMIT)
    for number in range(5):
        run(stage, f"echo {number} >> made.txt")
    stage.ask("go on and on", FREE_QWEN)
    stage.screen.wait_for("this turn has used 10 tokens")
    assert (stage.sandbox.project / "made.txt").read_text() == "0\n1\n2\n3\n4\n"
    stage.emacs.wait_until(f"(= {before + 10} {used})")
    ask(stage, "what now", "I know.")
    while "what now" not in (request := stage.model.next_request()).prompt:
        pass
    assert "Those tools did run, also where a result says that it was not recorded." in request.prompt
