# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that are not plain UTF-8 with LF: an accepted change reads right, and changes no byte beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from clis import GEMINI, QWEN, Cli
from editor import lisp_string
from stage import Stage

pytestmark = pytest.mark.reuses_stage("shell")

OLD = "poires"
TEXT = "résumé naïve café\npommes\npoires\ndéjà vu à la carte\n"
CRLF = TEXT.replace("\n", "\r\n")
JAPANESE = "日本語のテキストです。\npoires\n漢字とかな。\n"


@dataclass(frozen=True)
class Case:
    """A file with `text` in `encoding`, after the byte order mark `bom`, in which `cli` changes one word."""

    cli: Cli
    name: str
    text: str = TEXT
    encoding: str = "utf-8"
    bom: bytes = b""
    new: str = "pêches"
    written: str | None = None
    """The text that the CLI writes, unless only the word changes."""
    written_encoding: str | None = None

    @property
    def before(self) -> bytes:
        return self.bom + self.text.encode(self.encoding)

    @property
    def after(self) -> bytes:
        return self.bom + self.text_after.encode(self.written_encoding or self.encoding)

    @property
    def text_after(self) -> str:
        return (self.written or self.text).replace(OLD, self.new)


UTF8_BOM = b"\xef\xbb\xbf"
CASES = [
    Case(QWEN, "bom", bom=UTF8_BOM),
    Case(QWEN, "crlf", CRLF),
    # Both make all line ends the same.
    Case(QWEN, "mixed", CRLF.replace("\r\n", "\n", 1), written=CRLF),
    Case(QWEN, "no-final-newline", TEXT.rstrip()),
    Case(QWEN, "latin-1", encoding="latin-1"),
    Case(QWEN, "utf-16", encoding="utf-16-le", bom=b"\xff\xfe"),
    Case(QWEN, "utf-16-crlf", CRLF, encoding="utf-16-be", bom=b"\xfe\xff"),
    Case(QWEN, "shift-jis", JAPANESE, encoding="shift-jis", new="peaches"),
    Case(GEMINI, "bom-crlf", CRLF, bom=UTF8_BOM),
    Case(GEMINI, "mixed", CRLF.replace("\r\n", "\n", 1), written=CRLF),
    # It reads and writes nothing but UTF-8.
    Case(
        GEMINI,
        "latin-1",
        encoding="latin-1",
        written=TEXT.encode("latin-1").decode(errors="replace"),
        written_encoding="utf-8",
    ),
]


def propose_edits(stage: Stage, cases: Mapping[Path, Case]) -> None:
    """Connect, and let the model of their CLI replace the word in the files of `cases`, one after the other."""
    cli = next(iter(cases.values())).cli
    stage.start_emacs(*cases)
    stage.start_in_shell(cli)
    for path, case in cases.items():
        stage.model.call("read_file", file_path=str(path))
        arguments = {"file_path": str(path), "old_string": OLD, "new_string": case.new}
        if cli is GEMINI:
            stage.model.call("replace", instruction="Other fruit.", **arguments)
        else:
            stage.model.call("edit", **arguments)
    stage.model.say("All done.")
    stage.ask("other fruit please", cli)


def edit_nothing_and_save(stage: Stage, name: str) -> None:
    """Insert a letter in the buffer `name`, save it, undo that and save it again."""
    stage.emacs.eval(
        f"(with-current-buffer {lisp_string(name)} (goto-char (point-max)) (undo-boundary) (insert ?x) (undo-boundary)"
        # Text mode adds a newline to a file without one, whoever wrote it.
        " (let (require-final-newline last-command this-command) (save-buffer) (undo) (save-buffer)))"
    )


def test_what_the_encoding_of_the_file_cannot_hold_is_kept_and_shown(stage: Stage) -> None:
    case = Case(QWEN, "shift-jis", JAPANESE, encoding="shift-jis")
    path = stage.sandbox.project / f"{case.name}.txt"
    path.write_bytes(case.before)
    propose_edits(stage, {path: case})
    stage.wait_for_review(case.cli)
    stage.accept("All done.")
    # The CLI writes a question mark for what it cannot encode.
    stage.screen.wait_for("+p?ches")
    stage.screen.wait_for("-pêches")
    assert path.read_bytes() == case.before.replace(OLD.encode(), b"p?ches")
    assert stage.emacs.buffer_text(path.name) == JAPANESE.replace(OLD, "p?ches")
    assert stage.emacs.buffer_text(f"*qwen-companion kept: {path.name}*") == case.text_after
    said = stage.emacs.buffer_text("*Messages*")
    assert "does not have the accepted text" in said
    # Of the files that diff gets, nobody need know.
    assert "Wrote" not in said
    assert f"*qwen-companion difference: {path.name}*" in stage.emacs.visible_buffers()
    assert stage.emacs.eval("(buffer-name (window-buffer))") == f'"*{QWEN.name}*"'


# All files in one turn: to clear the screen of the CLI before each would take most of the time.
@pytest.mark.parametrize(
    "cli",
    [
        pytest.param(QWEN, id=QWEN.name),
        pytest.param(GEMINI, id=GEMINI.name, marks=pytest.mark.local("Gemini CLI is not served at other places")),
    ],
)
def test_an_accepted_change_reads_right(stage: Stage, cli: Cli) -> None:
    cases = {stage.sandbox.project / f"{case.name}.txt": case for case in CASES if case.cli is cli}
    for path, case in cases.items():
        path.write_bytes(case.before)
    propose_edits(stage, cases)
    for path, case in cases.items():
        stage.screen.wait_for(f"proposal: {path.name}")
        stage.wait_for_review(case.cli)
        assert ("loses text" in stage.screen.capture()) == (case.written_encoding is not None), path.name
        stage.emacs.command("qwen-companion-diff-accept")
        stage.screen.wait_gone(f"proposal: {path.name}")
    stage.screen.wait_for("All done.")
    stage.emacs.wait_until("(null qwen-companion-disk--writes)")
    assert "does not have the accepted text" not in stage.emacs.buffer_text("*Messages*")
    for path, case in cases.items():
        assert path.read_bytes() == case.after, path.name
        buffer = f"(get-buffer {lisp_string(path.name)})"
        text = case.text_after.replace("\r\n", "\n")
        # The time of the file says nothing: it is unknown until the user changes the buffer.
        stage.emacs.wait_until(f"(equal (with-current-buffer {buffer} (buffer-string)) {lisp_string(text)})")
        assert stage.emacs.eval(f"(buffer-modified-p {buffer})") == "nil", path.name
        edit_nothing_and_save(stage, path.name)
        assert path.read_bytes() == case.after, path.name
