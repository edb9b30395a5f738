# SPDX-License-Identifier: GPL-3.0-or-later
"""An acceptance reaches the CLI, whatever becomes of the backend on the way."""

from __future__ import annotations

import signal
from contextlib import suppress

import psutil
import pytest

from sandbox import NEW_NOTES
from stage import Stage

pytestmark = pytest.mark.reuses_stage("client")

BY_HAND = "by hand\n"


def test_it_survives_a_backend_that_is_killed_before_it_has_read_it(stage: Stage) -> None:
    notes = stage.sandbox.notes
    stage.start_emacs(notes)
    client = stage.connect_client()
    client.propose(notes, NEW_NOTES)
    stage.screen.wait_for("C-c C-c accept")
    stage.emacs.eval(
        "(with-current-buffer (qwen-companion-proposal-buffer (car (qwen-companion-proposals)))"
        f' (setq buffer-read-only nil) (goto-char (point-max)) (insert "{BY_HAND.strip()}\\n"))'
    )
    killed = stage.sandbox.backend()
    # What Emacs says stays in the connection.
    killed.send_signal(signal.SIGSTOP)
    stage.emacs.command("qwen-companion-diff-accept")
    stage.screen.wait_gone("C-c C-c accept")
    # On a busy machine Emacs may have done it by now: it ends a backend that hangs.
    with suppress(psutil.NoSuchProcess):
        killed.send_signal(signal.SIGKILL)
    stage.emacs.wait_until(
        "(let ((process (qwen-companion-backend--process)))"
        f" (and (process-live-p process) (/= {killed.pid} (process-id process)) (eq 'ready (qwen-companion-state))))"
    )
    client.listen_again()
    assert client.write_accepted(notes) == NEW_NOTES + BY_HAND
    stage.screen.wait_until(lambda: stage.emacs.buffer_text("notes.txt") == NEW_NOTES + BY_HAND, "the text as written")
    stage.emacs.wait_until("(null qwen-companion-disk--writes)")
    assert stage.emacs.eval('(get-buffer "*qwen-companion kept: notes.txt*")') == "nil"
