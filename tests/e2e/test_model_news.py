# SPDX-License-Identifier: GPL-3.0-or-later
"""A real CLI's model is told with the prompt what has changed in the files that it has seen."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sandbox import EDITED, GREETING, NOTES
from stage import Stage
from test_changes import FREE, ask

pytestmark = pytest.mark.reuses_stage("free")

SAVED = (
    '(with-current-buffer "notes.txt" (goto-char (point-min)) (insert "<b>quinces</b> & \\"figs\\"\n") (save-buffer))'
)


def hunks(directory: Path, before: str, after: str) -> str:
    """Return what `diff -u` prints below the names of the files."""
    for name, text in (("before", before), ("after", after)):
        (directory / name).write_text(text)
    done = subprocess.run(["diff", "-u", "before", "after"], cwd=directory, capture_output=True, check=False, text=True)
    return done.stdout.split("\n", 2)[2]


def test_the_request_holds_what_has_changed_since_the_model_saw_it(stage: Stage, tmp_path: Path) -> None:
    greeting, notes = stage.sandbox.greeting, stage.sandbox.notes
    quoted, secret = stage.sandbox.project / "quoted.txt", stage.sandbox.project / ".env"
    quoted.write_text("one\ntwo\n")
    secret.write_text("SECRET=1\n")
    stage.start_emacs(notes, forms=(FREE,))
    stage.start_cli()
    stage.script_change(greeting, EDITED)
    for path in (notes, secret):
        stage.model.call("read_file", file_path=str(path))
    ask(stage, "what is in @quoted.txt please", "All read.")
    while "SECRET=1" not in (last := stage.model.next_request()).messages[-1].text:
        pass
    # By the user in Emacs, by another program, and back to what it was before the agent.
    stage.emacs.eval(SAVED)
    quoted.write_text("one\nzwei\n")
    greeting.write_text(GREETING)
    secret.write_text("SECRET=2\n")
    ask(stage, "go on", "Seen.")
    # The CLI lets no text of a hook look like one of its tags.
    prompt = stage.model.next_request().prompt.replace("&lt;", "<").replace("&gt;", ">")
    new_notes = notes.read_text()
    assert "<b>quinces</b>" in new_notes
    told = [
        ("greeting.py", hunks(tmp_path, EDITED, GREETING)),
        ("notes.txt", hunks(tmp_path, NOTES, new_notes)),
        ("quoted.txt", hunks(tmp_path, "one\ntwo\n", "one\nzwei\n")),
    ]
    expected = "".join(f"--- {name}\n+++ {name}\n{text}" for name, text in told)
    assert f"\n\n{expected}</qwen:user-prompt-submit-context>" in prompt
    assert ".env" not in prompt.partition("go on")[2]
    assert last.prompt != prompt
    # It is told once.
    ask(stage, "and now", "Nothing new.")
    assert "--- greeting.py" not in stage.model.next_request().prompt
