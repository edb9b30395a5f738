# SPDX-License-Identifier: GPL-3.0-or-later
"""A CLI on another host is served as if it were here."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from far import Far
from sandbox import GREETING
from stage import Stage

EDITED = GREETING.replace("hello", "good morning")


@pytest.fixture
def far(stage: Stage) -> Iterator[Far]:
    """Return another host."""
    with Far(stage.sandbox, stage.environment) as far:
        yield far


def start_cli(stage: Stage, far: Far) -> None:
    """Start the CLI there by typing the command's name in a buffer of a file there."""
    stage.emacs.eval(f'(progn (find-file "{far.name(far.file)}") nil)')
    stage.emacs.command("qwen-companion-run")
    if stage.emacs.eval("qwen-companion-remote-places") == "nil":
        stage.screen.wait_for("Serve the CLIs at far?")
        stage.screen.enter("yes")
    stage.screen.wait_for("Type your message")
    stage.screen.wait_for("Qwen[1]")


def test_the_main_job(stage: Stage, far: Far) -> None:
    """Context, a review with edits and the turn's end, as here; nothing is left there."""
    stage.start_emacs(stage.sandbox.notes, forms=(far.use,))
    start_cli(stage, far)
    assert sorted(path.suffix for path in far.laid) == [".json", ".lock", ".sh"]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in far.laid)
    prompt = stage.asked("one")
    assert f"Path: {far.file}" in prompt
    assert "notes.txt" not in prompt
    stage.model.call("read_file", file_path=str(far.file))
    stage.model.call("write_file", file_path=str(far.file), content=EDITED)
    stage.ask("please")
    stage.wait_for_review()
    stage.screen.wait_for("far:")
    stage.emacs.eval(
        "(with-current-buffer (qwen-companion-proposal-buffer (car (qwen-companion-proposals)))"
        ' (goto-char (point-max)) (insert "# edited\\n"))'
    )
    stage.model.say("Done.")
    stage.accept("Done.")
    stage.screen.wait_until(lambda: far.file.read_text() == EDITED + "# edited\n", "the edited text there")
    assert stage.emacs.eval(
        "(qwen-companion-session-list--project (car (qwen-companion-backend-sessions)))"
    ) == json.dumps(f"far:{far.project}", ensure_ascii=False)
    stage.emacs.wait_until("(null qwen-companion-proposal--awaiting-write)")
    assert stage.emacs.eval("(qwen-companion-rescue-buffers)") == "nil"
    stage.emacs.command("qwen-companion-mode")
    stage.screen.wait_until(lambda: not far.laid, "nothing laid there")
