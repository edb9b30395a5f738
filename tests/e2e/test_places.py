# SPDX-License-Identifier: GPL-3.0-or-later
"""Files at odd places: not there yet, in directories that have to be made, or behind a symbolic link."""

from __future__ import annotations

from pathlib import Path

import pytest

from client import Client
from editor import lisp_string
from sandbox import NOTES
from stage import Stage

pytestmark = pytest.mark.reuses_stage("client")

NEW_NOTES = NOTES.replace("pears", "plums")


def propose(stage: Stage, path: Path, text: str) -> Client:
    """Propose `text` for the file `path`, and wait for the review."""
    client = stage.connect_client()
    client.propose(path, text)
    stage.screen.wait_for("Qwen[1!1]")
    stage.screen.wait_for("C-c C-c accept")
    return client


def accept(stage: Stage, client: Client, path: Path) -> None:
    """Accept the proposal for `path`, and wait until Emacs shows the written text."""
    stage.emacs.command("qwen-companion-diff-accept")
    client.write_accepted(path)
    stage.emacs.wait_until("(null qwen-companion-disk--writes)")
    assert "does not have the accepted text" not in stage.emacs.buffer_text("*Messages*")


def assert_shows(stage: Stage, name: str, text: str) -> None:
    """Wait until the buffer `name` shows `text`; it must be as on disk, as Emacs knows it."""
    stage.screen.wait_until(lambda: stage.emacs.buffer_text(name) == text, f"{name} as on disk")
    buffer = f"(get-buffer {lisp_string(name)})"
    assert stage.emacs.eval(f"(buffer-modified-p {buffer})") == "nil"
    stage.emacs.wait_until(f"(verify-visited-file-modtime {buffer})")


def test_a_buffer_that_waits_for_its_file_and_directory(stage: Stage) -> None:
    file = stage.sandbox.project / "doc" / "plans" / "first.txt"
    # What TRAMP remembers of files is true for good then, not for ten seconds.
    stage.start_emacs(file, forms=("(setq remote-file-name-inhibit-cache nil)",))
    client = propose(stage, file, "one\ntwo\n")
    assert not file.parent.parent.exists()
    accept(stage, client, file)
    assert file.read_text() == "one\ntwo\n"
    assert_shows(stage, file.name, "one\ntwo\n")
    # Emacs asks nothing when it is saved: it knows the file and its directory.
    stage.emacs.eval(
        f"(with-current-buffer {lisp_string(file.name)}"
        ' (goto-char (point-max)) (insert "three\\n") (let (noninteractive) (save-buffer)))'
    )
    assert file.read_text() == "one\ntwo\nthree\n"


OTHER_NAME = pytest.mark.local("TRAMP would have to look for another name of the file")


@pytest.mark.parametrize(
    ("proposed", "visited"),
    [
        ("link", "link"),
        ("target", "target"),
        pytest.param("link", "target", marks=OTHER_NAME),
        pytest.param("target", "link", marks=OTHER_NAME),
    ],
)
def test_a_file_behind_a_link(stage: Stage, proposed: str, visited: str) -> None:
    target = stage.sandbox.notes
    link = stage.sandbox.project / "link.txt"
    link.symlink_to(target.name)
    files: dict[str, Path] = {"link": link, "target": target}
    stage.start_emacs(files[visited], forms=("(setq vc-follow-symlinks nil)",))
    stage.screen.keys("M->")
    stage.screen.type("unsaved")
    client = propose(stage, files[proposed], NEW_NOTES)
    assert stage.emacs.buffer_text(f"*qwen-companion disk: {files[proposed].name}*") == NOTES
    # It is known that both names are one file.
    stage.screen.wait_for("your unsaved text")
    stage.emacs.eval(f'(with-current-buffer "{files[visited].name}" (revert-buffer t t))')
    stage.screen.wait_gone("your unsaved text")
    accept(stage, client, files[proposed])
    assert target.read_text() == NEW_NOTES
    assert link.is_symlink()
    assert_shows(stage, files[visited].name, NEW_NOTES)


@pytest.mark.local("a link out of the project is refused")
def test_a_link_out_of_the_project_to_a_file_that_shells_run(stage: Stage) -> None:
    profile = stage.sandbox.home / ".profile"
    profile.write_text(NOTES)
    link = stage.sandbox.project / "link.txt"
    link.symlink_to(profile)
    stage.start_emacs(stage.sandbox.notes)
    client = propose(stage, link, NEW_NOTES)
    warning = "can run code (shell); a link out of the workspace to "
    # Emacs's home directory is that of the sandbox.
    assert warning + "~/.profile" in stage.emacs.buffer_text("*Messages*")
    stage.screen.wait_for("can run code (shell)")
    stage.emacs.command("qwen-companion-diff-switch")
    stage.screen.wait_for("1 of 1 kept  can run code (shell)")
    stage.screen.wait_for(f"+++ b/{profile}")
    accept(stage, client, link)
    assert profile.read_text() == NEW_NOTES
    assert link.is_symlink()
