# SPDX-License-Identifier: GPL-3.0-or-later
"""The real CLI's changes in yolo, by its tools and its shell, are recorded turn by turn, byte for byte."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path

import pytest

from clis import QWEN, Cli
from editor import lisp_string
from model_types import Answer
from qwen_companion.journal.answers import RecordError, Scope
from qwen_companion.journal.record import Record
from sandbox import CHECKOUT, GREETING, NOTES, has_ended
from stage import PATIENCE, Stage
from test_following import in_buffer, wait_for_text

pytestmark = pytest.mark.reuses_stage("free")

FREE = '(setq qwen-companion-approval-mode "yolo")'
FREE_QWEN = replace(QWEN, input_start=r"^\* +")

FILES = {
    "latin.txt": "caf\xe9\n".encode("latin-1"),
    "crlf.txt": b"one\r\ntwo\r\n",
    "image.png": b"\x89PNG\r\n\x1a\n\0\0" + bytes(range(256)),
    "old name.txt": b"one\ntwo\nthree\n",
    "gone/last.txt": b"no end",
    "run.sh": b"#!/bin/sh\n",
    "long.txt": b"".join(b"%d\n" % number for number in range(30)),
    "change.sh": b"sed -i -e s/^3$/three/ -e s/^25$/twenty-five/ long.txt; printf 'by the command\\n' >> latin.txt\n",
    ".env": b"SECRET=1\n",
}
RENAMED = ("old name.txt", "new name.txt")
BINARY = "image.png"


def files_of(directory: Path) -> dict[str, bytes]:
    """Return the bytes of all files below `directory` but those of git."""
    paths = [path for path in directory.rglob("*") if path.is_file() and ".git" not in path.parts]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def run(stage: Stage, command: str) -> None:
    """Script a command of the model's."""
    stage.model.call("run_shell_command", command=command, is_background=False)


def ask(stage: Stage, prompt: str, answer: str, cli: Cli = FREE_QWEN) -> None:
    """Send `prompt` and wait until the CLI has shown `answer` and the turn is recorded to its end."""
    recorded = threading.Event()
    stage.model.answer(Answer(answer, halfway=recorded))
    stage.ask(prompt, cli)
    # It may begin in the record later than the CLI waits for that; before, no end is to be seen there.
    stage.screen.wait_until(lambda: running_turns(stage.journal), "the recorded turn")
    recorded.set()
    stage.screen.wait_for(answer)
    stage.emacs.wait_until(
        "(eq 'idle (qwen-companion-cli-state-activity"
        " (qwen-companion-session-state (car (qwen-companion-backend-sessions)))))"
    )
    # Until then, what a command of the user's writes is taken for the agent's.
    stage.screen.wait_until(lambda: not running_turns(stage.journal), "the end of the recorded turn")


def running_turns(directory: Path) -> list[int]:
    """Return the turns without an end in the journals below `directory`, which other processes have open."""
    running: list[int] = []
    for path in directory.glob("*/journal.sqlite"):
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=PATIENCE)) as journal:
            running += [row[0] for row in journal.execute("select id from turns where end is null")]
    return running


def repository_of(directory: Path) -> dict[str, bytes]:
    """Return the bytes of all files of the git repository in `directory`."""
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob(".git/**/*") if path.is_file()
    }


def three_turns(stage: Stage, tmp_path: Path, mode: str, cli: Cli, goes_on: bool = False) -> None:
    """Change twenty files in three turns of `cli` in the approval `mode`, compare the record with copies, undo all.

    The backend is killed before the third one, and Emacs after it.  `goes_on`: in another Emacs, the conversation is
    gone on with, and hunks are undone and brought back, before all of it is undone.
    """
    project = stage.sandbox.project
    for name, data in FILES.items():
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_bytes(data)
    copies = [tmp_path / str(number) for number in range(4)]
    shutil.copytree(project, copies[0])
    mode_form = f'(setq qwen-companion-approval-mode "{mode}" qwen-companion-review-edits nil)'
    stage.start_emacs(stage.sandbox.greeting, forms=(mode_form,))
    stage.start_cli()
    # The first: tools and a command.
    edited = GREETING.replace('"hello "', '"good day "')
    stage.script_change(stage.sandbox.greeting, edited)
    stage.model.call("write_file", file_path=str(project / "made.txt"), content="made\n")
    run(stage, "printf 'more\\n' >> crlf.txt; mv 'old name.txt' 'new name.txt'; rm -r gone; chmod +x run.sh")
    ask(stage, "change a lot", "All done.", cli)
    shutil.copytree(project, copies[1])
    # An edit of the user's own between two turns is not the agent's.
    user = edited + "# by the user\n"
    stage.sandbox.greeting.write_text(user)
    stage.script_change(stage.sandbox.notes, NOTES.replace("pears", "plums"))
    run(stage, "sh change.sh; printf '\\0' >> image.png; echo SECRET=2 > .env")
    ask(stage, "plums please", "There they are.", cli)
    shutil.copytree(project, copies[2])
    # Until now the agent has done nothing with git.
    assert repository_of(copies[2]) == repository_of(copies[0])
    # What the user saves in Emacs is not the agent's either.
    stage.emacs.eval(
        f"(with-current-buffer (find-file-noselect {stage.emacs.lisp_name(stage.sandbox.notes)})"
        ' (goto-char (point-min)) (insert "by the user\n") (save-buffer))'
    )
    users_notes = stage.sandbox.notes.read_bytes()
    # Another process goes on where the killed one was.
    killed = stage.sandbox.backend()
    killed.send_signal(signal.SIGKILL)
    assert has_ended(killed, PATIENCE)
    stage.screen.wait_until(
        lambda: [each.pid for each in stage.sandbox.backends()] not in ([], [killed.pid]), "another backend"
    )
    stage.emacs.wait_until("(eq 'ready (qwen-companion-state))")
    stage.screen.wait_for("Qwen[1]")
    run(stage, "git add -A && git -c user.name=A -c user.email=a@b commit -qm all && git rm -q made.txt")
    run(stage, "for i in $(seq 11); do echo $i > many$i.txt; done; git checkout -q HEAD~1 -- greeting.py")
    ask(stage, "clean up", "It is clean.", cli)
    shutil.copytree(project, copies[3])
    backend = stage.sandbox.backend()
    stage.emacs.process.kill()
    assert has_ended(backend, PATIENCE)
    stage.sandbox.assert_no_files()
    name_there = stage.emacs.name(project)
    record = Record(name_there, stage.here)
    # Of those before, there may be some of other tests.
    turns = record.answers.turns()[-3:]
    sides: list[tuple[dict[str, bytes], dict[str, bytes]]] = []
    for number, turn in enumerate(turns):
        summary = record.answers.summary(turn)
        assert summary is not None
        before, after = files_of(copies[number]), files_of(copies[number + 1])
        if number == 1:
            before["greeting.py"] = user.encode()
        if number == 2:
            before["notes.txt"] = users_notes
        del before[".env"], after[".env"]
        sides.append((before, after))
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        told: set[str] = set()
        for file in summary.files.values():
            (net,) = record.answers.texts([(file.path, file.previous)], Scope("turn", turn))
            assert not isinstance(net, RecordError)
            name = os.path.relpath(file.path, name_there)
            old = name if file.previous is None else os.path.relpath(file.previous, name_there)
            told |= {name, old}
            assert (None if net.before is None else net.before.data) == before.get(old), file
            assert (None if net.after is None else net.after.data) == after.get(name), file
        assert told == changed | ({"run.sh"} if number == 0 else set()), number
    first = record.answers.summary(turns[0])
    assert first is not None
    assert (first.turn.prompt, first.turn.client.split()[0]) == ("change a lot", "Qwen")
    assert first.turn.end is not None
    kinds = {os.path.basename(file.path): file.kind for file in first.files.values()}
    assert (kinds["new name.txt"], kinds["last.txt"], kinds["made.txt"]) == ("renamed", "deleted", "added")
    assert (kinds["run.sh"], kinds["greeting.py"]) == ("mode", "modified")
    # The prompt of the third is lost where the new backend took longer than a hook waits.
    summaries = [record.answers.summary(turn) for turn in reversed(turns)]
    record.close()
    prompts = [summary.turn.prompt for summary in summaries if summary is not None]
    with stage.beside() as other:
        other.start_emacs(stage.sandbox.notes, forms=(mode_form,))
        if goes_on:
            go_on(other, first.turn.session, cli)
            prompts.insert(0, "once more")
            sides.append((files_of(copies[3]), files_of(project)))
            undo_hunks_and_bring_them_back(
                other, [Turn(prompt, *each) for prompt, each in zip(reversed(prompts), sides, strict=True)]
            )
        undo_everything(other, prompts)
        other.emacs.quit()
    expected, files = files_of(copies[0]), files_of(project)
    expected["greeting.py"] = (GREETING + "# by the user\n").encode()
    expected["notes.txt"] = ("by the user\n" + NOTES).encode()
    # What is excluded is not in the record.
    del expected[".env"], files[".env"]
    assert files == expected
    assert not os.access(project / "run.sh", os.X_OK)


def go_on(stage: Stage, session: str, cli: Cli) -> None:
    """Go on with the conversation `session` in another Emacs: its turns of before and the new one are the same's."""
    stage.emacs.command("qwen-companion-resume")
    if stage.far is None:
        stage.screen.wait_for("Continue conversation:")
        stage.screen.type("change a lot")
        stage.screen.keys("Tab", "Enter")
    else:
        # There, the CLI itself asks.
        stage.screen.wait_for("› change a lot")
        stage.screen.keys("Enter")
    stage.screen.wait_for("Qwen[1]")
    stage.screen.wait_for("Type your message")
    run(stage, "echo again > again.txt")
    ask(stage, "once more", "Done again.", cli)
    stage.emacs.command("qwen-companion-changes")
    shown(stage, "  once more")
    turns = "(seq-count (lambda (turn) (equal (qwen-companion-turn-session turn) %s)) (qwen-companion-journal-turns))"
    assert stage.emacs.eval(turns % lisp_string(session)) == "4"


@dataclass(frozen=True)
class Turn:
    """All files `before` and `after` a turn of the agent that `prompt` began."""

    prompt: str
    before: dict[str, bytes]
    after: dict[str, bytes]

    @property
    def changed(self) -> list[str]:
        """The files that are in the list of changes, but for those that have other bytes than a text."""
        names = self.before.keys() | self.after.keys()
        return sorted(
            name for name in names - {*RENAMED, ".env", BINARY} if self.before.get(name) != self.after.get(name)
        )


def undo_hunks_and_bring_them_back(stage: Stage, turns: Sequence[Turn]) -> None:
    """Undo each hunk of `turns` by keys and bring it back, or the other way round where it is undone already.

    After each key the file has the bytes that the copies tell.
    """
    stage.emacs.eval(f"(load {lisp_string(str(CHECKOUT / 'tests/e2e/hunks'))})")
    for turn in turns:
        for name in turn.changed:
            hunks = hunks_between(turn.before.get(name, b""), turn.after.get(name, b""))
            place = f"{lisp_string(turn.prompt or '(no prompt)')} {lisp_string(name)}"
            assert stage.emacs.eval(f"(hunks-count {place} {PATIENCE})", 2 * PATIENCE) == str(len(hunks)), (turn, name)
            for number, hunk in enumerate(hunks, 1):
                path = stage.sandbox.project / name
                now = path.read_bytes() if path.exists() else None
                other, undo = with_hunk_swapped(turn, name, hunk, now)
                for key, expected in (("k" if undo else "u", other), ("u" if undo else "k", now)):
                    # What the agent has made is deleted after a question.
                    question = " y" if key == "k" and expected is None else ""
                    press(stage, f"{place} {number}", key + question)
                    assert (path.read_bytes() if path.exists() else None) == expected, (turn.prompt, name, number, key)
    first, second, *_ = turns
    old, new = (stage.sandbox.project / name for name in RENAMED)
    press(stage, f'"{first.prompt}" "{new.name}" 0', "k")
    assert (old.read_bytes(), new.exists()) == (first.before[old.name], False)
    press(stage, f'"{first.prompt}" "{new.name}" 0', "u")
    assert (new.read_bytes(), old.exists()) == (first.after[new.name], False)
    image, script = stage.sandbox.project / BINARY, stage.sandbox.project / "run.sh"
    press(stage, f'"{second.prompt}" "{BINARY}" 0', "k")
    assert image.read_bytes() == second.before[BINARY]
    press(stage, f'"{second.prompt}" "{BINARY}" 0', "u")
    assert image.read_bytes() == second.after[BINARY]
    press(stage, f'"{first.prompt}" "{script.name}" 0', "k")
    assert not os.access(script, os.X_OK)
    press(stage, f'"{first.prompt}" "{script.name}" 0', "u")
    assert os.access(script, os.X_OK)


def press(stage: Stage, place: str, keys: str) -> None:
    """Press `keys` on `place`, the last arguments of `hunks-press` but for the limit."""
    stage.emacs.eval(f'(hunks-press {place} "{keys}" {PATIENCE})', 2 * PATIENCE)


def hunks_between(before: bytes, after: bytes) -> list[tuple[bytes, bytes]]:
    """Return the hunks between two texts, each with its lines and three around them on both sides."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    groups = SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(3)
    return [(b"".join(old[group[0][1] : group[-1][2]]), b"".join(new[group[0][3] : group[-1][4]])) for group in groups]


def with_hunk_swapped(turn: Turn, name: str, hunk: tuple[bytes, bytes], now: bytes | None) -> tuple[bytes | None, bool]:
    """Return `now`, the bytes of `name`, with `hunk` of `turn` undone, and True; or brought back, and False."""
    old, new = hunk
    text = now or b""
    undo = new in text
    swapped = text.replace(new, old, 1) if undo else text.replace(old, new, 1)
    return (None if name not in (turn.before if undo else turn.after) else swapped), undo


def undo_everything(stage: Stage, prompts: Sequence[str]) -> None:
    """Undo the turns that `prompts` have begun, by keys."""
    stage.emacs.command("qwen-companion-changes")
    for prompt in prompts:
        title = f'"{prompt}"' if prompt else "the turn of"
        shown(stage, f"  {prompt or '(no prompt)'}")
        at(stage, f"  {prompt or '(no prompt)'}")
        stage.screen.keys("k")
        stage.screen.wait_for(re.compile(rf"Undo {title}.*\(y or n\)", re.DOTALL))
        stage.screen.keys("y")
        shown(stage, f"you  Undo {title}")


CHANGES = "*qwen-companion changes*"


def shown(stage: Stage, text: str | re.Pattern[str]) -> None:
    """Wait until the buffer of changes has `text`."""
    pattern = re.compile(re.escape(text)) if isinstance(text, str) else text
    stage.screen.wait_until(
        lambda: pattern.search(stage.emacs.buffer_text(CHANGES)) is not None, f"{pattern.pattern!r} among the changes"
    )


def at(stage: Stage, *texts: str) -> None:
    """Go to the line with the last of `texts` after the ones before it in the buffer of changes, which is selected."""
    go_to(stage, CHANGES, *texts)


def go_to(stage: Stage, buffer: str, *texts: str) -> None:
    """Go to the line with the last of `texts` after the ones before it, as soon as `buffer`, which is shown, has it."""
    searches = " ".join(f"(search-forward {lisp_string(text)} nil t)" for text in texts)
    stage.emacs.wait_until(
        f"(with-selected-window (get-buffer-window {lisp_string(buffer)})"
        f" (let ((place (save-excursion (goto-char (point-min)) (and {searches} (line-beginning-position)))))"
        " (when place (goto-char place) t)))"
    )


def holds(stage: Stage, path: Path, text: str | None) -> None:
    """Wait until the file `path` has `text`; None: until it is gone."""
    stage.screen.wait_until(
        lambda: (path.read_text() if path.exists() else None) == text, f"{path.name} to hold {text!r}"
    )


def test_keys_undo_what_an_agent_did_and_bring_it_back(stage: Stage) -> None:
    greeting, notes, made = (stage.sandbox.project / name for name in ("greeting.py", "notes.txt", "made.txt"))
    edited, new_notes = GREETING.replace('"hello "', '"good day "'), NOTES.replace("pears", "plums")
    stage.start_emacs(greeting, forms=(FREE,))
    stage.start_cli()
    # What the agent's command brings to light was there before.
    ignore, precious = (stage.sandbox.project / name for name in (".gitignore", "data/precious.csv"))
    ignore.write_text("data/\n")
    precious.parent.mkdir()
    precious.write_text("1,2\n")
    latin = stage.sandbox.project / "caf\udce9.txt"
    latin.write_text("one\n")
    nowhere = stage.sandbox.project / "nowhere"
    nowhere.symlink_to("gone")
    (stage.sandbox.project / "change.sh").write_text(
        "sed -i s/pears/plums/ notes.txt; echo made > made.txt; echo '# nothing' > .gitignore\n"
        "rm nowhere; echo two > $(printf 'caf\\351.txt')\n"
    )
    stage.script_change(greeting, edited)
    run(stage, "sh change.sh")
    ask(stage, "greet and buy plums", "All done.")
    # Typed to beside the terminal: the cursor is in the buffer of changes.
    stage.emacs.command("qwen-companion-changes")
    shown(stage, "greet and buy plums")
    shown(stage, "made.txt  new")
    holds(stage, latin, "two\n")
    # An edit of a file in a buffer and a shell command alike: a hunk undone, and back.
    for path, before, after, line in ((greeting, GREETING, edited, "+    return"), (notes, NOTES, new_notes, "+plums")):
        at(stage, path.name)
        stage.screen.keys("Tab")
        shown(stage, line)
        at(stage, line)
        stage.screen.keys("k")
        holds(stage, path, before)
        shown(stage, "undone, u brings it back")
        stage.screen.keys("u")
        holds(stage, path, after)
        stage.screen.wait_until(
            lambda: "undone, u brings it back" not in stage.emacs.buffer_text(CHANGES), "the hunk brought back"
        )
    # A deleted link to nowhere comes and goes.
    at(stage, "nowhere")
    stage.screen.keys("k")
    stage.screen.wait_until(nowhere.is_symlink, "the link made again")
    stage.screen.keys("u")
    stage.screen.wait_for("delete nowhere? (y or n)")
    stage.screen.keys("y")
    stage.screen.wait_until(lambda: not nowhere.is_symlink(), "the link deleted")
    # The user's edit since then stays when the turn is undone.
    by_hand = '(with-current-buffer "greeting.py" (goto-char (point-max)) (insert "# by hand\n") (save-buffer))'
    stage.emacs.eval(by_hand)
    at(stage, "Qwen Code")
    stage.screen.keys("k")
    stage.screen.wait_for(re.compile(r"change back 4 files, .*delete made.txt.*\(y or n\)"))
    stage.screen.keys("y")
    holds(stage, made, None)
    holds(stage, greeting, GREETING + "# by hand\n")
    holds(stage, notes, NOTES)
    holds(stage, ignore, "data/\n")
    holds(stage, latin, "one\n")
    assert precious.read_text() == "1,2\n"
    # That is a turn of its own, which is undone.
    shown(stage, 'you  Undo "greet')
    at(stage, 'you  Undo "greet')
    stage.screen.keys("k")
    stage.screen.wait_for(re.compile(r"make again made.txt.*\(y or n\)"))
    stage.screen.keys("y")
    holds(stage, made, "made\n")
    holds(stage, greeting, edited + "# by hand\n")
    holds(stage, notes, new_notes)
    # A comment goes to the CLI as a prompt.
    at(stage, "+    return")
    stage.screen.keys("c")
    stage.screen.wait_for("Comment on greeting.py")
    stage.screen.enter("Too formal.")
    stage.model.say("I am sorry.")
    stage.screen.keys("C-c", "C-c")
    stage.screen.wait_for("I am sorry.")
    stage.screen.wait_for("> Comments on your changes:")


MARGINS = """
(with-current-buffer "greeting.py"
  (save-excursion
    (goto-char (point-min))
    (let (found)
      (while (not (eobp))
        (let ((prefix (get-char-property (point) 'line-prefix)))
          (push (and prefix (string-trim (cadr (get-text-property 0 'display prefix)))) found))
        (forward-line 1))
      (string-join (mapcar (lambda (text) (or text "-")) (nreverse found)) "\n"))))
"""


def test_a_line_knows_its_prompt_and_a_turn_becomes_a_commit(stage: Stage) -> None:
    greeting, edited = stage.sandbox.greeting, GREETING.replace('"hello "', '"good day "')
    git = ["git", "-C", str(stage.sandbox.project)]
    for name in ("user.name", "user.email"):
        subprocess.run([*git, "config", name, "U"], check=True)
    stage.start_emacs(greeting, forms=(FREE,))
    stage.start_cli()
    stage.emacs.eval("(progn (setq qwen-companion-commit-notes t) (qwen-companion-privacy-update))")
    stage.script_change(greeting, edited)
    ask(stage, "greet politely", "Done.")
    wait_for_text(stage, greeting, edited)
    stage.emacs.eval('(with-current-buffer "greeting.py" (qwen-companion-blame) (read-only-mode -1))')

    def margins() -> list[str]:
        return stage.emacs.text(MARGINS).split("\n")

    place = edited.splitlines().index(next(line for line in edited.splitlines() if "good day" in line))
    stage.screen.wait_until(lambda: re.search(r"^\d\d:\d\d .*greet", margins()[place]), "the prompt in the margin")
    stage.screen.wait_gone("Asking the journal")
    # What the user types is his, also unsaved.
    stage.emacs.eval('(with-current-buffer "greeting.py" (goto-char (point-max)) (insert "# by hand\n"))')
    stage.screen.keys("C-x", "o", "C-x", "o")
    stage.screen.wait_until(lambda: margins()[-1] == "you", "the user in the margin")
    assert set(margins()[:place]) == {"-"}
    stage.emacs.eval('(with-current-buffer "greeting.py" (qwen-companion-blame-mode -1) (save-buffer))')
    commit_a_turn(stage, greeting, edited, place)


def commit_a_turn(stage: Stage, greeting: Path, edited: str, place: int) -> None:
    """Make a commit of the turn that changed line `place` of `greeting` to `edited`, without the user's line."""
    git = ["git", "-C", str(stage.sandbox.project)]
    stage.emacs.command("qwen-companion-changes")
    shown(stage, "greet politely")
    at(stage, "greet politely")
    stage.screen.keys("C")
    stage.screen.wait_until(
        lambda: stage.emacs.buffer_text("*qwen-companion commit*") == "Summary: greet politely", "the message"
    )
    stage.screen.keys("C-c", "C-c")
    stage.wait_until_said("Committed; your own edits are left out")
    stage.emacs.eval("(setq qwen-companion-commit-notes nil)")
    note = [*git, "notes", "--ref=qwen-companion", "show"]

    def is_noted() -> bool:
        return subprocess.run(note, capture_output=True).returncode == 0

    if stage.far is None:
        stage.screen.wait_until(is_noted, "the note on the commit")
        said = json.loads(subprocess.run(note, check=True, capture_output=True).stdout)
        assert (said["turns"][0]["prompt"], said["files"]) == ("greet politely", {"greeting.py": [[place + 1, 1, 0]]})
    for command, output in ((["show", "HEAD:greeting.py"], edited), (["log", "-1", "--format=%s"], "greet politely\n")):
        assert subprocess.run([*git, *command], check=True, capture_output=True, text=True).stdout == output
    assert greeting.read_text() == edited + "# by hand\n"


def test_writes_without_a_review_are_followed(stage: Stage) -> None:
    edited, new_notes = GREETING.replace('"hello "', '"good day "'), NOTES.replace("pears", "plums")
    stage.start_emacs(stage.sandbox.greeting, stage.sandbox.notes, forms=(FREE,))
    stage.start_cli()
    # The CLI refuses commands in which it sees that they edit a file that it has not read.
    (stage.sandbox.project / "change.sh").write_text("sed -i s/pears/plums/ notes.txt\n")
    stage.script_change(stage.sandbox.greeting, edited)
    stage.model.call("run_shell_command", command="sh change.sh", is_background=False)
    stage.converse("change both", "All done.", FREE_QWEN)
    for path, text in ((stage.sandbox.greeting, edited), (stage.sandbox.notes, new_notes)):
        wait_for_text(stage, path, text)
        state = in_buffer(path, "(list (buffer-modified-p) (verify-visited-file-modtime))")
        assert stage.emacs.eval(state) == "(nil t)"
    # A name that no file can have ends no turn, and not the backend.
    backend = stage.emacs.eval("(process-id (qwen-companion-backend--process))")
    for name in ("a\0b", "x" * 300, "../\0"):
        stage.model.call("write_file", file_path=f"{stage.sandbox.project}/{name}", content="x")
    stage.model.call("write_file", file_path=str(stage.sandbox.notes), content=new_notes)
    ask(stage, "write odd names", "They are odd.")
    wait_for_text(stage, stage.sandbox.notes, new_notes)
    assert stage.emacs.eval("(list (process-id (qwen-companion-backend--process)) (qwen-companion-state))") == (
        f"({backend} ready)"
    )
    stage.model.call("run_shell_command", command="rm notes.txt", is_background=False)
    stage.converse("delete the list", "It is gone.", FREE_QWEN)
    stage.emacs.wait_until(in_buffer(stage.sandbox.notes, "(qwen-companion-follow-lighter)"))
    stage.emacs.eval('(switch-to-buffer-other-window "notes.txt")')
    stage.screen.wait_for(re.compile(r"Qwen\[1\].* deleted"))
    assert stage.emacs.buffer_text("notes.txt") == new_notes
