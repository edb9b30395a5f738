# SPDX-License-Identifier: GPL-3.0-or-later
"""A real git repository, the writes of an agent and of the user in it, and its record."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

from qwen_companion.domain import ChangedFile
from qwen_companion.files.versions import LINK, Loaded
from qwen_companion.journal.answers import RecordError, Scope, Summary
from qwen_companion.journal.changes import Net
from qwen_companion.journal.record import NOBODY, Cause, Record
from qwen_companion.journal.store import DISK, TurnRow

SHELL = "run_shell_command"


def turn_row(session: str = "s", prompt: str = "do it", start: int = 1000, source: str = "hooks") -> TurnRow:
    """Return a turn that begins."""
    return TurnRow(0, session, "Qwen Code", source, prompt, start, None, None, (), os.getpid(), "")


def data_of(side: Loaded | None) -> bytes | None:
    """Return the bytes of a version of a file, or None where there is none."""
    return None if side is None else side.data


def text(*lines: str, end: str = "\n") -> bytes:
    return "".join(line + end for line in lines).encode()


class Project:
    """The directory `root` below `home`."""

    def __init__(self, home: Path, git: bool = True) -> None:
        self.home = home
        self.root = home / "work"
        self.root.mkdir(parents=True)
        self.environ: Mapping[str, str] = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
        }
        if git:
            self.git("init", "--quiet", "--initial-branch=main")
        self._record: Record | None = None
        self._written = 1_000_000_000

    def git(self, *command: str, cwd: Path | None = None) -> str:
        """Run git as the user does, and return its output; it leaves nothing at work in the background."""
        options = ("-c", "user.name=U", "-c", "user.email=u@example.org", "-c", "protocol.file.allow=always")
        options += ("-c", "maintenance.auto=false")
        environ = {**self.environ, "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0"}
        done = subprocess.run(
            ["git", *options, *command], cwd=cwd or self.root, env=environ, check=True, capture_output=True, text=True
        )
        return done.stdout

    def commit(self, **files: bytes) -> None:
        """Write `files`, `a_b=` for the file "a.b", and commit all there is.

        They are older than the index: git reads again what is as new.
        """
        for name, data in files.items():
            path = self.write(name.replace("_", "."), data)
            self._written += 1
            os.utime(path, (self._written, self._written))
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message=x")

    def write(self, name: str, data: bytes, mode: int = 0o644) -> Path:
        """Put `data` into the file `name`."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(mode)
        return path

    @property
    def record(self) -> Record:
        """Return the record, opened when it is asked for."""
        if self._record is None:
            self._record = Record(str(self.root), self.environ)
        return self._record

    def reopen(self) -> Record:
        """Let another process go on with the record."""
        if self._record is not None:
            self._record.close()
        return self.reopen_after_close()

    def reopen_after_close(self) -> Record:
        """Open the record, which has been closed."""
        self._record = None
        return self.record

    def begin(self, session: str = "s", start: int = 1000) -> int:
        """Begin a turn: everything is looked at."""
        self.record.scan(NOBODY)
        return self.record.store.begin(turn_row(session, start=start)).id

    def scan(self, turn: int | None, tool: str = SHELL) -> None:
        """Record the changes that a command has made."""
        self.record.scan(NOBODY if turn is None else Cause(turn, tool))

    def scan_with(self, turn: int | None, owner: type[object], name: str, wrapper: Callable[..., object]) -> None:
        """Record changes as `scan` does; `wrapper` is called for the method `name` of `owner`, with it as first."""
        method = getattr(owner, name)

        def call(*arguments: object) -> object:
            return wrapper(method, *arguments)

        with patch.object(owner, name, call):
            self.scan(turn)

    def command(self, files: Mapping[str, bytes] | None = None, /, **more: bytes) -> int:
        """Begin a turn in which a command writes `files` and `more`, and return its number."""
        turn = self.begin()
        for name, data in {**(files or {}), **more}.items():
            self.write(name, data)
        self.scan(turn)
        return turn

    def edit(self, turn: int | None, name: str, data: bytes | None, mode: int = 0o644) -> None:
        """Have an agent, or with None the user in Emacs, write `data`, or with None delete the file."""
        path = self.root / name
        record = self.record
        record.observe(os.fsencode(path), record.look(os.fsencode(path)), NOBODY)
        if data is None:
            path.unlink()
        else:
            self.write(name, data, mode)
        cause = Cause() if turn is None else Cause(turn, "edit")
        record.observe(os.fsencode(path), record.look(os.fsencode(path)), cause)

    def end(self, turn: int, time: int = 2000) -> None:
        """End a turn."""
        self.record.scan(Cause(turn, DISK))
        self.record.end(turn, time)

    def turn(self, files: Mapping[str, bytes | None], session: str = "s", start: int = 1000, end: int = 2000) -> int:
        """Return the number of a turn in which a tool has written `files`, or with None deleted them."""
        turn = self.begin(session, start)
        for name, data in files.items():
            self.edit(turn, name, data)
        self.end(turn, end)
        return turn

    def summary(self, turn: int) -> Summary:
        """Return what is told of `turn`, which has changed something."""
        found = self.record.answers.summary(turn)
        assert found is not None
        return found

    def files(self, turn: int) -> dict[str, ChangedFile]:
        """Return the files of `turn` by their names below the root."""
        summary = self.record.answers.summary(turn)
        return {} if summary is None else {os.path.relpath(path, self.root): f for path, f in summary.files.items()}

    def kinds(self, turn: int) -> dict[str, str]:
        """Return the kind of change of each file in `turn`."""
        return {name: file.kind for name, file in self.files(turn).items()}

    def nets(self, names: Iterable[str], turn: int, kind: str = "turn") -> list[Net]:
        """Return the files `names` before and after `turn`, as Emacs asks for them."""
        scope = Scope(kind, turn, "s")
        # Those of a turn are known already, as Emacs has them.
        files = self.files(turn).values() if kind == "turn" else self.record.answers.files(scope)
        previous = {file.path: file.previous for file in files}
        paths = [str(self.root / name) for name in names]
        found: list[Net] = []
        for net in self.record.answers.texts([(path, previous.get(path)) for path in paths], scope):
            if isinstance(net, RecordError):
                raise net
            found.append(net)
        return found

    def net(self, name: str, turn: int, kind: str = "turn") -> Net:
        """Return the file `name` before and after `turn`."""
        (found,) = self.nets([name], turn, kind)
        return found

    def before(self, name: str, turn: int) -> bytes | None:
        """Return the bytes of `name` before `turn`."""
        return data_of(self.net(name, turn).before)

    def after(self, name: str, turn: int) -> bytes | None:
        """Return the bytes of `name` after `turn`."""
        return data_of(self.net(name, turn).after)

    def all_before(self, names: Iterable[str], turn: int) -> dict[str, bytes | None]:
        """Return the bytes of each of `names` before `turn`."""
        return {name: data_of(net.before) for name, net in zip(names, self.nets(names, turn), strict=True)}

    def notes(self, turn: int) -> tuple[str, ...]:
        """Return the notes of `turn`."""
        summary = self.record.answers.summary(turn)
        return () if summary is None else summary.turn.notes

    def undo(self, turn: int) -> None:
        """Undo `turn` as Emacs does in files that nobody has changed since."""
        nets = self.nets(self.files(turn), turn)
        for net in nets:
            if net.after is not None:
                now = self.record.look(net.path)
                assert now is not None
                assert now.data == net.after.data
                os.unlink(net.path)
                with suppress(OSError):
                    os.removedirs(os.path.dirname(net.path))
        for net in nets:
            path = net.previous or net.path
            # What is not recorded may be in its place.
            if net.before is not None and not os.path.isdir(path):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                if net.before.version.mode == LINK:
                    os.symlink(net.before.data, path)
                else:
                    with open(path, "wb") as file:
                        file.write(net.before.data)
                    os.chmod(path, net.before.version.mode & 0o777)

    def tree(self) -> dict[str, bytes | str]:
        """Return all files below the root but those of git, with their bytes, and links with where they lead."""
        found: dict[str, bytes | str] = {}
        for path in self.root.rglob("*"):
            name = str(path.relative_to(self.root))
            if ".git" in path.relative_to(self.root).parts or (path.is_dir() and not path.is_symlink()):
                continue
            found[name] = os.readlink(path) if path.is_symlink() else path.read_bytes()
        return found

    def repository_state(self) -> dict[str, tuple[bytes, int]]:
        """Return all that is in the user's repository, with times."""
        top = self.root / ".git"
        files = [path for path in top.rglob("*") if path.is_file()]
        return {str(path.relative_to(top)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}
