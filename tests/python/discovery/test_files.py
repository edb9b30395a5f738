# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qwen_companion.base.processes import process_space, start_of
from qwen_companion.discovery import files as module
from qwen_companion.discovery.files import MARKER, Discovery
from support import PYTHON_DIRECTORY, TIMEOUT_S, Home

PID = os.getpid()
PARENT = os.getppid()
PORT = 4711


@pytest.fixture(autouse=True)
def pids(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the process ids that a CLI may take for its editor's; tests may change the list."""
    pids = [PID, PARENT]

    def known(_: int) -> tuple[int, ...]:
        return tuple(pids)

    monkeypatch.setattr(module, "editor_pids", known)
    return pids


@pytest.fixture
def mortal_home() -> Iterator[Home]:
    """Yield a home of the user of the test, or of `nobody` in place of the superuser, for whom no permission counts."""
    with tempfile.TemporaryDirectory() as directory:
        nobody = 65534 if os.geteuid() == 0 else os.geteuid()
        os.chown(directory, nobody, -1)
        os.seteuid(nobody)
        try:
            yield Home(Path(directory))
        finally:
            os.seteuid(os.getuid())


@pytest.fixture
def dead() -> tuple[int, str]:
    """Return a process that has ended: its number and when it started."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = start_of(child.pid)
    assert started is not None
    child.communicate(timeout=TIMEOUT_S)
    return child.pid, started


def make(home: Home, port: int = PORT, **environ: str) -> Discovery:
    return Discovery(PID, port, "token", {**home.environ, **environ})


def published(home: Home, port: int = PORT) -> Discovery:
    """Return one that has published a root."""
    discovery = make(home, port)
    discovery.publish(["/a"])
    return discovery


def lock(home: Home, port: int = PORT) -> Path:
    return home.home / f".qwen/ide/{port}.lock"


def specified(home: Home, pid: int = PID, port: int = PORT) -> Path:
    return home.temporary / f"qwen/ide/qwen-code-ide-server-{pid}-{port}.json"


def fork(home: Home, pid: int = PID, port: int = PORT) -> Path:
    return home.temporary / f"gemini/ide/qwen-code-ide-server-{pid}-{port}.json"


def gemini(home: Home, pid: int = PID, port: int = PORT) -> Path:
    return home.temporary / f"gemini/ide/gemini-ide-server-{pid}-{port}.json"


def for_candidates(home: Home, *pids: int, port: int = PORT) -> list[Path]:
    """Return the files that are written once for each of `pids`."""
    return [kind(home, pid, port) for kind in (fork, gemini) for pid in pids or (PID, PARENT)]


def everything(home: Home, port: int = PORT) -> list[Path]:
    """All files that are written when nothing is in the way."""
    return sorted([specified(home, port=port), lock(home, port), *for_candidates(home, port=port)])


def outside(home: Home, name: str) -> list[Path]:
    """All files but those below `name` in the temporary directory."""
    return [path for path in everything(home) if not path.is_relative_to(home.temporary / name)]


def content(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_files_say_what_their_readers_need(home: Home) -> None:
    done = make(home).publish(["/a", "/é b"])
    assert done.warnings == ()
    assert done.environment == {
        "QWEN_CODE_IDE_SERVER_PORT": "4711",
        "QWEN_CODE_IDE_WORKSPACE_PATH": "/a:/é b",
        "GEMINI_CLI_IDE_SERVER_PORT": "4711",
        "GEMINI_CLI_IDE_WORKSPACE_PATH": "/a:/é b",
    }
    info = {"name": "emacs", "displayName": "Emacs"}
    common = {"workspacePath": "/a:/é b", "authToken": "token", "ideInfo": info}
    mark = {MARKER: {"space": process_space(), "pid": PID, "started": start_of(PID)}}
    for path in (specified(home), *for_candidates(home)):
        assert content(path) == {"port": PORT, **common, **mark}
    assert content(lock(home)) == {"port": "4711", "ppid": PID, "ideName": "Emacs", **common, **mark}
    assert home.files() == everything(home)


@pytest.mark.parametrize(
    ("variables", "where"),
    [
        ({"TMPDIR": "one"}, "one"),
        ({"TMPDIR": "one/"}, "one"),
        ({"TMP": "one", "TEMP": "two"}, "one"),
        ({"TMPDIR": "", "TEMP": "two"}, "two"),
    ],
)
def test_the_temporary_directory_is_the_one_node_finds(
    home: Home, tmp_path: Path, variables: dict[str, str], where: str
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    environ = {"HOME": str(home.home), **{name: value and f"{tmp_path}/{value}" for name, value in variables.items()}}
    assert Discovery(PID, PORT, "token", environ).publish([]).warnings == ()
    assert list((tmp_path / where / "qwen/ide").iterdir())


def test_qwen_home_moves_the_lock_file(home: Home, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    assert make(home, QWEN_HOME=str(elsewhere)).publish([]).warnings == ()
    assert (elsewhere / "ide/4711.lock").exists()
    assert not lock(home).exists()


def test_a_qwen_home_that_is_a_link_is_followed_as_the_user_said(home: Home, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    assert make(home, QWEN_HOME=str(tmp_path / "link")).publish([]).warnings == ()
    assert (tmp_path / "real/ide/4711.lock").exists()


def test_a_missing_qwen_home_is_created(home: Home, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert make(home, QWEN_HOME=str(missing)).publish([]).warnings == ()
    assert stat.S_IMODE(missing.stat().st_mode) == 0o700


@pytest.mark.parametrize("value", ["~", "~/", "~/mine", "~/mine/"])
def test_a_tilde_in_qwen_home_is_the_home_directory(home: Home, value: str) -> None:
    assert make(home, QWEN_HOME=value).publish([]).warnings == ()
    where = home.home / value.strip("~/")
    assert (where / "ide/4711.lock").exists()


def test_a_relative_qwen_home_is_a_warning(home: Home) -> None:
    (warning,) = make(home, QWEN_HOME="mine").publish([]).warnings
    assert "QWEN_HOME" in warning
    assert home.files() == sorted([specified(home), *for_candidates(home)])


def test_publishing_again_replaces_the_files_in_one_step(home: Home) -> None:
    discovery = published(home)
    stop = threading.Event()
    seen: set[str] = set()

    def read() -> None:
        while not stop.is_set():
            seen.add(content(lock(home))["workspacePath"])

    reader = threading.Thread(target=read)
    reader.start()
    # A file that is written in place is caught by the first few.
    for _ in range(30):
        discovery.publish(["/a", "/b"])
        discovery.publish(["/a"])
    stop.set()
    reader.join(TIMEOUT_S)
    assert seen <= {"/a", "/a:/b"}
    assert home.files() == everything(home)


def test_a_root_with_the_separator_is_left_out(home: Home) -> None:
    done = make(home).publish(["/a", "/b:c", "/d"])
    assert content(lock(home))["workspacePath"] == "/a:/d"
    assert len(done.warnings) == 1
    assert "/b:c" in done.warnings[0]
    assert done.reachable


@pytest.mark.parametrize("roots", [[], ["/b:c"]])
def test_without_a_root_the_files_are_valid_and_nobody_can_connect(home: Home, roots: list[str]) -> None:
    done = make(home).publish(roots)
    assert not done.reachable
    assert {content(path)["workspacePath"] for path in home.files()} == {""}


# --- What is not ours ---


@pytest.mark.parametrize("link", ["home/.qwen", "home/.qwen/ide"])
def test_a_link_below_home_is_followed_if_it_is_the_users(home: Home, link: str) -> None:
    """As `stow` and home managers make it."""
    path, real = home.home.parent / link, home.work / "dotfiles"
    real.mkdir(mode=0o700)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.symlink_to(real)
    discovery = make(home)
    assert discovery.publish([]).warnings == ()
    assert lock(home).resolve().is_relative_to(real)
    discovery.remove()
    assert not lock(home).exists()
    real.chmod(0o777)
    (warning,) = make(home).publish([]).warnings
    assert f"{path} can be written to by other users" in warning
    real.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345, follow_symlinks=False)
        (warning,) = make(home).publish([]).warnings
        assert "a symbolic link of another user" in warning


@pytest.mark.parametrize("link", ["tmp/qwen", "tmp/qwen/ide", "tmp/gemini", "tmp/gemini/ide"])
def test_no_file_is_written_through_a_link(home: Home, link: str) -> None:
    elsewhere = home.work / "elsewhere"
    elsewhere.mkdir()
    path = home.home.parent / link
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.symlink_to(elsewhere)
    warnings = make(home).publish([]).warnings
    assert warnings
    assert all("symbolic link" in warning and str(path) in warning for warning in warnings)
    assert list(elsewhere.iterdir()) == []
    # Those that lie elsewhere are written all the same.
    top = home.home.parent / "/".join(link.split("/")[:2])
    assert home.files() == [file for file in everything(home) if not file.is_relative_to(top)]


@pytest.mark.parametrize("name", ["qwen", "qwen/ide", "gemini", "gemini/ide"])
def test_a_directory_all_can_write_to_is_not_used(home: Home, name: str) -> None:
    path = home.temporary / name
    path.mkdir(parents=True)
    path.parent.chmod(0o755)
    path.chmod(0o777)
    warnings = make(home).publish([]).warnings
    assert warnings
    assert all("other users" in warning and str(path) in warning for warning in warnings)
    assert list(path.iterdir()) == []
    assert home.files() == outside(home, name.split("/")[0])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
@pytest.mark.parametrize("name", ["qwen", "gemini"])
def test_a_directory_of_somebody_else_is_not_used(home: Home, name: str) -> None:
    path = home.temporary / name
    path.mkdir()
    os.chown(path, 12345, 12345)
    warnings = make(home).publish([]).warnings
    assert warnings
    assert all("another user" in warning and str(path) in warning for warning in warnings)
    # The user is told what to expect.
    assert all("connect" in warning.split("; ")[1] for warning in warnings)
    assert list(path.iterdir()) == []
    assert home.files() == outside(home, name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to a group")
def test_a_directory_a_strange_group_can_write_to_is_not_used(home: Home) -> None:
    path = home.home / ".qwen"
    path.mkdir()
    path.chmod(0o775)
    # The user's own group is nobody else: many systems create directories that way.
    assert make(home).publish([]).warnings == ()
    os.chown(path, 0, 12345)
    assert "other users" in make(home).publish([]).warnings[0]


def test_a_file_in_the_way_of_a_directory_is_a_warning(home: Home) -> None:
    (home.temporary / "qwen").write_text("")
    done = make(home).publish([])
    assert len(done.warnings) == 1
    assert str(home.temporary / "qwen") in done.warnings[0]
    assert lock(home).exists()


def test_a_missing_temporary_directory_is_a_warning(home: Home) -> None:
    warnings = make(home, TMPDIR="/nowhere/at/all").publish([]).warnings
    assert warnings
    assert all("/nowhere/at/all" in warning for warning in warnings)
    assert home.files() == [lock(home)]


def test_a_temporary_directory_with_a_strange_name(home: Home, tmp_path: Path) -> None:
    strange = tmp_path / "für mich, \t 雪"
    strange.mkdir()
    discovery = make(home, TMPDIR=str(strange))
    assert discovery.publish(["/a"]).warnings == ()
    assert len(list(strange.rglob("*.json"))) == 5
    discovery.remove()
    assert list(strange.rglob("*.json")) == []


@pytest.mark.parametrize("name", ["home", "tmp"])
def test_a_file_system_that_is_read_only_is_a_warning(home: Home, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    read_only = home.home.parent / name
    mkdir = os.mkdir

    # Only a mount could make it so for the superuser, who runs tests too.
    def refuse(path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        parent = Path(f"/dev/fd/{dir_fd}").resolve() if dir_fd is not None else Path(path).parent
        if parent.is_relative_to(read_only):
            raise OSError(errno.EROFS, "Read-only file system", path)
        mkdir(path, mode, dir_fd=dir_fd)

    monkeypatch.setattr(module.os, "mkdir", refuse)
    warnings = make(home).publish([]).warnings
    assert warnings
    assert all("Read-only" in warning and f"{read_only}/" in warning for warning in warnings)
    assert home.files() == [path for path in everything(home) if not path.is_relative_to(read_only)]


@pytest.mark.parametrize("mode", [0o000, 0o300, 0o500])
def test_a_directory_without_the_rights_is_a_warning(mortal_home: Home, mode: int) -> None:
    path = mortal_home.temporary / "gemini"
    path.mkdir()
    path.chmod(mode)
    warnings = make(mortal_home).publish([]).warnings
    path.chmod(0o700)
    assert warnings
    assert all(str(path) in warning for warning in warnings)
    assert mortal_home.files() == outside(mortal_home, "gemini")


def test_a_full_disk_is_a_warning_and_leaves_no_half_file_until_there_is_room_again(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    discovery = make(home)
    with monkeypatch.context() as patch:
        patch.setattr(module.os, "rename", full)
        warnings = discovery.publish([]).warnings
        assert any(str(lock(home)) in warning for warning in warnings)
        assert any(str(gemini(home)) in warning for warning in warnings)
        assert all("No space left" in warning for warning in warnings)
        assert home.files() == []
        # Said once is enough.
        assert discovery.renew() == ()
    assert any("lock file" in news and "now" in news for news in discovery.renew())
    assert home.files() == everything(home)
    assert discovery.renew() == ()


def test_a_directory_that_cannot_be_listed_is_written_to(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_directory: int) -> list[str]:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(module.os, "listdir", fail)
    assert make(home).publish([]).warnings == ()
    assert home.files() == everything(home)


@pytest.mark.parametrize("kind", [lock, specified, fork, gemini])
def test_a_link_at_the_place_of_a_file_is_left_alone(home: Home, kind: Callable[[Home], Path]) -> None:
    victim = home.work / "victim"
    victim.write_text("precious")
    path = kind(home)
    path.parent.mkdir(parents=True, mode=0o700)
    path.symlink_to(victim)
    discovery = make(home)
    (warning,) = discovery.publish([]).warnings
    assert f"{path} is a symbolic link" in warning
    discovery.remove()
    assert victim.read_text() == "precious"
    assert path.is_symlink()


def test_a_file_others_can_write_to_is_left_alone(home: Home) -> None:
    gemini(home).parent.mkdir(parents=True, mode=0o700)
    gemini(home).write_text("theirs")
    gemini(home).chmod(0o666)
    (warning,) = make(home).publish([]).warnings
    assert f"{gemini(home)} can be written to by other users" in warning
    assert gemini(home).read_text() == "theirs"


def test_the_token_is_never_where_others_could_read_it(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    open_file = os.open
    modes: list[int] = []

    def watch(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        descriptor = open_file(path, flags, mode, dir_fd=dir_fd)
        if flags & os.O_CREAT:
            assert flags & os.O_EXCL
            modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    monkeypatch.setattr(module.os, "open", watch)
    make(home).publish([])
    assert modes == [0o600] * len(everything(home))


# --- The processes above Emacs ---


def test_there_is_a_file_for_each_process_that_may_be_taken_for_the_editor(home: Home, pids: list[int]) -> None:
    pids[:] = [PID, 4, 5]
    make(home).publish(["/a"])
    assert sorted(home.temporary.glob("gemini/ide/*")) == sorted(for_candidates(home, PID, 4, 5))
    assert list(home.temporary.glob("qwen/ide/*")) == [specified(home)]


def test_other_ancestors_mean_other_names(home: Home, pids: list[int]) -> None:
    discovery = published(home)
    untouched = lock(home).stat().st_ino
    pids[:] = [PID, 5]
    assert discovery.follow_ancestors() == ()
    assert sorted(home.temporary.glob("gemini/ide/*")) == sorted(for_candidates(home, PID, 5))
    assert content(gemini(home, 5)) == content(gemini(home))
    assert lock(home).stat().st_ino == untouched
    discovery.remove()
    assert home.files() == []


def test_nothing_is_left_in_the_temporary_directory(home: Home) -> None:
    first, second = published(home), published(home, 5)
    first.remove()
    assert specified(home, port=5).exists()
    second.remove()
    # Another user of the machine can make them now.
    assert list(home.temporary.iterdir()) == []
    assert lock(home).parent.exists()


def test_what_others_have_put_there_stays(home: Home) -> None:
    discovery = published(home)
    theirs = home.temporary / "gemini/ide/theirs"
    theirs.touch()
    discovery.remove()
    assert theirs.exists()
    assert not (home.temporary / "qwen").exists()


def test_a_directory_that_goes_before_it_is_written_to_is_made_again(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, gone = module.secrets.token_hex, list[Path]()

    def remove_first(length: int) -> str:
        if not gone:
            gone.append(specified(home).parent)
            gone[0].rmdir()
        return real(length)

    monkeypatch.setattr(module.secrets, "token_hex", remove_first)
    assert make(home).publish([]).warnings == ()
    assert gone
    assert home.files() == everything(home)


def test_as_long_as_the_ancestors_stay_the_disk_is_left_alone(home: Home) -> None:
    discovery = published(home)
    gemini(home).unlink()
    assert discovery.follow_ancestors() == ()
    assert not gemini(home).exists()


# --- Which one is the newest ---


def test_a_file_keeps_its_time_as_long_as_it_is_of_the_same_emacs(home: Home) -> None:
    make(home).publish(["/a"])
    os.utime(lock(home), (1000, 1000))
    make(home).publish(["/a", "/b"])
    assert content(lock(home))["workspacePath"] == "/a:/b"
    assert lock(home).stat().st_mtime == 1000


def test_a_file_that_replaces_that_of_another_emacs_is_new(home: Home, dead: tuple[int, str]) -> None:
    leave(lock(home), *dead)
    os.utime(lock(home), (1000, 1000))
    make(home).publish(["/a"])
    assert lock(home).stat().st_mtime > 1000


# --- Removing ---


def test_remove_takes_away_what_was_written_and_nothing_else(home: Home) -> None:
    discovery = published(home)
    other = lock(home).parent / "1.lock"
    other.write_text("{}")
    discovery.remove()
    discovery.remove()
    assert home.files() == [other]
    discovery.publish([])
    discovery.renew()
    assert home.files() == [other]


def test_a_file_somebody_has_replaced_is_left_alone(home: Home) -> None:
    discovery = published(home)
    lock(home).write_text("theirs")
    discovery.remove()
    assert lock(home).read_text() == "theirs"


def test_remove_does_not_fail_when_the_directories_have_gone(home: Home) -> None:
    discovery = published(home)
    for path in home.files():
        path.unlink()
    for directory in {path.parent for path in everything(home)}:
        directory.rmdir()
    discovery.remove()


def test_renew_brings_back_what_a_cleaner_took(home: Home) -> None:
    discovery = published(home)
    specified(home).unlink()
    before = lock(home).stat().st_mtime_ns
    assert discovery.renew() == ()
    assert content(specified(home))["workspacePath"] == "/a"
    # Its time decides which of several a CLI takes: not to be touched without need.
    assert lock(home).stat().st_mtime_ns == before


def test_renew_tells_once_what_it_cannot_bring_back(home: Home) -> None:
    discovery = published(home)
    specified(home).unlink()
    specified(home).parent.rmdir()
    specified(home).parent.symlink_to(home.work)
    (warning,) = discovery.renew()
    assert "symbolic link" in warning
    assert discovery.renew() == ()
    assert home.files() == outside(home, "qwen")


def test_the_names_of_the_files_are_known(home: Home, pids: list[int]) -> None:
    discovery = make(home)
    assert discovery.paths() == ()
    discovery.publish([])
    assert discovery.paths() == tuple(map(str, home.files()))
    pids[1:] = [4000000]
    discovery.follow_ancestors()
    assert discovery.paths() == tuple(map(str, home.files()))
    discovery.remove()
    assert discovery.paths() == ()


# --- Stale files ---


def leave(path: Path, pid: int, started: str, space: str | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    mark = {"space": space or process_space(), "pid": pid, "started": started}
    path.write_text(json.dumps({"port": 1, MARKER: mark}))
    return path


def test_our_files_of_a_dead_emacs_are_cleared(home: Home, dead: tuple[int, str]) -> None:
    leave(specified(home, dead[0], 1), *dead)
    leave(lock(home, 1), *dead)
    # Its name holds the number of a process that lives: its parent's.
    leave(gemini(home, PARENT, 1), *dead)
    make(home).publish([])
    assert home.files() == everything(home)


def test_our_file_of_a_process_number_used_again_is_cleared(home: Home) -> None:
    leave(lock(home, 1), PARENT, "an earlier boot:1")
    make(home).publish([])
    assert not lock(home, 1).exists()


def test_our_file_of_this_emacs_on_another_port_is_cleared(home: Home) -> None:
    make(home, 1).publish([])
    make(home, 2).publish([])
    assert home.files() == everything(home, 2)


def test_a_file_that_a_killed_backend_was_writing_is_cleared(home: Home, dead: tuple[int, str]) -> None:
    ours = PID, start_of(PID) or ""
    for number, (path, owner) in enumerate([(lock(home, PORT), ours), (specified(home, dead[0], 1), dead)]):
        leave(path.with_name(f".{path.name}.0ec3886{number}"), *owner)
    of_another_emacs = leave(lock(home, 1).with_name(f".{lock(home, 1).name}.0ec38862"), PARENT, start_of(PARENT) or "")
    make(home).publish([])
    assert home.files() == sorted([*everything(home), of_another_emacs])


def test_what_may_still_be_used_or_is_not_ours_is_kept(home: Home, dead: tuple[int, str]) -> None:
    started = start_of(PARENT) or ""
    kept = [
        leave(lock(home, 1), PARENT, started),
        leave(specified(home, PARENT, 1), PARENT, started),
        leave(lock(home, 1).with_name("not-a-port.lock"), *dead),
        leave(lock(home, 2), *dead, space="another-machine"),
    ]
    for number, text in enumerate(
        [
            "",
            "{}",
            "[]",
            "null",
            '{"ppid": 1}',
            f'{{"{MARKER}": 5}}',
            f'{{"{MARKER}": {{"pid": "x"}}}}',
            "\0",
            "[" * 100_000,
        ],
        10,
    ):
        path = lock(home, number)
        path.write_text(text)
        kept.append(path)
    link = lock(home, 99)
    link.symlink_to(leave(home.work / "theirs", *dead))
    make(home).publish([])
    assert set(home.files()) >= {*kept, link, home.work / "theirs"} - {home.work / "theirs"}
    assert (home.work / "theirs").exists()


def test_files_of_a_live_emacs_are_kept_when_the_clock_is_set(home: Home, set_clock: Callable[[float], None]) -> None:
    leave(lock(home, 1), PARENT, start_of(PARENT) or "")
    set_clock(5)
    make(home).publish([])
    assert lock(home, 1).exists()


def can_make_namespaces() -> bool:
    command = ["unshare", "--pid", "--time", "--fork", "true"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(not can_make_namespaces(), reason="only root can make a namespace, and not everywhere")
@pytest.mark.parametrize("option", ["--time", "--pid"])
def test_files_of_a_live_emacs_are_kept_by_one_in_a_container(home: Home, option: str) -> None:
    """There the process has started at another time since booting, or there is none of its number."""
    more = ["--boottime", "1000"] if option == "--time" else []
    kept = leave(lock(home, 1), PARENT, start_of(PARENT) or "")
    program = (
        "from qwen_companion.discovery.files import Discovery; import os\n"
        "print(Discovery(os.getpid(), 2, 'token', os.environ).publish([]).warnings)"
    )
    done = subprocess.run(
        ["unshare", option, *more, "--fork", sys.executable, "-c", program],
        cwd=PYTHON_DIRECTORY,
        env=home.environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("()\n", "")
    assert lock(home, 2).exists()
    assert kept.exists()


def test_clearing_is_done_once(home: Home, dead: tuple[int, str]) -> None:
    discovery = published(home)
    later = leave(lock(home, 1), *dead)
    discovery.publish([])
    assert later.exists()
