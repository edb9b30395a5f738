# SPDX-License-Identifier: GPL-3.0-or-later
"""The doctor, while a CLI is connected."""

from __future__ import annotations

import json
import re

import pytest

from stage import Stage

pytestmark = [pytest.mark.reuses_stage("context"), pytest.mark.local("about this machine")]


def test_the_doctor_finds_nothing_wrong_and_tells_no_secret(stage: Stage) -> None:
    stage.start()
    stage.emacs.command("qwen-companion-doctor")
    # The window may be too low for the end.
    stage.emacs.wait_until(
        '(with-current-buffer "*qwen-companion doctor*" (string-search "Nothing failed." (buffer-string)))'
    )
    report = stage.emacs.buffer_text("*qwen-companion doctor*")
    assert "pass Connected CLIs: Qwen Code 0.24.4 in " in report
    assert re.search(r"pass \*qwen: .*\*: connected; its environment names \d+$", report, re.MULTILINE)
    assert "pass Context: sent: open files 1, current ones 1" in report
    assert "answers, and refuses callers without the token" in report
    assert "pass A proposal, and back: Emacs has taken it" in report
    assert "pass Prompts to CLIs outside of Emacs: 1 of 1 running Qwen Codes take them; Emacs has no token" in report
    assert "warn" not in report
    (lock,) = stage.sandbox.lock_files
    assert json.loads(lock.read_text())["authToken"] not in report
    # The client of the check has gone, and its proposal, of which no review has been opened.
    stage.emacs.wait_until("(equal 1 (length (qwen-companion-backend-sessions)))")
    assert "qwen-companion-doctor" not in stage.emacs.eval('(format "%s" (buffer-list))')
    assert not re.search("doctor.* proposes", stage.emacs.buffer_text("*Messages*"))
