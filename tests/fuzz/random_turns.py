# SPDX-License-Identifier: GPL-3.0-or-later
"""Random turns of an agent in random trees, undone, and compared with copies of the trees.

All is real but the model: an Emacs in batch mode with its backend, an agent in a process of its own that calls the
hooks as a CLI does, its edits and commands, and the keys of the buffer of changes.  What is checked, path by path:
*after undoing a turn, every path is either as it was before the turn, with the user's own later edits merged, or
untouched, and never less than both*.

`allowed` has that rule; it knows the bytes before and after a turn and those now, and nothing of the journal.  Texts
have places that the agent writes and places that the user edits, with lines between them that stay, so that a merge is
a choice for each place.
"""

from __future__ import annotations

import base64
import json
import os
import random
import re
import select
import shlex
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import psutil
from sexpdata import loads

from limit import limit_s

CHECKOUT = Path(__file__).parents[2]
EMACS = os.environ.get("EMACS") or "emacs"

LATE = "took too long"
"""In the note of a turn that may be incomplete by the journal's own word."""

# --- Trees on the disk ---


class Entry(NamedTuple):
    """A file, a link or something else: its kind as in `ls -l`, who may read, write and run it, and its bytes.

    `own` is what the journal does not record: owner, group, special bits and an extended attribute.
    """

    kind: str
    mode: int
    data: bytes
    own: tuple[int, int, int, bytes] = (0, 0, 0, b"")

    def __str__(self) -> str:
        return f"{self.kind}{self.mode:o} {self.data[:400]!r} {self.own}"

    def like(self, other: Entry) -> Entry:
        """Return it with what `other` has that is not recorded."""
        return self._replace(own=other.own)


def plain(item: Entry | None) -> Entry | None:
    """Return `item` without what is not recorded."""
    return item and item._replace(own=(0, 0, 0, b""))


@dataclass
class Copy:
    """All that was below a root: `files` by name, `directories` with modes, and the files of `repositories`.

    `own` are the directories that repositories keep for themselves, with the files of `repositories` in them.
    `visible` are the names that git does not ignore, those of nested repositories too.
    """

    files: dict[bytes, Entry] = field(default_factory=dict[bytes, Entry])
    directories: dict[bytes, int] = field(default_factory=dict[bytes, int])
    repositories: dict[bytes, Entry] = field(default_factory=dict[bytes, Entry])
    own: set[bytes] = field(default_factory=set[bytes])
    visible: set[bytes] = field(default_factory=set[bytes])
    inodes: dict[bytes, int] = field(default_factory=dict[bytes, int])
    linked: set[bytes] = field(default_factory=set[bytes])
    """The files with several names."""

    def names_of(self, name: bytes) -> list[bytes]:
        """Return all names of the file `name`, if it has several."""
        return [each for each in self.linked if name in self.linked and self.inodes[each] == self.inodes[name]]


def entry(path: bytes) -> Entry:
    status = os.lstat(path)
    mode = status.st_mode & 0o777
    if stat.S_ISLNK(status.st_mode):
        return Entry("l", 0, os.readlink(path))
    if stat.S_ISREG(status.st_mode):
        note = b""
        if ATTRIBUTE in os.listxattr(path):
            note = os.getxattr(path, ATTRIBUTE)
        with open(path, "rb") as file:
            special = stat.S_IMODE(status.st_mode) & ~0o777
            return Entry("-", mode, file.read(), (status.st_uid, status.st_gid, special, note))
    return Entry("?", mode, b"")


ATTRIBUTE = "user.note"


OWN = (b".git", b".hg")
BARE = {b"HEAD", b"objects", b"refs"}


def copy_of(root: bytes) -> Copy:
    """Return all that is below `root`, without the visible names."""
    copy = Copy()
    waiting = [(b"", False)]
    while waiting:
        below, is_own = waiting.pop()
        path = os.path.join(root, below)
        with os.scandir(path) as items:
            found = sorted(items, key=lambda item: item.name)
        if not is_own and (os.path.basename(below) in OWN or {item.name for item in found} >= BARE):
            is_own = True
            copy.own.add(below)
        if below and not is_own:
            copy.directories[below] = stat.S_IMODE(os.lstat(path).st_mode)
        for item in found:
            name = os.path.join(below, item.name)
            if item.is_dir(follow_symlinks=False):
                waiting.append((name, is_own))
            elif is_own or item.name in OWN:
                copy.repositories[name] = entry(item.path)
            else:
                copy.files[name] = entry(item.path)
                status = item.stat(follow_symlinks=False)
                copy.inodes[name] = status.st_ino
                if status.st_nlink > 1:
                    copy.linked.add(name)
    return copy


def visible(root: bytes, environ: Mapping[str, str], empty: Path) -> set[bytes]:
    """Return the names below `root` that git tracks or does not ignore.

    `empty` is the repository of trees that have none.
    """
    found: set[bytes] = set()
    waiting = [b""]
    while waiting:
        below = waiting.pop()
        top = os.path.join(root, below).rstrip(b"/")
        own = os.path.join(top, b".git")
        if not os.path.lexists(own):
            own = os.fsencode(empty)
        # A bare repository has a work tree too if it is named.
        command = ["git", "-c", "core.fsmonitor=false", b"--git-dir=" + own, b"--work-tree=" + top]
        done = subprocess.run(
            [*command, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=top,
            env={**environ, "GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            check=False,
        )
        for name in done.stdout.split(b"\0")[:-1]:
            path = os.path.join(below, name.rstrip(b"/"))
            if os.path.isdir(os.path.join(root, path)) and not os.path.islink(os.path.join(root, path)):
                if os.path.lexists(os.path.join(root, path, b".git")):
                    waiting.append(path)
            else:
                found.add(path)
    return found


# --- Texts with places ---

PLACES = 3
FIXED = [b"%s %d" % (sign, number) for number in range(PLACES) for sign in (b"--", b"==")]


class Text(NamedTuple):
    """A text: the lines of each place, the agent's at even indices; how lines end, and whether the last one does."""

    places: tuple[tuple[bytes, ...], ...]
    end: bytes = b"\n"
    is_ended: bool = True

    def __bytes__(self) -> bytes:
        lines = [line for place, fixed in zip(self.places, FIXED, strict=True) for line in (*place, fixed)]
        return self.end.join(lines) + (self.end if self.is_ended else b"")

    def put(self, place: int, lines: Sequence[bytes]) -> Text:
        """Return the text with `lines` at `place`."""
        return self._replace(places=(*self.places[:place], tuple(lines), *self.places[place + 1 :]))


def text(data: bytes | None) -> Text | None:
    """Return `data` as a text, None where it is none."""
    if data is None:
        return None
    end = b"\r\n" if b"\r\n" in data else b"\n"
    lines = data.split(end)
    is_ended = lines[-1] == b""
    if is_ended:
        lines.pop()
    places: list[list[bytes]] = [[]]
    for line in lines:
        if len(places) <= len(FIXED) and line == FIXED[len(places) - 1]:
            places.append([])
        else:
            places[-1].append(line)
    found = Text(tuple(map(tuple, places[:-1])), end, is_ended)
    return found if len(places) == len(FIXED) + 1 and not places[-1] and bytes(found) == data else None


MARKS = ((b"\xff\xfe", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig"))


def form_of(data: bytes) -> tuple[str, bytes]:
    """Return the encoding and the line ends of a text."""
    encoding = next((each for mark, each in MARKS if data.startswith(mark)), "latin-1")
    return encoding, b"\r\n" if "\r\n" in data.decode(encoding, "replace") else b"\n"


def in_form(data: bytes, form: tuple[str, bytes]) -> bytes:
    """Return the text `data` in another form."""
    words = data.decode(form_of(data)[0], "replace").replace("\r\n", "\n")
    return words.replace("\n", form[1].decode()).encode(form[0], "replace")


def merged_in_form(after: Entry, now: Entry, before: Entry) -> Entry | None:
    """Return what `merged` does where the encoding or the line ends were changed."""
    forms = [form_of(each.data) for each in (after, now, before)]
    plain_form = ("latin-1", b"\n")
    if len(set(forms)) == 1:
        return None
    sides = [each._replace(data=in_form(each.data, plain_form)) for each in (after, now, before)]
    result = merged(*sides)
    return result and result._replace(data=in_form(result.data, forms[2] if forms[1] == forms[0] else forms[1]))


def merged(after: Entry, now: Entry, before: Entry) -> Entry | None:
    """Return `now` with what lies between `after` and `before` undone; None where it contradicts or is no text."""
    mode = before.mode if now.mode == after.mode else now.mode
    if now.data == after.data:
        return Entry(before.kind, mode, before.data, now.own)
    if after.data == before.data:
        return now._replace(mode=mode)
    texts = [text(each.data) for each in (after, now, before)]
    left, mine, right = texts
    if left is None or mine is None or right is None or len({each.end for each in (left, mine, right)}) > 1:
        return None
    places: list[tuple[bytes, ...]] = []
    for a, n, b in zip(left.places, mine.places, right.places, strict=True):
        if n == a:
            places.append(b)
        elif n == b or a == b:
            places.append(n)
        elif a and n[: len(a)] == a and b[-len(a) :] == a:
            # One has lines before those, the other one after them.
            places.append(b + n[len(a) :])
        elif a and b[: len(a)] == a and n[-len(a) :] == a:
            places.append(n + b[len(a) :])
        else:
            return None
    is_ended = right.is_ended if mine.is_ended == left.is_ended else mine.is_ended
    return now._replace(mode=mode, data=bytes(mine._replace(places=tuple(places), is_ended=is_ended)))


def allowed(before: Entry | None, after: Entry | None, now: Entry | None) -> set[Entry | None]:
    """Return the states allowed after an undo at a path that was `before` and `after` the turn and is `now` there."""
    if plain(before) == plain(after):
        return {now}
    if plain(now) in (plain(after), plain(before)):
        if before is None or now is None or now.kind != before.kind:
            # One made again has nothing of what is not recorded; one moved back has.
            return {before, plain(before)}
        return {before.like(now), before}
    if before is None or after is None or now is None or {each.kind for each in (before, after, now)} != {"-"}:
        return {now}
    result = merged(after, now, before)
    if result is None and (other := merged_in_form(after, now, before)) is not None:
        return {now, other}
    texts = [text(each.data) for each in (before, after, now)]
    # The end of the last line is a change of that line, which may contradict one beside it.
    may_contradict = len({each.is_ended for each in texts if each is not None}) > 1
    return {now} if result is None else {result, now} if may_contradict else {result}


# --- Emacs and the agent ---


class EmacsError(AssertionError):
    """A form signalled an error."""


class Emacs:
    """An Emacs in batch mode, with tests/fuzz/turns.el."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.log = home / "emacs.log"
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("QWEN_", "GIT_"))},
            "HOME": str(home),
            "TMPDIR": str(home),
            "LC_ALL": "C.UTF-8",
            "XDG_STATE_HOME": str(home / "state"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "QWEN_COMPANION_TEST_LIMIT": str(limit_s()),
        }
        self._start()

    def _start(self) -> None:
        socket_name = str(self._home / "driver")
        with socket.socket(socket.AF_UNIX) as listening, self.log.open("ab") as log:
            listening.bind(socket_name)
            listening.listen()
            listening.settimeout(limit_s())
            load = ["-l", "scripts/checkout.el", "-L", "tests/elisp", "-l", "tests/fuzz/turns.el"]
            self._process = subprocess.Popen(
                [EMACS, "-Q", "--batch", *load, "-f", "turns-serve", socket_name],
                cwd=CHECKOUT,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            self._socket = listening.accept()[0]
        os.unlink(socket_name)
        self._socket.settimeout(2 * limit_s())
        self._rest = b""
        self.call("turns-start")

    def call(self, function: str, *arguments: str | bool | None) -> Any:
        """Call `function` of Emacs with strings, t or nil; return its value as sexpdata reads it."""
        printed = (lisp(argument) for argument in arguments)
        self._socket.sendall(f"({function} {' '.join(printed)})\0".encode("utf-8", "surrogateescape"))
        while b"\0" not in self._rest:
            part = self._socket.recv(1 << 20)
            if not part:
                raise EmacsError(f"Emacs has ended: {self.log.read_text(errors='replace')[-4000:]}")
            self._rest += part
        reply, _, self._rest = self._rest.partition(b"\0")
        # Emacs prints the bytes of names that are not UTF-8 as octal numbers.
        reply = re.sub(rb"\\([23][0-7]{2})", lambda match: bytes([int(match[1], 8)]), reply)
        kind, value = cast("tuple[Any, Any]", loads(reply.decode("utf-8", "surrogateescape")))
        if str(kind) != "ok":
            raise EmacsError(f"{function} {arguments}: {value}\n{self.log.read_text(errors='replace')[-2000:]}")
        return value

    def die(self, function: str, *arguments: str | bool | None) -> None:
        """Call `function`, which kills Emacs; start another one once all that it has started has ended."""
        started = [os.pidfd_open(child.pid) for child in psutil.Process(self._process.pid).children(recursive=True)]
        with suppress(EmacsError, OSError):
            self.call(function, *arguments)
        self._process.kill()
        self._process.wait()
        self._socket.close()
        for descriptor in started:
            # Not for its parent to wait for it, too: that may be one that does not.
            select.select([descriptor], [], [], limit_s())
            os.close(descriptor)
        self._start()

    def close(self) -> None:
        """End it and its backend."""
        self._socket.sendall(b"(progn (qwen-companion-mode -1) (kill-emacs))\0")
        self._process.wait(limit_s())
        self._socket.close()


def lisp(value: str | bool | None) -> str:
    if not isinstance(value, str):
        return "t" if value else "nil"
    # Emacs reads a string with bytes that are not UTF-8 as unibyte, which no name of a file is.
    return '(string-to-multibyte "' + value.replace("\\", "\\\\").replace('"', '\\"') + '")'


class Agent:
    """A CLI that is scripted by this process."""

    def __init__(self, root: Path, environ: Mapping[str, str], layer: str, port: int, token: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(CHECKOUT / "tests/helpers/scripted_agent.py"), layer, str(port), token],
            cwd=root,
            env={**environ, "PYTHONPATH": f"{CHECKOUT}/tests/helpers:{CHECKOUT}/python"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._calls = 0

    def ask(self, **request: object) -> str:
        """Have `request` done, and wait until it is."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def hook(self, name: str, **fields: object) -> None:
        """Call a hook."""
        self.ask(hook_event_name=name, **fields)

    def act(self, action: Action) -> None:
        """Do `action` by a tool."""
        self._calls += 1
        call: dict[str, object] = {"tool_call_id": str(self._calls)}
        if action.path is None:
            said = action.command.encode("utf-8", "replace").decode()
            call.update(tool_name="run_shell_command", tool_input={"command": said})
            work: dict[str, object] = {"command": action.command}
        else:
            call.update(tool_name="write_file", tool_input={"file_path": action.path, "content": ""})
            work = {"path": action.path, "data": base64.b64encode(action.data).decode()}
        self.hook("PreToolUse", **call)
        self.ask(**work)
        self.hook("PostToolUse", **call)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(limit_s())
        assert self._process.stdout is not None
        self._process.stdout.close()


class Action(NamedTuple):
    """A call of a tool: write `data` to the file `path`, or without one, run `command`."""

    command: str = ""
    path: str | None = None
    data: bytes = b""

    def __str__(self) -> str:
        return f"$ {self.command}" if self.path is None else f"write {self.path!r} {self.data!r}"


@dataclass
class Turn:
    """A turn as it was recorded, with the trees `before` and `after` it."""

    id: str
    before: Copy
    after: Copy
    notes: list[str]
    files: list[tuple[str, str, str | None]]

    def gone_and_new(self) -> tuple[set[bytes], set[bytes]]:
        """Return the names that are gone after the turn, and those that are new."""
        before, after = self.before.files.keys(), self.after.files.keys()
        return set(before - after), set(after - before)

    def lenient(self, names: set[bytes]) -> set[bytes]:
        """Return those of `names` that need not be recorded."""
        if any(LATE in note or "not recorded" in note for note in self.notes):
            return set(names)
        found = {name for name in names if name.endswith(b".env")}
        for copy in (self.before, self.after):
            # What repositories keep for themselves, files that git ignores, and those of other kinds.
            found |= copy.repositories.keys()
            found |= {name for name, each in copy.files.items() if name not in copy.visible or each.kind == "?"}
        gone, new = self.gone_and_new()
        rules = {name for name in names if name.endswith(b".gitignore")}
        if gone & found or any(self.before.files.get(name) != self.after.files.get(name) for name in rules):
            # They may be shown only now, or were moved from a place that is not shown.
            found |= new
        return found


# --- A tree, the agent and the user in it ---

NAMES = (
    *(b"a.txt", b"sub/b.txt", b"sub/deep/c d.txt", b"-dash.txt", b"\xf0\x9f\xa6\x8a fox.txt", b"two\nlines.txt"),
    *(b"lat\xff.txt", b"run.sh", b"secret.txt", b"group.txt", b"crlf.txt", b"open.txt"),
    *(b"hard.txt", b"owned.txt", b"sub/mail.sh"),
)
MODES = {b"sub/mail.sh": 0o6755, b"run.sh": 0o755, b"secret.txt": 0o600, b"group.txt": 0o664}
KINDS = ("commit", "commit", "none", "unborn", "worktree", "bare", "hg")
WITHOUT_COMMITS = ("none", "unborn", "bare", "hg")
"""The kinds of trees whose root is no work tree with a commit."""
REPOSITORIES = ("nest", "subm", "wt", "store", "hgrepo")


def mount(directory: Path) -> bool:
    """Put a small disk at `directory`; return whether that is allowed."""
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(directory)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def unmount(directory: Path) -> None:
    subprocess.run(["umount", "--lazy", str(directory)], capture_output=True, check=True)


class Tree:
    """A project in which random things are done.  `script` is what was done so far, for the report."""

    def __init__(self, home: Path, source: random.Random, emacs: Emacs, number: int) -> None:
        self.random = source
        self.emacs = emacs
        self.environ = emacs.environ
        self._number = 0
        self.script: list[str] = []
        self.turns: list[Turn] = []
        self.home = home / f"tree-{number}"
        self.root = self.home / "work"
        self.home.mkdir()
        self.is_small = source.random() < 0.25 and mount(self.home)
        self._empty = self.home / "empty.git"
        self.git("init", "-q", "--bare", str(self._empty), cwd=self.home)
        self.kind = source.choice(KINDS)
        self.repositories = [name for name in REPOSITORIES if source.random() < 0.5]
        self.crlf = source.random() < 0.25
        self._make()
        disk = ", on a small disk" if self.is_small else ""
        self.script.insert(0, f"tree: {self.kind}, {self.repositories}, {'CR LF' if self.crlf else 'LF'}{disk}")
        self.agent = Agent(self.root, self.environ, *emacs.call("turns-open", f"{self.root}/"))

    def close(self) -> None:
        self.agent.close()
        self.emacs.call("turns-close")
        if self.is_small:
            unmount(self.home)

    @contextmanager
    def without_room(self) -> Generator[None]:
        """Leave no room on the small disk."""
        filling = self.home / "filling"
        with filling.open("wb", buffering=0) as file:
            for size in (1 << 16, 1):
                with suppress(OSError):
                    while file.write(bytes(size)):
                        pass
        try:
            yield
        finally:
            filling.unlink()

    # --- Making it ---

    def git(self, *command: str, cwd: Path | None = None) -> None:
        """Run git as the user does."""
        options = ("-c", "user.name=U", "-c", "user.email=u@example.org", "-c", "protocol.file.allow=always")
        done = subprocess.run(
            ["git", *options, "-c", "maintenance.auto=false", "-c", "init.defaultBranch=main", *command],
            cwd=cwd or self.root,
            env=self.environ,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, (command, done.stderr)

    def hg(self, *command: str, cwd: Path | None = None) -> None:
        """Run Mercurial as the user does."""
        command = ("hg", "--config", "ui.username=U", *command)
        subprocess.run(command, cwd=cwd or self.root, env=self.environ, capture_output=True, check=True)

    def _make(self) -> None:
        if self.kind == "worktree":
            main = self.home / "main"
            main.mkdir()
            self.git("init", "-q", cwd=main)
            self.git("commit", "-q", "--allow-empty", "-m", "x", cwd=main)
            self.git("worktree", "add", "-q", "-b", "work", str(self.root), cwd=main)
        else:
            self.root.mkdir()
            if self.kind in ("commit", "unborn"):
                self.git("init", "-q")
        self._fill()
        if self.kind not in WITHOUT_COMMITS:
            self._commit()
        for name in self.repositories:
            getattr(self, f"_make_{name}")()
        if self.kind == "bare":
            self._make_worktrees()
        elif self.kind == "hg":
            self.hg("init")
            self.hg("commit", "-qAm", "x", "a.txt", "run.sh", "image.bin", "sub")
        if self.kind not in WITHOUT_COMMITS and self.random.random() < 0.6:
            self._delete_some()

    def _fill(self) -> None:
        """Make files, links, and what git ignores."""
        for name in NAMES:
            end = b"\r\n" if name == b"crlf.txt" or (self.crlf and name.endswith(b".txt")) else b"\n"
            self.put(name, bytes(self.new_text(end, name != b"open.txt")), MODES.get(name, 0o644))
        os.link(os.path.join(bytes(self.root), b"hard.txt"), os.path.join(bytes(self.root), b"sub/hard2.txt"))
        for name in (b"owned.txt", b"sub/mail.sh"):
            path = os.path.join(bytes(self.root), name)
            with suppress(OSError):
                # Not every file system keeps it.
                os.setxattr(path, ATTRIBUTE, b"mine")
            if os.getuid() == 0:
                # Nobody has these numbers.
                os.chown(path, 54321, 54322)
                os.chmod(path, MODES.get(name, 0o644))
        self.put(b"image.bin", b"\0\1\2\r\n\xff\0" * 9)
        self.put(b".gitignore", b"data/\n*.log\nbuild\n")
        if self.crlf:
            self.put(b".gitattributes", b"*.txt\ttext eol=crlf\n*.bin\t-text\n")
        self.put(b"data/precious.csv", b"precious\n", 0o640)
        self.put(b"trace.log", b"user 0 log\n")
        self.put(b"build/out/main.o", b"\0o\n")
        self.put(b".env", b"SECRET=1\n", 0o600)
        for name, target in ((b"link", b"a.txt"), (b"dlink", b"sub"), (b"dangling", b"no where")):
            os.symlink(target, os.path.join(bytes(self.root), name))

    def _delete_some(self) -> None:
        """Delete or move tracked files as the user does, uncommitted."""
        for name in self.random.sample(NAMES[:6], 2):
            path = os.path.join(bytes(self.root), name)
            if self.random.random() < 0.5:
                os.unlink(path)
            else:
                os.rename(path, path + b".moved")
            self.script.append(f"user, before all: {name!r} is deleted or moved, uncommitted")

    def _commit(self) -> None:
        """Commit on two branches; the other one has fewer rules."""
        self.git("checkout", "-q", "-b", "other")
        self.git("add", "-A")
        (self.root / ".gitignore").write_bytes(b"*.log\n")
        self.git("add", ".gitignore")
        self.git("commit", "-q", "-m", "other")
        self.git("checkout", "-q", "-b", "trunk")
        (self.root / ".gitignore").write_bytes(b"data/\n*.log\nbuild\n")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "trunk")

    def _make_nest(self) -> None:
        """Return a repository with uncommitted work, and one in it."""
        for name in ("nest", "nest/inner"):
            (self.root / name).mkdir()
            self.git("init", "-q", cwd=self.root / name)
            self.put(os.fsencode(f"{name}/f.txt"), bytes(self.new_text()))
            self.put(os.fsencode(f"{name}/.gitignore"), b"*.tmp\n")
            self.git("add", "f.txt", ".gitignore", cwd=self.root / name)
            self.git("commit", "-q", "-m", "x", cwd=self.root / name)
            self.put(os.fsencode(f"{name}/new.txt"), bytes(self.new_text()), 0o600)
            self.put(os.fsencode(f"{name}/x.tmp"), b"user 0 tmp\n")

    def _origin(self) -> str:
        """Return the name of a repository to clone."""
        origin = self.home / "origin"
        if not origin.exists():
            origin.mkdir()
            self.git("init", "-q", cwd=origin)
            (origin / "s.txt").write_bytes(bytes(self.new_text()))
            (origin / ".gitignore").write_bytes(b"*.tmp\n")
            self.git("add", "-A", cwd=origin)
            self.git("commit", "-q", "-m", "x", cwd=origin)
        return str(origin)

    def _make_subm(self) -> None:
        if self.kind in ("none", "bare", "hg"):
            self.git("clone", "-q", self._origin(), "subm")
        else:
            self.git("submodule", "--quiet", "add", self._origin(), "subm")
        self.put(b"subm/x.tmp", b"user 0 tmp\n")

    def _make_wt(self) -> None:
        if self.kind not in WITHOUT_COMMITS:
            self.git("worktree", "add", "-q", "-b", "side", "wt", "trunk")

    def _make_store(self) -> None:
        self.git("clone", "-q", "--bare", self._origin(), "store")

    def _make_hgrepo(self) -> None:
        (self.root / "hgrepo").mkdir()
        self.hg("init", cwd=self.root / "hgrepo")
        self.put(b"hgrepo/f.txt", bytes(self.new_text()))
        self.hg("commit", "-qAm", "x", cwd=self.root / "hgrepo")
        self.put(b"hgrepo/new.txt", bytes(self.new_text()))

    def _make_worktrees(self) -> None:
        """Make a bare repository with worktrees beside it."""
        self.git("clone", "-q", "--bare", self._origin(), ".bare")
        (self.root / ".git").write_text("gitdir: ./.bare\n")
        for name in ("main", "topic"):
            self.git("worktree", "add", "-q", name)
            self.put(os.fsencode(f"{name}/new.txt"), bytes(self.new_text()))
            self.repositories.append(name)

    def put(self, name: bytes, data: bytes, mode: int = 0o644) -> None:
        """Put `data` into the file `name`."""
        path = os.path.join(bytes(self.root), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.exists(path) and not os.access(path, os.W_OK):
            os.chmod(path, 0o600)
        with open(path, "wb") as file:
            file.write(data)
        os.chmod(path, mode)

    def line(self, who: str) -> bytes:
        """Return a line unlike any other."""
        self._number += 1
        return f"{who} {self._number}".encode()

    def new_text(self, end: bytes = b"\n", is_ended: bool = True, by: str = "user") -> Text:
        places = tuple((self.line("agent" if place % 2 == 0 else by),) for place in range(2 * PLACES))
        return Text(places, end, is_ended)

    # --- Looking ---

    def copy(self) -> Copy:
        """Return all there is on the disk."""
        found = copy_of(os.fsencode(self.root))
        found.visible = visible(os.fsencode(self.root), self.environ, self._empty)
        return found

    def _pick(self, copy: Copy, good: Callable[[bytes, Entry], bool], hidden: float = 0.0) -> bytes | None:
        """Return a file that is `good`, or None; one that git ignores with the probability `hidden`."""
        names = [
            name
            for name, each in copy.files.items()
            if (name in copy.visible or self.random.random() < hidden) and not _is_an_editors(name) and good(name, each)
        ]
        return self.random.choice(names) if names else None

    def _directory(self, copy: Copy) -> bytes:
        """Return a directory or the root."""
        return self.random.choice([b"", *(name for name in sorted(copy.directories) if not name.startswith(b"build"))])

    def _unused(self, copy: Copy) -> bytes:
        self._number += 1
        name = self.random.choice([b"new%d.txt", b"new %d.txt", b"-%d", b"\xf0\x9f\x8d\x80%d", b"n\n%d", b"n\xfe%d"])
        return os.path.join(self._directory(copy), name % self._number)

    # --- The agent ---

    def run_turn(self) -> None:
        """Let the agent take a turn."""
        before = self.copy()
        self.agent.hook("UserPromptSubmit", prompt=f"turn {len(self.turns)}")
        self.script.append(f"turn {len(self.turns)}")
        kinds = [
            *([self._edit] * 3),
            *([self._make_file, self._change_modes, self._link, self._gitignore, self._append, self._copy_file]),
            *([self._recode] * 2),
            *([self._delete, self._move] * 2),
            *([self._delete_tree, self._move_tree, self._exchange] * 1),
            *([self._use_git] * (self.kind not in ("none", "bare", "hg"))),
            *([self._repository] * bool(self.repositories)),
            *([self._commit_elsewhere] * 2),
        ]
        for kind in self.random.choices(kinds, k=self.random.randint(1, 4)):
            for action in kind(self.copy()):
                self.script.append(f"  {action}")
                if self.random.random() < 0.2:
                    self._type()
                self.agent.act(action)
        # So that each turn changes something.
        self._number += 1
        journal = self.root / "notes of the agent.txt"
        old = journal.read_bytes() if journal.is_file() else b""
        self.agent.act(Action(path=str(journal), data=old + b"%d\n" % self._number))
        self.agent.hook("Stop")
        identifier, notes, files = self.emacs.call("turns-next", str(self.root))
        told = [(path, kind, old or None) for path, kind, old in files]
        self.script.append(f"  told: {told} {notes}")
        self.turns.append(Turn(identifier, before, self.copy(), list(notes), told))
        self._check_told(self.turns[-1])

    def _type(self) -> None:
        """Let Emacs keep text that the user types beside a file."""
        name = self._pick(self.copy(), lambda _, each: each.kind == "-")
        if name is None:
            return
        directory, base = os.path.split(name)
        self.put(os.path.join(directory, b"#%b#" % base), self.line("user") + b"\n")
        lock = os.path.join(bytes(self.root), directory, b".#" + base)
        if not os.path.lexists(lock):
            os.symlink(b"me@host.1:2", lock)
        self.script.append(f"  user, typing in {name!r}")

    def _check_told(self, turn: Turn) -> None:
        """Compare the files that are told of `turn` with those that it has changed.  Difference."""
        told = {
            os.path.relpath(os.fsencode(path), bytes(self.root)) for file in turn.files for path in file[::2] if path
        }
        changed = {name for name, now in turn.after.files.items() if plain(turn.before.files.get(name)) != plain(now)}
        changed |= turn.before.files.keys() - turn.after.files.keys()
        changed = {name for name in changed if not _is_an_editors(name)}
        lenient = turn.lenient(changed | told)
        bad = [f"not told: {name!r}" for name in sorted(changed - told - lenient)]
        bad += [f"told, and not changed: {name!r}" for name in sorted(told - changed - lenient)]
        bad += [f"told, and a repository's own: {name!r}" for name in sorted(told & turn.after.repositories.keys())]
        for own in (own for own in turn.before.own & turn.after.own if os.path.basename(own) != b".git"):
            if any(LATE in note for note in turn.notes):
                break
            words = re.escape(f"the repository {os.fsdecode(own)}") + "( has changed too)?; undo leaves it alone"
            is_told = any(re.fullmatch(rf"(\d+ commits? in )?{words}", note) for note in turn.notes)
            if not is_told and _changed_below(own, turn, rb"store/00changelog\.i|HEAD|packed-refs|refs/.*"):
                bad.append(f"not told: commits in {own!r}")
            elif is_told and not _changed_below(own, turn, rb".*"):
                bad.append(f"told, and not changed: {own!r}")
        for own in map(os.fsdecode, turn.after.own - turn.before.own):
            note = f"the repository {own} is new; undo leaves it alone"
            if note not in turn.notes and not any(LATE in each for each in turn.notes):
                bad.append(f"not told: the new repository {own!r}")
        if bad:
            raise Difference("\n".join(bad))

    def _short(self, path: str | None) -> str:
        return "" if path is None else repr(os.path.relpath(path, self.root))

    def _sh(self, command: str, *names: bytes) -> Iterator[Action]:
        """Yield a shell command; `names` replace the {} in it."""
        yield Action(command.format(*(shlex.quote(os.fsdecode(b"./" + name)) for name in names)))

    def _write(self, name: bytes, data: bytes) -> Iterator[Action]:
        """Write a file by a tool or by a command."""
        if self.random.random() < 0.5 and _is_text(name):
            yield Action(path=os.path.join(self.root, os.fsdecode(name)), data=data)
        else:
            encoded = base64.b64encode(data).decode()
            yield from self._sh(f"mkdir -p {{}} && echo {encoded} | base64 -d > {{}}", os.path.dirname(name), name)

    def _edit(self, copy: Copy) -> Iterator[Action]:
        name = self._pick(copy, lambda _, each: text(each.data) is not None and each.kind == "-")
        found = text(copy.files[name].data) if name is not None else None
        if name is not None and found is not None:
            for _ in range(self.random.randint(1, 3)):
                lines = [self.line("agent") for _ in range(self.random.randint(0, 2))]
                found = found.put(2 * self.random.randrange(PLACES), lines)
            yield from self._write(name, bytes(found))

    def _make_file(self, copy: Copy) -> Iterator[Action]:
        end = b"\r\n" if self.crlf else b"\n"
        yield from self._write(self._unused(copy), bytes(self.new_text(end, by="agent")))

    def _copy_file(self, copy: Copy) -> Iterator[Action]:
        name = self._pick(copy, lambda _, each: each.kind == "-", 0.2)
        if name is not None:
            yield from self._sh("cp -p {} {}", name, self._unused(copy))

    def _append(self, copy: Copy) -> Iterator[Action]:
        name = self._pick(copy, lambda _, each: each.kind == "-" and text(each.data) is None, 0.5)
        if name is not None:
            yield from self._sh("printf 'x\\0y' >> {}", name)

    def _recode(self, copy: Copy) -> Iterator[Action]:
        """Change encoding, mark or line ends of a text, or give it another name."""
        name = self._pick(copy, lambda _, each: each.kind == "-" and text(each.data) is not None)
        if name is not None:
            ways = ("sed 's/$/\\r/' {0}", "printf '\\357\\273\\277' | cat - {0}", "iconv -f latin1 -t UTF-16 {0}")
            commands = [f"{way} > {{1}} && cat {{1}} > {{0}} && rm {{1}}" for way in ways]
            command = self.random.choice([*commands, "ln {0} {1}"])
            other = self._pick(copy, lambda other, each: other != name and each.kind == "-")
            if other is not None and self.random.random() < 0.2:
                yield from self._sh("ln -f {0} {1}", name, other)
            else:
                yield from self._sh(command, name, self._unused(copy))

    def _delete(self, copy: Copy) -> Iterator[Action]:
        name = self._pick(copy, lambda name, _: not name.endswith(b".gitignore"), 0.1)
        if name is not None:
            yield from self._sh("rm -f {}", name)

    def _move(self, copy: Copy) -> Iterator[Action]:
        name = self._pick(copy, lambda name, _: not name.endswith(b".gitignore"))
        if name is not None:
            yield from self._sh("mv {} {}", name, self._unused(copy))

    def _delete_tree(self, copy: Copy) -> Iterator[Action]:
        name = self._directory(copy)
        if name:
            yield from self._sh("rm -rf {}", name)

    def _move_tree(self, copy: Copy) -> Iterator[Action]:
        name = self._directory(copy)
        if name:
            self._number += 1
            yield from self._sh("mv {} {}", name, b"moved%d" % self._number)

    def _exchange(self, copy: Copy) -> Iterator[Action]:
        """Make of a file or link a directory, or of a directory a file or link, or of a file a link and back."""
        name = self._pick(copy, lambda name, _: not name.endswith((b".gitignore", b"agent.txt")))
        directory = self._directory(copy)
        ways: list[tuple[str, bytes | None]] = [
            ("rm -f {0} && mkdir {0} && echo new > {0}/in.txt", name),
            ("rm -f {0} && mkdir -p {0}/deep && echo new > {0}/deep/in.txt", name),
            ("rm -f {0} && ln -s elsewhere {0}", name),
            ("rm -f {0} && echo new > {0}", name),
            ("rm -rf {0} && echo new > {0}", directory or None),
            ("rm -rf {0} && ln -s a.txt {0}", directory or None),
        ]
        command, what = self.random.choice(ways)
        if what is not None:
            yield from self._sh(command, what)

    def _change_modes(self, copy: Copy) -> Iterator[Action]:
        name = self._pick(copy, lambda _, each: each.kind == "-")
        if name is not None:
            yield from self._sh(f"chmod {self.random.choice(['+x', '-x', '600', '664', '755', '444'])} {{}}", name)

    def _link(self, copy: Copy) -> Iterator[Action]:
        name = self._pick(copy, lambda _, each: each.kind == "l")
        if name is None or self.random.random() < 0.3:
            name = self._unused(copy)
        targets = ["a.txt", "sub", "nothing", "/nowhere", "..", shlex.quote(os.fsdecode(os.path.basename(name)))]
        yield from self._sh(f"ln -sfn -- {self.random.choice(targets)} {{}}", name)

    def _gitignore(self, copy: Copy) -> Iterator[Action]:
        rules = self.random.choice([b"*.log\n", b"", b"data/\n*.log\nbuild\n", b"build\n*.txt\n", b"data/\nsub/\n"])
        if self.random.random() < 0.2 and b".gitignore" in copy.files:
            yield from self._sh("rm -f .gitignore")
        else:
            yield from self._write(b".gitignore", rules)

    def _use_git(self, _copy: Copy) -> Iterator[Action]:
        options = "-c user.name=A -c user.email=a@example.org -c maintenance.auto=false"
        commands = ["add -A", "stash -q", "stash pop -q", "checkout -q .", "checkout -qf other", "checkout -qf trunk"]
        commands += ["commit -qam x", "reset -q --hard", "clean -qfd", "stash -qu", "rm -qr sub"]
        yield from self._sh(f"git {options} {self.random.choice(commands)}")

    def _repository(self, copy: Copy) -> Iterator[Action]:
        """Do something with a repository within the tree."""
        name = self.random.choice(self.repositories)
        self._number += 1
        commands = [
            f"rm -rf {name}",
            f"mv {name} moved{self._number}",
            f"rm -rf {name}/.git",
            f"echo broken > {name}/.git || echo broken > {name}/.git/HEAD",
            f"cd {name} && git checkout -q .",
            f"cd {name} && git add -A && git -c user.name=A -c user.email=a@b commit -qm x",
            f"cp -r {name} copy{self._number}",
            f"git init -q sub && echo new > sub/new{self._number}.txt",
        ]
        yield from self._sh(self.random.choice(commands))

    def _commit_elsewhere(self, copy: Copy) -> Iterator[Action]:
        """Commit in a bare repository or one of Mercurial, or let it change what it keeps for itself."""
        command = self._command_in_repository(copy, "agent")
        if command is not None:
            yield Action(command)

    def _command_in_repository(self, copy: Copy, who: str) -> str | None:
        """Return a command by which `who` changes the history of a bare repository or one of Mercurial."""
        owns = [own for own in sorted(copy.own) if os.path.basename(own) != b".git"]
        if not owns:
            return None
        own = self.random.choice(owns)
        line = self.line(who)
        if os.path.basename(own) == b".hg":
            add = f"echo {line.decode()} > '{line.decode()}' && hg add -q '{line.decode()}'"
            commit = f"hg --config ui.username={who} commit -qm x"
            commands = [*[f"{add} && {commit}"] * 3, f"{commit} --amend", "hg update -qC 0", "hg update -qC tip"]
            directory = os.path.dirname(own)
        else:
            git = f"git -c user.name={who} -c user.email={who}@example.org -c gc.auto=0"
            commit = f"{git} update-ref HEAD $({git} commit-tree -p HEAD -m '{line.decode()}' 'HEAD^{{tree}}')"
            branch = f"{git} branch b{self._number}"
            # Written again with the same bytes, packed-refs counts as changed.
            commands = [*[commit] * 3, branch, f"{branch} && {git} pack-refs --all", f"{branch} && {git} gc -q"]
            commands += [f"{git} worktree add -q ../wt{self._number}"] * (own == b".bare")
            directory = own
        directory = shlex.quote(os.fsdecode(b"./" + directory))
        return f"cd {directory} && {self.random.choice(commands)}"

    # --- The user ---

    def user_edits(self) -> None:
        """Let the user do something, in Emacs or outside of it."""
        copy = self.copy()
        way = self.random.choice(["saved", "saved", "unsaved", "unsaved", "outside", "outside", "more", "commits"])
        if way == "more":
            self._user_does_more(copy)
            return
        if way == "commits":
            self._user_commits(copy)
            return
        name = self._pick(
            copy,
            lambda name, each: (
                each.kind == "-"
                and text(each.data) is not None
                and (way == "outside" or (_is_text(name) and name not in copy.linked))
            ),
            0.2,
        )
        found = text(copy.files[name].data) if name is not None else None
        if name is None or found is None:
            return
        place = self.random.randrange(PLACES)
        line = self.line("user")
        self.script.append(f"user, {way}: {line!r} in {name!r} at {place}")
        if way == "outside":
            if self.effective(copy)[name] == copy.files[name]:
                data = bytes(found.put(2 * place + 1, [*found.places[2 * place + 1], line]))
                self.put(name, data, copy.files[name].mode | 0o200)
                os.chmod(os.path.join(bytes(self.root), name), copy.files[name].mode)
                self.emacs.call("turns-follow")
        elif copy.files[name].mode & 0o200:
            path = os.path.join(self.root, os.fsdecode(name))
            self.emacs.call("turns-insert", path, f"-- {place}", line.decode() + "\n", way == "saved")

    def _user_does_more(self, copy: Copy) -> None:
        name = self._pick(copy, lambda _name, each: each.kind == "-", 0.3)
        unused = self._unused(copy)
        if name is None or self.effective(copy)[name] != copy.files[name]:
            return
        path, other = (os.path.join(bytes(self.root), each) for each in (name, unused))
        ways: dict[str, Callable[[], object]] = {
            f"{name!r} is deleted": lambda: os.unlink(path),
            f"{name!r} is moved to {unused!r}": lambda: os.rename(path, other),
            f"{name!r} gets another mode": lambda: os.chmod(path, self.random.choice([0o600, 0o644, 0o755])),
            f"{unused!r} is made": lambda: self.put(unused, bytes(self.new_text())),
        }
        what = self.random.choice(list(ways))
        self.script.append(f"user, outside: {what}")
        ways[what]()
        self.emacs.call("turns-follow")

    def _user_commits(self, copy: Copy) -> None:
        command = self._command_in_repository(copy, "user")
        # A buffer's unsaved text would contradict what an update writes.
        if command is not None and ("update -" not in command or not self.unsaved()):
            self.script.append(f"user, outside: $ {command}")
            subprocess.run(["sh", "-c", command], cwd=self.root, env=self.environ, capture_output=True, check=False)
            self.emacs.call("turns-follow")

    def sound(self, copy: Copy) -> set[bytes]:
        """Return the directories `own` of `copy` whose repositories have all that their histories name."""
        return {own for own in copy.own if self._is_sound(own)}

    def _is_sound(self, own: bytes) -> bool:
        path = os.path.join(bytes(self.root), own)
        command: list[str | bytes] = ["git", b"--git-dir=" + path, "fsck", "--full", "--no-progress"]
        if os.path.basename(own) == b".hg":
            command = ["hg", "-R", os.path.dirname(path), "verify", "-q"]
        return subprocess.run(command, env=self.environ, capture_output=True, check=False).returncode == 0

    def unsaved(self) -> dict[bytes, tuple[bytes, bool]]:
        """Return the unsaved texts of buffers by name, and whether each has conflicts."""
        found = cast("list[tuple[str, str, object]]", self.emacs.call("turns-unsaved") or [])
        return {
            os.path.relpath(os.fsencode(path), bytes(self.root)): (base64.b64decode(data), bool(conflict))
            for path, data, conflict in found
        }

    def effective(self, copy: Copy) -> dict[bytes, Entry]:
        """Return the files of `copy` with the unsaved texts of buffers without conflicts."""
        files = dict(copy.files)
        for name, (data, conflict) in self.unsaved().items():
            if name in files and not conflict:
                files[name] = files[name]._replace(data=data)
        return files

    # --- Undoing ---

    def undo(self) -> None:
        """Undo a turn, a file or a hunk, perhaps bring it back, and check what became of all files."""
        turn = self.turns[-1] if self.random.random() < 0.5 else self.random.choice(self.turns)
        what = self.random.choice(["turn", "turn", "turn", "file", "hunk"])
        keys = ["k", "u"] if self.random.random() < 0.4 else ["k"]
        if what == "turn":
            for key in keys:
                Undo(self, turn, key, is_full=self.is_small and self.random.random() < 0.6).press()
        elif what == "file":
            path, _, old = self.random.choice(turn.files)
            for key in keys:
                Undo(self, turn, key, path, old).press()
        else:
            hunks = list(_hunks(turn, self.root))
            if hunks:
                path, place = self.random.choice(hunks)
                for key in keys:
                    Undo(self, turn, key, path, place=place).press()

    def undo_in_a_killed_emacs(self) -> None:
        """Kill Emacs while it undoes a turn, and undo it in the next Emacs."""
        turn = self.random.choice(self.turns)
        self.emacs.call("turns-save")
        Undo(self, turn, "k", dies_at=self.random.randint(1, 40)).press()
        Undo(self, turn, "k").press()


def _changed_below(own: bytes, turn: Turn, pattern: bytes) -> bool:
    """Return whether `turn` changed files of the repository with the directory `own` whose names match `pattern`."""
    names = re.compile(re.escape(own) + b"/(?:" + pattern + b")", re.DOTALL)
    before, after = (
        {name: each for name, each in copy.repositories.items() if names.fullmatch(name)}
        for copy in (turn.before, turn.after)
    )
    return before != after


def _is_an_editors(name: bytes) -> bool:
    return re.fullmatch(rb"#.*#|\.#.*", os.path.basename(name), re.DOTALL) is not None


def _is_text(name: bytes) -> bool:
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _hunks(turn: Turn, root: Path) -> Iterator[tuple[str, int]]:
    """Yield the files and places that `turn` changed."""
    for path, kind, _ in turn.files:
        name = os.path.relpath(os.fsencode(path), bytes(root))
        sides = [text(copy.files[name].data) if name in copy.files else None for copy in (turn.before, turn.after)]
        before, after = sides
        if before and after and form_of(bytes(before)) != form_of(bytes(after)):
            continue
        if kind == "modified" and before is not None and after is not None:
            if (before.end, before.is_ended) == (after.end, after.is_ended):
                yield from ((path, place) for place in range(2 * PLACES) if before.places[place] != after.places[place])


class Difference(AssertionError):
    """Something is not as it must be."""


@dataclass
class Undo:
    """One press of a key: `key` "k" undoes, "u" brings back; of all files, or those of `path` and `old`, or a place.

    `is_full`: there is no room on the disk.  `dies_at`: Emacs is killed before so many changes of files.
    """

    tree: Tree
    turn: Turn
    key: str
    path: str | None = None
    old: str | None = None
    place: int | None = None
    is_full: bool = False
    dies_at: int | None = None

    def press(self) -> None:
        """Press the key, and compare all paths.  Difference."""
        tree = self.tree
        self.before, self.after = (self.turn.before, self.turn.after)[:: 1 if self.key == "k" else -1]
        # The command waits for the others.
        tree.emacs.call("turns-follow", *self._paths())
        self.unsaved = tree.unsaved()
        sound = tree.sound(copy_of(bytes(tree.root)))
        self.now = tree.copy()
        self.files = tree.effective(self.now)
        tree.script.append(f"{self.key} on turn {tree.turns.index(self.turn)} {self.path or ''} {self.place or ''}")
        if self.dies_at is not None:
            tree.script.append(f"  Emacs is killed at {self.dies_at}")
            tree.emacs.die("turns-press-and-die", str(self.dies_at), self.turn.id)
            tree.emacs.call("turns-open-again", f"{tree.root}/", self.turn.id)
        else:
            with tree.without_room() if self.is_full else nullcontext():
                self._press()
        self.then = tree.copy()
        self.then_unsaved = tree.unsaved()
        left = {name for name in self.then.files if self.dies_at is not None and b".qwen-companion-" in name}
        effective = {name: each for name, each in tree.effective(self.then).items() if name not in left}
        self.results = {**effective, **self._marked()}
        self._check_all(sound - tree.sound(self.then))
        for name in left:
            os.unlink(os.path.join(bytes(tree.root), name))
        for name, (_, conflict) in self.then_unsaved.items():
            if conflict:
                tree.emacs.call("turns-drop", os.path.join(tree.root, os.fsdecode(name)))
        if self.then_unsaved and tree.random.random() < 0.5:
            tree.emacs.call("turns-save")

    def _press(self) -> None:
        said = "try again"
        while "try again" in said or "check the new hunks" in said:
            said = self.tree.emacs.call("turns-press", self.key, self.turn.id, self.path, self._line())
            self.tree.script.append(f"  said: {said}{', without room' if self.is_full else ''}")

    def _line(self) -> str | None:
        """Return a line of the hunk as it is shown, if it is a hunk."""
        if self.path is None or self.place is None:
            return None
        name = self._name(self.path)
        for copy, sign in ((self.turn.after, "+"), (self.turn.before, "-")):
            found = text(copy.files[name].data)
            if found is not None and found.places[self.place]:
                other = self.turn.before if copy is self.turn.after else self.turn.after
                others = text(other.files[name].data)
                lines = [line for line in found.places[self.place] if others and line not in others.places[self.place]]
                if lines:
                    return sign + lines[0].decode("latin-1")
        raise AssertionError

    def _name(self, path: str) -> bytes:
        return os.path.relpath(os.fsencode(path), bytes(self.tree.root))

    def _marked(self) -> dict[bytes, Entry]:
        """Return the files whose text is in a buffer with conflicts, and on the disk as it was: all is there still."""
        marked = {name for name, (_, conflict) in self.then_unsaved.items() if conflict}
        found = {name: self.files[name] for name in marked & self.files.keys() if self._is_unwritten(name, name)}
        for old, new in self._renamed():
            # Renamed, with the contradiction in the buffer.
            if new in marked and self._is_unwritten(old, new):
                found[new] = self.before.files[new]
        return found

    def _is_unwritten(self, old: bytes, new: bytes) -> bool:
        """Return whether the file `old` has its bytes, perhaps by the name `new`."""
        now, then = self.now.files.get(old), self.then.files.get(new)
        return now is not None and then is not None and now.data == then.data

    def _renamed(self) -> list[tuple[bytes, bytes]]:
        """Return the names of files that are to be renamed, each with the name that it is to have."""
        pairs = [(self._name(path), self._name(old)) for path, _, old in self.turn.files if old is not None]
        return pairs if self.key == "k" else [(old, new) for new, old in pairs]

    def _paths(self) -> list[str]:
        """Return the paths of the files that are to be undone."""
        pairs = [file[::2] for file in self.turn.files] if self.path is None else [(self.path, self.old)]
        return [path for pair in pairs for path in pair if path is not None]

    def _scope(self) -> set[bytes] | None:
        """Return the names that may change, None for all of the turn."""
        return None if self.path is None else set(map(self._name, self._paths()))

    def _check_all(self, damaged: set[bytes]) -> None:
        scope = self._scope()
        names = self.before.files.keys() | self.files.keys() | self.results.keys()
        lenient = self._lenient(names)
        bad = [
            self._problem(name, good)
            for name in sorted(names)
            if self.results.get(name) not in (good := self._good(name, scope, lenient))
        ]
        bad += [
            f"{name!r} was saved"
            for name in self.unsaved
            if name in self.now.files
            and not self.unsaved[name][1]
            and self.then.files.get(name) != self.now.files[name]
            and self.then_unsaved.get(name) is None
            and self.then.files.get(name) is not None
            and self.then.files[name].data != self.unsaved[name][0]
        ]
        bad += [
            f"the directory {name!r} is gone"
            for name in self.before.directories.keys() & self.now.directories.keys() - self.then.directories.keys()
            if not any(name in (each, os.path.dirname(each)) for each in self.before.files)
        ]
        bad += [
            f"of a repository: {name!r}: {self.now.repositories.get(name)} -> {self.then.repositories.get(name)}"
            for name in self.now.repositories.keys() | self.then.repositories.keys()
            # Emacs itself refreshes the index.
            if not name.endswith(b"/index") and self.now.repositories.get(name) != self.then.repositories.get(name)
        ]
        bad += [f"damaged: {own!r}" for own in sorted(damaged)]
        lost = self._users_lines(self.files, self.unsaved) - self._users_lines(self.results, self.then_unsaved)
        # What the user wrote may have been moved or copied by the agent, and deleted in what is brought back.
        lost -= self._users_lines(self.after.files, {}) - self._users_lines(self.before.files, {})
        lost -= self._users_lines({name: self.files[name] for name in self._deleted_again()}, {})
        # Of a copy that the turn made, a later turn may have deleted the file that it was made of.
        made = {name: each for name, each in self.after.files.items() if name not in self.before.files}
        lost -= self._users_lines(made, {})
        if self.key == "u":
            # The agent wrote another text under the other name.
            gone = {name for name, _ in self._renamed() if name in self.after.files}
            lost -= self._users_lines({name: self.after.files[name] for name in gone}, {})
        bad += [f"lost: {line!r}" for line in sorted(lost)]
        bad += [f"lost, was {name!r}: {self.before.files[name]}" for name in sorted(self._lost_files(scope))]
        if bad:
            raise Difference("\n".join(bad))

    def _lost_files(self, scope: set[bytes] | None) -> set[bytes]:
        """Return the files that the turn moved and whose bytes are nowhere any more."""
        # With unsaved text in its buffer, the file has the bytes still.
        everything = (self.files.values(), [*self.results.values(), *self.then.files.values()])
        now, then = ({each.data for each in entries} for entries in everything)
        moved = {name for name, each in self.before.files.items() if self.after.files.get(name) != each}
        if scope is not None:
            # Of a file that the turn copied and then changed, undoing the copy alone leaves the text to the file.
            moved -= self.after.files.keys() - scope
        # What may go: the text of a file of which another text is asked for, perhaps that of a copy too.
        gone = {self.files[name].data for name in self._deleted_again()}
        gone |= {each.data for name, each in self.after.files.items() if name in self.before.files.keys() & moved}
        return {name for name in moved if self.before.files[name].data in now - then - gone}

    def _deleted_again(self) -> set[bytes]:
        """Return the files that are there and that the agent deleted, which is brought back."""
        deleted = {self._name(path) for path, kind, _ in self.turn.files if kind == "deleted"}
        return deleted & self.files.keys() if self.key == "u" else set()

    @staticmethod
    def _users_lines(files: Mapping[bytes, Entry], unsaved: Mapping[bytes, tuple[bytes, bool]]) -> set[bytes]:
        texts = [*(each.data for each in files.values()), *(data for data, _ in unsaved.values())]
        return {line for data in texts for line in re.findall(rb"user \d+", data)}

    def _good(self, name: bytes, scope: set[bytes] | None, lenient: set[bytes]) -> set[Entry | None]:
        """Return the states allowed at `name` now."""
        before, after = self._wanted(name), self.after.files.get(name)
        now = self.files.get(name)
        # What is written to one name of a file is in the others.
        others = [each for each in self.now.names_of(name) if each == name or not self._became_a_link(each)]
        if _is_an_editors(name) or (scope is not None and scope.isdisjoint([name, *others])):
            return {now}
        good = set[Entry | None]().union(
            *(
                allowed(self._wanted(each), self.after.files.get(each), self.files.get(each))
                for each in {name, *others}
                if each == name or scope is None or each in scope
            )
        )
        if before is None and after is None and name in {self._name(file[0]) for file in self.turn.files}:
            # A link made and removed in the turn: whether it was there before cannot be told from the file's age.
            good |= {self.results.get(name)} & set(map(plain, self.turn.before.files.values()))
        if name in lenient and before != after:
            good |= {now, before}
            good |= self._moved(name)
        return good

    def _became_a_link(self, name: bytes) -> bool:
        """Return whether the file `name` was another one before the turn: it is written without its other names."""
        return self.turn.before.inodes.get(name, self.now.inodes[name]) != self.now.inodes[name]

    def _wanted(self, name: bytes) -> Entry | None:
        """Return what the undo makes of `name` as the turn left it."""
        before, after = self.before.files.get(name), self.after.files.get(name)
        left, right = (text(None if each is None else each.data) for each in (before, after))
        if self.place is None or after is None or left is None or right is None:
            return before
        return after._replace(data=bytes(right.put(self.place, left.places[self.place])))

    def _moved(self, name: bytes) -> set[Entry | None]:
        """Return the states allowed at `name` if the turn moved a file from or to it that was changed since."""
        gone, new = self.turn.gone_and_new()[:: 1 if self.key == "k" else -1]
        if name in new:
            return {None}
        found: set[Entry | None] = set()
        if name in gone:
            for other in new:
                now = self.files.get(other)
                if now is not None:
                    found |= {merged(self.after.files[other], now, self.before.files[name])} - {None}
        return found

    def _lenient(self, names: set[bytes]) -> set[bytes]:
        """Return the names that may be left as they are although the turn changed them."""
        if self.is_full or self.dies_at is not None:
            return set(names)
        found = self.turn.lenient(names)
        # The text of a file that has gone is in its buffer.
        found |= {name for name in self.unsaved if name not in self.now.files}
        moved = set[bytes]().union(*self.turn.gone_and_new())
        if any(self.files.get(name) != self.after.files.get(name) for name in moved):
            found |= moved
        # A file where a directory has to be, or the reverse.
        there = {name for name in names if None not in self._ideal(name)}
        for name in there:
            above = os.path.dirname(name)
            while above:
                if above in there:
                    found |= {other for other in names if other == above or other.startswith(above + b"/")}
                above = os.path.dirname(above)
        return found

    def _ideal(self, name: bytes) -> set[Entry | None]:
        scope = self._scope()
        if scope is not None and name not in scope:
            return {self.files.get(name)}
        return allowed(self.before.files.get(name), self.after.files.get(name), self.files.get(name))

    def _problem(self, name: bytes, good: set[Entry | None]) -> str:
        return "\n".join(
            (
                f"{name!r}:",
                f"    before: {self.before.files.get(name)}",
                f"    after:  {self.after.files.get(name)}",
                f"    now:    {self.files.get(name)}",
                f"    wanted: {' or '.join(map(str, good))}",
                f"    got:    {self.results.get(name)}",
            )
        )


# --- Running it ---


def run(home: Path, seed: int, trees: Sequence[int], turns: int) -> list[str]:
    """Take some `turns` in each of the `trees` of `seed`, by number; return the reports of the differences."""
    emacs = Emacs(home)
    try:
        found = [run_tree(home, seed, number, turns, emacs) for number in trees]
    finally:
        emacs.close()
    return [problem for problem in found if problem is not None]


def run_tree(home: Path, seed: int, number: int, turns: int, emacs: Emacs) -> str | None:
    """Take `turns` turns in the tree `number` of `seed`; return the report of the first difference."""
    source = random.Random(f"{seed} {number}")  # noqa: S311 - not for secrets
    tree = Tree(home, source, emacs, number)
    try:
        for _ in range(turns):
            if source.random() < 0.5:
                emacs.call("turns-save")
            tree.run_turn()
            for _ in range(source.randint(0, 3)):
                tree.user_edits()
            for _ in range(source.randint(0, 2)):
                tree.undo()
                if source.random() < 0.5:
                    tree.user_edits()
        if source.random() < 0.15:
            tree.undo_in_a_killed_emacs()
    except (Difference, EmacsError) as error:
        again = f"FUZZ_SEED={seed} FUZZ_TREE={number}, turn {len(tree.turns) - 1}"
        return "\n".join((again, *tree.script, str(error), ""))
    finally:
        tree.close()
    return None
