# SPDX-License-Identifier: GPL-3.0-or-later
"""A root at a place is recorded by the real relay there, as one of this machine is."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio
import psutil
import pytest
from anyio import to_thread
from pydantic import BaseModel

from hostile_project import make_hostile_project
from journal_project import Project, turn_row
from journal_site import site
from qwen_companion.domain import KnownSession, Peer, PlacedFile, PlaceNames, SessionState, SharedDirectory
from qwen_companion.doors.listeners import Report
from qwen_companion.files.versions import LINK, Loaded, digest_of
from qwen_companion.ide.context import ResolvedPath
from qwen_companion.journal.activity import Work
from qwen_companion.journal.answers import Scope
from qwen_companion.journal.baselines import Baseline
from qwen_companion.journal.record import NOBODY, Cause, Record
from qwen_companion.journal.root import now_ms
from qwen_companion.journal.staging import StagingError
from qwen_companion.remote.far import FarSite
from qwen_companion.remote.place import name_at
from qwen_companion.remote.places import named_by
from qwen_companion.wire.journal_requests import answer
from qwen_companion.wire.messages import ChangeScope, ChosenChange, JournalStage
from relays import NODE, CountedLink, linked
from support import until

if TYPE_CHECKING:
    from qwen_companion.journal.journal import Journal

pytestmark = pytest.mark.anyio

PLACE = "/docker:box:"
T = TypeVar("T")


def state_of(home: Path) -> dict[str, str]:
    return {"HOME": str(home.parent), "XDG_STATE_HOME": str(home.parent / "state")}


class Recorded:
    """The project `root` there, with its record here."""

    def __init__(self, home: Path, link: CountedLink, pid: int) -> None:
        self.pid = pid
        """That of the relay."""
        self.root = home / "a projét"
        self.root.mkdir(exist_ok=True)
        self.link = link
        root = PlacedFile(PLACE, str(self.root))
        self.site = FarSite(root, str(home), lambda: link)
        self.record = Record(root.name, state_of(home), self.site)

    def name(self, path: str) -> bytes:
        return os.fsencode(f"{PLACE}{self.root}/{path}")

    async def call(self, work: Callable[[], T]) -> T:
        return await to_thread.run_sync(work)

    async def scan(self, turn: int | None) -> None:
        await self.call(lambda: self.record.scan(NOBODY if turn is None else Cause(turn, "run_shell_command")))

    async def turn(self, work: Callable[[], object]) -> dict[str, tuple[bytes | None, bytes | None]]:
        """Do `work` in a turn; return what it has changed, with the bytes before and after."""
        await self.scan(None)
        number = self.record.store.begin(turn_row()).id
        work()
        await self.scan(number)
        return await self.changed(number)

    async def changed(self, number: int) -> dict[str, tuple[bytes | None, bytes | None]]:
        def texts() -> dict[str, tuple[bytes | None, bytes | None]]:
            scope = Scope("turn", number)
            files = self.record.answers.files(scope)
            nets = self.record.answers.texts([(file.path, file.previous) for file in files], scope)
            return {
                file.path.removeprefix(f"{PLACE}{self.root}/"): (_data(net.before), _data(net.after))
                for file, net in zip(files, nets, strict=True)
                if not isinstance(net, Exception)
            }

        return await self.call(texts)


def files_of(record: Record) -> set[bytes]:
    """Return the files that the record has."""
    files = record._files  # pyright: ignore[reportPrivateUsage]
    assert isinstance(files, Baseline)
    return files.recorded()


def _data(side: Loaded | None) -> bytes | None:
    return None if side is None else side.data


@asynccontextmanager
async def recorded(home: Path, git: bool = True) -> AsyncGenerator[Recorded]:
    changed: list[Recorded] = []

    def tell(paths: Sequence[str]) -> None:
        for path in paths:
            assert path == str(changed[0].root)
            changed[0].site.stir()

    async with linked(home, changed=tell) as (link, greeting, _server):
        there = Recorded(home, link, greeting.pid)
        changed.append(there)
        if git:
            run_git(there.root, "init", "--quiet")
        try:
            yield there
        finally:
            there.record.close()


def run_git(root: Path, *words: str) -> None:
    options = ["-c", "user.name=U", "-c", "user.email=u@example.org"]
    subprocess.run(["git", *options, *words], cwd=root, check=True, env={**os.environ, "HOME": str(root.parent)})


SHIFTED = """
const fs = require("fs"), shift = HOURS * 3600000, now = Date.now;
Date.now = () => now() + shift;
for (const name of ["statSync", "lstatSync", "fstatSync"]) {
    const look = fs[name];
    fs[name] = (...words) => {
        const found = look(...words);
        for (const key of ["atimeMs", "mtimeMs", "ctimeMs", "birthtimeMs"]) if (found) found[key] += shift;
        return found;
    };
}
"""


WRITES_WHILE_READ = """
const fs = require("fs"), open = fs.openSync;
fs.openSync = (file, ...words) => {
    if (!String(file).endsWith("/raced")) return open(file, ...words);
    fs.openSync = open;
    fs.writeFileSync(file, "agent\\n");
    return open(file, ...words);
};
"""


def shift_clock(home: Path, hours: int) -> None:
    """Let the clock there, and the times of files, be ahead by `hours`."""
    load_there(home, SHIFTED.replace("HOURS", str(hours)))


def load_there(home: Path, script: str) -> None:
    """Let the Node.js there load `script` before the relay."""
    (home.parent / "first.js").write_text(script)
    node = home.parent / "bin/node"
    node.unlink()
    node.write_text(f'#!/bin/sh\nexec {NODE} -r {home.parent}/first.js "$@"\n')
    node.chmod(0o700)


@pytest.mark.parametrize(("git", "hours"), [(True, 0), (False, 0), (True, 24), (False, -24)])
async def test_what_a_turn_changes_is_recorded_with_its_bytes(home: Path, git: bool, hours: int) -> None:
    shift_clock(home, hours)
    async with recorded(home, git) as there:
        (there.root / "old.txt").write_bytes(b"one\r\n")
        (there.root / "sub").mkdir()
        (there.root / "sub/gone.bin").write_bytes(b"\0\xff")
        (there.root / ".env").write_text("KEY=1\n")
        (there.root / "kept.txt").write_text("kept\n")
        if git:
            (there.root / "built.txt").write_text("1\n")
            (there.root / ".gitignore").write_text("built.txt\n")
            run_git(there.root, "add", "kept.txt", "old.txt")
            run_git(there.root, "commit", "--quiet", "-m", "x")

        def work() -> None:
            (there.root / "old.txt").write_bytes(b"two\r\n")
            (there.root / "sub/gone.bin").unlink()
            (there.root / ".env").write_text("KEY=2\n")
            (there.root / "new").mkdir()
            (there.root / "new/file.txt").write_text("new\n")
            if git:
                (there.root / "built.txt").write_text("2\n")

        assert await there.turn(work) == {
            "old.txt": (b"one\r\n", b"two\r\n"),
            "sub/gone.bin": (b"\0\xff", None),
            "new/file.txt": (None, b"new\n"),
        }
        there.link.asked.clear()
        assert await there.turn(lambda: (there.root / "kept.txt").write_text("changed\n")) == {
            "kept.txt": (b"kept\n", b"changed\n")
        }
        # One round trip for each of the two looks.
        assert there.link.asked == ["tree", "tree"]


async def test_repositories_in_the_project_are_recorded_with_it(home: Path) -> None:
    """A submodule, a worktree that git ignores, and another repository."""
    async with recorded(home) as there:
        source = home / "source"
        source.mkdir()
        for root in (source, there.root):
            run_git(source, "init", "--quiet", str(root))
            (root / "a.txt").write_text("one\n")
            (root / ".gitignore").write_text("trees/\n*.log\n")
            run_git(root, "add", "--all")
            run_git(root, "commit", "--quiet", "-m", "begin")
        run_git(there.root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(source), "sub")
        run_git(there.root, "worktree", "add", "--quiet", "trees/one", "HEAD")
        run_git(source, "init", "--quiet", str(there.root / "other"))
        (there.root / "other/a.txt").write_text("one\n")
        names = ("a.txt", "sub/a.txt", "trees/one/a.txt", "other/a.txt")

        def change() -> None:
            for name in names:
                (there.root / name).write_text("two\n")
            for name in ("sub/new.txt", "sub/a.log", "trees/new.txt", "trees/one/new.txt"):
                (there.root / name).write_text("new\n")

        assert await there.turn(change) == {
            **dict.fromkeys(names, (b"one\n", b"two\n")),
            "sub/new.txt": (None, b"new\n"),
            "trees/one/new.txt": (None, b"new\n"),
        }
        # A file of which a model knows is followed, also one that is not there yet, but none that git ignores.
        followed = ("sub/later.txt", "trees/one/later.txt")

        def read() -> set[str]:
            for name in (*followed, "sub/a.log", "sub/later.log"):
                there.record.unseen.saw_unknown("s", there.name(name), 0)
            return {change.name for change in there.record.unseen.changes("s")}

        assert await there.call(read) == {str(there.root / name) for name in followed}


async def test_the_insides_of_repositories_there_are_no_files_of_a_turn(home: Path) -> None:
    async with recorded(home) as there:
        names = [".hg/store/data", "sub/.svn/wc.db", ".bare/HEAD", ".bare/objects/x", ".bare/refs/y"]

        def write() -> None:
            for name in names:
                (there.root / name).parent.mkdir(parents=True, exist_ok=True)
                (there.root / name).write_bytes(b"one" if "a.txt" not in found else b"two\n")
            (there.root / "a.txt").write_bytes(b"agent\n")

        found: dict[str, tuple[bytes | None, bytes | None]] = {}
        found = await there.turn(write)
        assert found == {"a.txt": (None, b"agent\n")}
        (there.root / "a.txt").unlink()
        assert await there.turn(write) == {"a.txt": (None, b"agent\n")}
        for name in names[::2]:
            with pytest.raises(OSError, match="not a file of the project"):
                await there.call(lambda name=name: there.site.write(there.name(name), None, b"x", 0o644, None))


async def test_changes_there_become_a_patch_or_are_staged(home: Path) -> None:
    async with recorded(home) as there:
        (there.root / "a").write_bytes(b"one\r\n")
        run_git(there.root, "add", "a")
        run_git(there.root, "commit", "--quiet", "-m", "x")
        await there.turn(lambda: (there.root / "a").write_bytes(b"two\r\n"))
        environ = {"PATH": os.environ["PATH"], "HOME": str(home)}

        def record_of(_root: str) -> Record:
            return there.record

        async def load() -> Journal:
            return cast("Journal", SimpleNamespace(roots=SimpleNamespace(record_of=record_of)))

        (turn,) = there.record.store.turns()
        scope = ChangeScope(there.record.root, "turn", there.record.names.identifier(turn.id), None)
        file = ChosenChange(os.fsdecode(there.name("a")))
        reply = await answer(load, environ, JournalStage(2, scope, "patch", (file,)))
        assert reply is not None
        ((patch,),) = ([texts.after] for texts in reply.texts or ())
        assert patch is not None
        (there.root / "a").write_bytes(b"one\r\n")
        (home / "patch").write_bytes(patch.data)
        run_git(there.root, "apply", str(home / "patch"))
        assert (there.root / "a").read_bytes() == b"two\r\n"

        async def staged(action: str) -> tuple[int | None, int | None, str | None]:
            found = await answer(load, environ, JournalStage(3, scope, action, (file,)))
            assert found is not None
            return found.staged, found.others, found.error

        def shown(revision: str) -> bytes:
            return subprocess.run(["git", "show", revision], cwd=there.root, check=True, capture_output=True).stdout

        (there.root / "b").write_text("mine\n")
        run_git(there.root, "add", "b")
        (there.root / "a").write_bytes(b"two\r\nmine\n")
        assert await staged("stage") == (None, 1, None)
        assert shown(":a") == b"one\r\n"
        # The second time its commit was given up.
        for _ in range(2):
            assert await staged("add") == (2, None, None)
            assert (shown(":a"), shown("HEAD:a")) == (b"two\r\n", b"one\r\n")
        run_git(there.root, "commit", "--quiet", "-m", "x")
        assert (await staged("stage"))[2] == "it is in the last commit already"
        run_git(there.root, "commit", "--quiet", "-m", "x", "a")
        assert "does not stand on what is committed there" in str((await staged("stage"))[2])
        (there.root / ".git/MERGE_HEAD").write_text("0" * 40)
        assert str((await staged("add"))[2]).startswith("a merge is in progress")
        assert (there.root / "a").read_bytes() == b"two\r\nmine\n"


async def test_the_first_look_takes_two_round_trips_without_git(home: Path) -> None:
    async with recorded(home, git=False) as there:
        for number in range(4000):
            (there.root / str(number)).write_text(f"{number:0300}\n")
        there.link.asked.clear()
        await there.scan(None)
        assert there.link.asked == ["tree", "fetch"]
        assert there.record.store.contents.get(digest_of(b"%0300d\n" % 3999)) == b"%0300d\n" % 3999


async def test_a_change_of_a_large_file_is_recorded(home: Path) -> None:
    async with recorded(home) as there:
        large = there.root / "large.bin"
        large.write_bytes(b"1" * 5_000_000)
        (there.root / "small.txt").write_text("1\n")

        def work() -> None:
            large.write_bytes(b"2" * 5_000_000)
            (there.root / "small.txt").write_text("2\n")

        changed = await there.turn(work)
        assert changed.pop("small.txt") == (b"1\n", b"2\n")
        assert changed == {"large.bin": (b"1" * 5_000_000, b"2" * 5_000_000)}


async def test_more_files_are_removed_than_fit_into_a_reply(home: Path) -> None:
    async with recorded(home) as there:
        directory = there.root.joinpath(*("d" * 250 for _ in range(14)))
        directory.mkdir(parents=True)
        names = [f"{number:04}.txt" for number in range(1300)]
        for name in names:
            (directory / name).write_text("")
        run_git(there.root, "add", ".")
        run_git(there.root, "commit", "--quiet", "-m", "x")
        changed = await there.turn(lambda: shutil.rmtree(there.root / ("d" * 250)))
        assert changed == {str((directory / name).relative_to(there.root)): (b"", None) for name in names}


async def test_the_user_can_save_there_what_a_command_of_the_agents_wrote_a_moment_ago(home: Path) -> None:
    async with recorded(home) as there:
        path, name = there.root / "a", there.name("a")
        path.write_text("old\n")
        await there.turn(lambda: path.write_text("agent\n"))
        (turn,) = there.record.store.turns()
        # Not before the clock of the disk has gone on.
        written = path.stat().st_ctime_ns
        while path.stat().st_ctime_ns == written:
            path.write_text("agent\n")
        assert not await there.call(lambda: there.record.claim(name, there.record.look(name)))
        assert await there.changed(turn.id) == {"a": (b"old\n", b"agent\n")}
        # What the look has found before Emacs told of it is the user's.
        await there.turn(lambda: path.write_text("user\n"))
        assert await there.call(lambda: there.record.claim(name, there.record.look(name)))
        assert await there.changed(turn.id + 1) == {}


@pytest.mark.parametrize("hidden", [False, True], ids=["told", "hidden"])
async def test_more_files_are_named_than_fit_into_a_frame(home: Path, hidden: bool) -> None:
    """Those of which git has no bytes are asked for by name, and those that a rule hides are named at each look."""
    async with recorded(home) as there:
        directory = there.root.joinpath(*("d" * 250 for _ in range(14)))
        directory.mkdir(parents=True)
        for number in range(1300):
            (directory / f"{number:04}.txt").write_text("")
        (there.root / ".qwenignore").write_text("*.txt\n" if hidden else "")
        await there.scan(None)
        changed = await there.turn(lambda: (there.root / "new").write_text("new\n"))
        assert changed == {"new": (None, b"new\n")}
        assert len(files_of(there.record)) == (2 if hidden else 1302)


async def test_what_was_there_before_is_nobodys_after_a_change_of_rules(home: Path) -> None:
    async with recorded(home) as there:
        (there.root / "built.txt").write_text("built\n")
        (there.root / "secret.txt").write_text("1\n")
        (there.root / ".gitignore").write_text("built.txt\n")
        (there.root / ".qwenignore").write_text("secret.txt\n")

        def work() -> None:
            (there.root / ".gitignore").write_text("")
            (there.root / ".qwenignore").write_text("")
            (there.root / "secret.txt").write_text("2\n")

        assert set(await there.turn(work)) == {".gitignore", ".qwenignore"}


async def test_a_relay_begun_anew_tells_what_has_changed_meanwhile(home: Path) -> None:
    async with recorded(home) as there:
        (there.root / "a.txt").write_text("1\n")
        (there.root / "b.txt").write_text("1\n")
        await there.scan(None)
    (there.root / "a.txt").write_text("2\n")
    (there.root / "b.txt").unlink()
    async with recorded(home) as there:
        assert await there.turn(lambda: (there.root / "c.txt").write_text("3\n")) == {"c.txt": (None, b"3\n")}
        assert there.record.store.contents.current(there.name("b.txt"), None) is None


async def test_changes_there_are_told(home: Path) -> None:
    async with recorded(home) as there:
        (there.root / "sub").mkdir()
        (there.root / "sub/a.txt").write_text("1\n")
        told = anyio.Event()
        there.site.watch(lambda _paths: told.set())
        await there.scan(None)
        assert (await there.site.cover(())).complete
        (there.root / "sub/a.txt").write_text("2\n")
        await told.wait()


@pytest.mark.parametrize("hours", [0, 24, -24])
async def test_a_file_there_is_written_only_over_the_bytes_that_are_expected(home: Path, hours: int) -> None:
    shift_clock(home, hours)
    async with recorded(home) as there:
        file, large = there.root / "new/dir/a.sh", b"x" * 5_000_000

        async def write(name: str, expected: bytes | None, data: bytes | None, mode: int, since: int | None) -> None:
            digest = None if expected is None else digest_of(expected)
            await there.call(lambda: there.site.write(there.name(name), digest, data, mode, since))

        await there.scan(None)
        await write("new/dir/a.sh", None, large, 0o755, None)
        assert (file.read_bytes(), file.stat().st_mode & 0o777) == (large, 0o755)
        for expected in (None, b"other"):
            with pytest.raises(OSError, match="just changed there"):
                await write("new/dir/a.sh", expected, b"", 0o644, None)
        await write("new/dir/a.sh", large, b"", 0o600, None)
        assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"", 0o600)
        await write("link", None, b"a/b", LINK, None)
        assert os.readlink(there.root / "link") == "a/b"
        (there.root / "out").symlink_to(home)
        for name in ("out/x", "../x", ".git/config"):
            with pytest.raises(OSError, match="project"):
                await write(name, None, b"x", 0o644, None)
        # Its directories are as old as the turn.
        await write("new/dir/a.sh", b"", b"x", 0o644, None)
        await write("new/dir/a.sh", b"x", None, 0, now_ms() + 60_000)
        await write("new/dir/a.sh", None, b"", 0o644, None)
        await write("new/dir/a.sh", b"", None, 0, now_ms() - 60_000)
        assert sorted(path.name for path in there.root.iterdir()) == [".git", "link", "out"]
        # Nothing is made where that is refused.
        with pytest.raises(OSError, match="out of the project"):
            await write("out/made/deep/x", None, b"x", 0o644, None)
        assert not (home / "made").exists()
        # What else a file has stays, by all of its names.
        (there.root / "a").write_bytes(b"1")
        os.setxattr(there.root / "a", "user.note", b"mine")
        if os.getuid() == 0:
            os.chown(there.root / "a", 54321, 54322)
        (there.root / "a").chmod(0o4755)
        for others in (1, 2):
            await write("a", b"%d" % others, b"%d" % (others + 1), 0o700, None)
            status = (there.root / "a").stat()
            assert (status.st_nlink, status.st_mode & 0o7777) == (others, 0o4700)
            assert os.getuid() or (status.st_uid, status.st_gid) == (54321, 54322)
            assert os.getxattr(there.root / "a", "user.note") == b"mine"
            if others == 1:
                os.link(there.root / "a", there.root / "b")
        assert (there.root / "b").read_bytes() == b"3"
        assert not list(there.root.glob(".qwen-companion-*"))


class Elsewhere:
    """The places of a journal: that of one root."""

    def __init__(self, site: FarSite) -> None:
        self.roots = [site.true]
        self._site = site

    def site(self, name: str) -> FarSite | None:
        return self._site if name in self.roots else None

    def named(self, report: Report) -> Report:
        return report


async def test_a_file_that_is_written_while_it_is_read_has_changed_then(home: Path) -> None:
    load_there(home, WRITES_WHILE_READ)
    times: list[float] = []
    async with recorded(home) as there:
        file = there.root / "raced"
        file.write_text("old\n")

        def skip(path: bytes) -> bool:
            times.append(there.site.times[path])
            return False

        await there.call(lambda: there.record.scan(NOBODY, skip))
        assert file.read_text() == "agent\n"
        assert times == [pytest.approx(file.stat().st_ctime * 1000, abs=0.01)]


@pytest.mark.parametrize("silence_s", [0, math.inf], ids=["connected", "gone at once"])
async def test_what_a_cli_there_without_hooks_changes_is_its(
    home: Path, silence_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qwen_companion.journal.disk_watch.QUIET_S", 0.1)
    shift_clock(home, 24)
    async with recorded(home) as there:
        for name in ("a", "b", "c"):
            (there.root / name).write_text("old\n")
        await there.scan(None)
        root = there.root
    (root / "b").write_text("by the user\n")
    sites: list[FarSite] = []
    async with linked(home, changed=lambda _paths: sites[0].stir()) as (link, _, _server):
        sites.append(FarSite(PlacedFile(PLACE, str(root)), str(home), lambda: link))
        project = cast("Project", SimpleNamespace(root=root, environ=state_of(home)))
        async with site(project, silence_s=silence_s, elsewhere=Elsewhere(sites[0])) as place:
            with subprocess.Popen(["sh"], stdin=subprocess.PIPE, cwd=root, text=True) as cli:
                assert cli.stdin is not None
                peer = Peer(-7, "", sites[0].true, "qwen", (cli.pid,), place=PLACE)
                known = KnownSession("s", "", "Qwen Code", "0.24.4", peer)
                place.front.silent.set_sessions([SessionState(known, streaming=True)])
                await until(lambda: "tree" in link.asked)
                print("echo agent > a", file=cli.stdin, flush=True)
                if silence_s == 0:
                    (turn,) = await place.until({"a": "modified"})
                    await place.until_ended(turn.id)
                    # It goes on with it: nobody has typed to it.
                    print("echo agent > c", file=cli.stdin, flush=True)
                    await place.until({"a": "modified", "c": "modified"})
                else:
                    await until(lambda: (root / "a").read_text() == "agent\n")
                place.front.silent.set_sessions([], ["s"])
                cli.kill()
            changed = ("a", "c") if silence_s == 0 else ("a",)
            (turn,) = await place.until(dict.fromkeys(changed, "modified"))
            await place.until_ended(turn.id)
            assert (turn.source, turn.client) == ("disk", "Qwen Code 0.24.4")


async def test_when_a_process_there_was_typed_to_is_told_by_the_clock_here(home: Path) -> None:
    shift_clock(home, 24)
    terminal, inner = os.openpty()
    async with recorded(home) as there:
        await there.scan(None)

        async def work_of(pid: int) -> Work:
            return await there.call(lambda: there.site.work_of(Peer(-7, "", None, None, (pid,), place=PLACE)))

        with subprocess.Popen(["cat"], stdin=inner, stdout=subprocess.PIPE) as process:
            before = await work_of(process.pid)
            os.write(terminal, b"typed\n")
            assert process.stdout is not None
            process.stdout.readline()
            after = await work_of(process.pid)
            process.kill()
        assert None not in (before.written, after.written, after.typed)
        assert cast("int", after.written) > cast("int", before.written)
        # Linux rounds it down to 8 seconds.
        assert abs(cast("int", after.typed) - now_ms()) < 60_000
        assert await work_of(process.pid) == Work(None, None)
    os.close(terminal)
    os.close(inner)


class Hostile:
    """A relay that names what it must not, and sends other bytes than it says."""

    def __init__(self, number: object) -> None:
        """Say `number` where a number belongs."""
        self._number = number

    async def ask(self, name: str, **_values: Any) -> tuple[dict[str, Any], bytes]:
        digest = digest_of(b"true\n")
        names = ("../../etc/passwd", "/etc/passwd", "a/../../x", ".git/config", "a/.git/hooks/x", "", "a\0b", "good")
        files: list[dict[str, Any]] = [
            {"name": each, "mode": 0o100644, "digest": digest, "ino": 1, "born": self._number} for each in names
        ]
        files += [{"name": "odd", "mode": self._number, "digest": digest, "ino": self._number, "born": None}, {}]
        if name == "tree":
            numbers = dict.fromkeys(("told", "time", "odd"), self._number)
            return {**numbers, "full": True, "files": files, "blobs": [[digest, 6], ["x", -5], 3]}, b"false\n"
        return {"files": files, "done": 1, "blobs": [[digest, 5]]}, b"true\n"

    async def read(self, path: str, limit: int) -> tuple[bytes, int]:
        raise AssertionError(path)


NO_NUMBERS: list[object] = ["1", [1], {}, None, -1, math.nan, math.inf, 1e300, 10**400]


@pytest.mark.parametrize("number", NO_NUMBERS)
async def test_a_hostile_relay_names_nothing_outside_and_no_bytes_that_are_not_its_own(
    tmp_path: Path, number: object
) -> None:
    root = PlacedFile(PLACE, "/home/far/work")
    state = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    record = Record(root.name, state, FarSite(root, "/home/far", lambda: cast("Any", Hostile(number))))
    for _ in range(2):
        await to_thread.run_sync(lambda: record.scan(NOBODY))
    assert files_of(record) == {os.fsencode(f"{root.name}/good")}
    assert record.store.contents.get(digest_of(b"true\n")) == b"true\n"
    record.close()


class Event(BaseModel):
    cwd: str = "/../home/rem/real"
    session_id: str = "1"
    tool_input: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("a.py", f"{PLACE}/link/a.py"),
        ("/home/rem/real/a.py", f"{PLACE}/link/a.py"),
        ("../../../../../../etc/passwd", f"{PLACE}/etc/passwd"),
        ("/ssh:other:/../../x", f"{PLACE}/x"),
        ("\0", ""),
    ],
)
def test_what_a_cli_there_names_is_named_at_its_place(path: str, named: str) -> None:
    peer = Peer(-7, "", None, None, (), place=PLACE)
    report = Report(cast("Any", Event(tool_input={"file_path": path, "content": "/x"})), peer, "", None, 0)
    found = named_by(report, partial(name_at, PlaceNames(PLACE), (ResolvedPath("/link", "/home/rem/real"),)))
    assert found is not None
    event = cast("Any", found.event)
    assert (event.cwd, event.session_id) == (f"{PLACE}/link", f"1 {PLACE}")
    assert event.tool_input == {"file_path": named, "content": "/x"}


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("a.py", "/home/me/src/a.py"),
        ("/link/b.py", "/home/me/src/b.py"),
        ("/link/../etc/passwd", f"{PLACE}/etc/passwd"),
        ("/linked/a.py", f"{PLACE}/linked/a.py"),
    ],
)
def test_what_a_cli_there_names_in_a_shared_directory_is_named_here(path: str, named: str) -> None:
    names = PlaceNames(PLACE, (SharedDirectory("/link", "/home/me/src"),))
    peer = Peer(-7, "", None, None, (), place=PLACE)
    report = Report(cast("Any", Event(tool_input={"file_path": path})), peer, "", None, 0)
    found = named_by(report, partial(name_at, names, (ResolvedPath("/link", "/home/rem/real"),)))
    assert found is not None
    assert (found.event.cwd, cast("Any", found.event).tool_input) == ("/home/me/src", {"file_path": named})


async def test_a_write_of_which_nothing_is_known_says_how_to_find_out(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qwen_companion.remote.link.REQUEST_S", 0.3)
    async with recorded(home, git=False) as there:
        name = there.name("new.txt")
        relay = psutil.Process(there.pid)
        relay.suspend()
        try:
            with pytest.raises(OSError, match="may have been done; do the same again to find out"):
                await there.call(lambda: there.site.write(name, None, b"new\n", 0o644, None))
            with pytest.raises(StagingError, match="may have been done"):
                await there.call(lambda: there.site.stage(b"", onto_staged=False))
            with pytest.raises(OSError, match="^.*it does not answer$"):
                await there.call(lambda: there.site.large("new.txt"))
        finally:
            relay.resume()


async def test_git_runs_nothing_of_a_repository_there(home: Path) -> None:
    root, markers = home / "project", home / "markers"
    make_hostile_project(root, markers)
    for marker in markers.iterdir():
        marker.unlink()
    path = f"node_modules/.bin:{home.parent}/bin:/usr/bin:/bin"
    files = [str(root / name) for name in ("a.txt", "b.txt", "sub/c.txt")]
    async with linked(home, variables={"PATH": path, "GIT_DIR": "/nowhere"}) as (link, _, _):
        checked, _ = await link.ask("check", paths=files)
        assert [file["ignored"] for file in checked["files"]] == [False, False, False]
        names, _ = await link.ask("names", root=str(root))
        assert {"a.txt", "b.txt", "sub/c.txt"} <= set(names["names"])
        await link.ask("tree", root=str(root), since=-1, skip=[], files=[], watch=False)
        patch = b"--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
        staged, _ = await link.ask("stage", patch, root=str(root), onto=True)
        assert staged["staged"] > 0
    assert sorted(path.name for path in markers.iterdir()) == []
