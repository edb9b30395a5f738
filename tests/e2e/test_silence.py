# SPDX-License-Identifier: GPL-3.0-or-later
"""A connection on which nothing happens for long stays."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from editor import lisp_string
from sandbox import NODE_OPTIONS
from stage import Stage
from test_connection import assert_context_and_review_work

pytestmark = pytest.mark.local("about the start of Emacs")

FAST_CLOCK = Path(__file__).with_name("fast_clock.cjs")
SILENCE_S = 60
"""Seconds in which the CLI's HTTP client believes that fifteen minutes have gone by; see fast_clock.cjs."""


@pytest.mark.long
def test_fifteen_minutes_of_silence(stage: Stage) -> None:
    """The CLI's HTTP client gives up a stream that was silent for 300 s, and the CLI does not recover from that.

    Nothing from outside shortens that time-out, so the client's clock is made to run sixteen times as fast: the same
    real client, which would give up after 19 s, lives through fifteen minutes of its own time.  The companion says
    something every 15 s, which are four minutes on that clock.
    """
    pipe = stage.sandbox.run / "clock"
    os.mkfifo(pipe)
    clock = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        variables = {"NODE_OPTIONS": f"{NODE_OPTIONS} --require={FAST_CLOCK}", "QWEN_COMPANION_E2E_CLOCK": str(pipe)}
        forms = tuple(f"(setenv {lisp_string(name)} {lisp_string(value)})" for name, value in variables.items())
        stage.start_emacs(stage.sandbox.greeting, forms=forms)
        stage.start_cli()
        assert select.select([clock], [], [], 2 * SILENCE_S)[0], "the clock of the CLI's HTTP client stands still"
    finally:
        os.close(clock)
    stage.ask_command("/ide status")
    assert "Disconnected" not in stage.screen.wait_for("Connected to Emacs")
    assert_context_and_review_work(stage)
