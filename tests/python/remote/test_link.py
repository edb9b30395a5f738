# SPDX-License-Identifier: GPL-3.0-or-later
"""The pipe with the real relay, and with stand-ins of it that break its rules."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import psutil
import pytest
from anyio import to_thread

from qwen_companion.domain import Hop
from qwen_companion.ide.peers import caller_at
from qwen_companion.remote.commands import HOLD_S, failure, is_lasting, relay_command, relay_source
from qwen_companion.remote.frames import MARK, VERSION, Decoder, Frame, Kind, read_message
from qwen_companion.remote.link import Link, LinkError, RequestError, UncertainError
from qwen_companion.remote.streams import MAX_STREAMS, Streams
from relays import NODE, SIZE, apart, cut, environ, linked, silent_line
from support import TIMEOUT_S, needs_root, until

pytestmark = pytest.mark.anyio


def without_node(home: Path) -> str:
    """Return a PATH with the stand-in, without a Node.js."""
    programs = home.parent / "bin"
    (programs / "node").unlink()
    for name in ("sh", "grep", "tail", "env", "cat", "printenv"):
        (programs / name).symlink_to(str(shutil.which(name)))
    return str(programs)


async def fetch(port: int) -> int:
    """Return how many bytes a CLI gets at `port` from the server at the other end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"hello\n")
    data = await reader.read(-1)
    writer.close()
    return len(data)


async def serve(link: Link, *tokens: str) -> int:
    return (await link.request("serve", port=0, tokens=tokens))["port"]


async def test_fifty_connections_at_once_are_carried(home: Path) -> None:
    async with linked(home) as (link, _, server):
        port = await serve(link)
        sizes: list[int] = []

        async def one() -> None:
            sizes.append(await fetch(port))

        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(one)
        assert sizes == [SIZE] * 50
        assert server.lines == [b"hello\n"] * 50
        if sys.platform == "linux":
            who = server.callers[0]
            assert isinstance(who, dict)
            parents = [process.pid for process in psutil.Process().parents()]
            assert (who["pids"], who["directory"]) == ([os.getpid(), *parents][:30], str(Path.cwd()))


CONNECT = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.send(b"x\\n")
sys.stdin.read()
"""


FORK = """
import os, socket, sys, time
connection = socket.socket()
if os.fork() > 0:
    connection.connect(("127.0.0.1", int(sys.argv[1])))
    connection.send(b"x\\n")
else:
    os.chdir("/")
    os.fork()
time.sleep(600)
"""
"""A process whose connection a child and its child have too."""


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
async def test_a_connection_that_children_have_too_is_that_of_the_first_of_them(home: Path) -> None:
    async with linked(home) as (link, _, server):
        with subprocess.Popen([sys.executable, "-c", FORK, str(await serve(link))], cwd=home) as cli:
            await server.asked.wait()
            who = server.callers[0]
            for process in (*psutil.Process(cli.pid).children(recursive=True), cli):
                process.kill()
        assert isinstance(who, dict)
        assert (who["pids"][0], who["directory"]) == (cli.pid, str(home))


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
async def test_prompts_are_read_there_from_a_file_of_ours_alone(home: Path) -> None:
    async with linked(home) as (link, greeting, server):
        port = await serve(link)
        folder = Path(greeting.folder)
        own = folder / f"emacs-{greeting.pid}-{greeting.started}.7.prompts"
        for file in (own, folder / "7.prompts", folder / "sub" / own.name, Path("/tmp") / own.name):
            server.asked = anyio.Event()
            words = [sys.executable, "-c", CONNECT, str(port), "--input-file", str(file)]
            with subprocess.Popen(words, stdin=subprocess.PIPE) as cli:
                await server.asked.wait()
                who = server.callers[-1]
                assert isinstance(who, dict)
                assert (who["pids"][0], who["prompts"]) == (cli.pid, file == own)
                if file == own:
                    await link.request("prompt", pid=cli.pid, text="one")
                    await link.request("prompt", pid=cli.pid, text="two")
                    assert own.read_text() == "one\ntwo\n"
                    assert own.stat().st_mode & 0o777 == 0o600
                else:
                    with pytest.raises(RequestError, match="reads no prompts"):
                        await link.request("prompt", pid=cli.pid, text="one")
                    assert not file.exists()
                cli.kill()
        for pid in (1, "self", "../etc", None):
            with pytest.raises(RequestError):
                await link.request("prompt", pid=pid, text="one")
    await until(lambda: not folder.exists())


async def test_what_was_given_up_on_a_silent_line_is_not_done_when_it_is_back(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qwen_companion.remote.link.BEGIN_S", 0.2)
    monkeypatch.setattr("qwen_companion.remote.link.REQUEST_S", 0.4)
    async with linked(home, apart()) as (link, _, _server):
        replace = partial(link.ask, "replace", root=str(home), expected=None, remove=False, mode=0o644, link=False)
        with silent_line():
            with pytest.raises(UncertainError, match="does not answer"):
                await replace(b"late\n", file="late.txt")
            with pytest.raises(UncertainError):
                await link.request("lay", kind="md", port=0, text="late")
        # Each of these is answered after those.
        await replace(b"now\n", file="now.txt")
        assert [path.name for path in home.iterdir() if path.name != ".qwen"] == ["now.txt"]
        assert not list((home / ".qwen/ide").glob("*.md"))


async def test_a_request_is_done_though_the_clock_here_has_stood_still(home: Path) -> None:
    """That of a machine that sleeps does; the one there goes on."""
    async with linked(home) as (link, _, _server):
        now = anyio.current_time
        await link.request("lay", kind="md", port=0, text="x")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("qwen_companion.remote.link.anyio.current_time", lambda: now() - 3600)
            assert (await link.request("lay", kind="md", port=0, text="x"))["path"]


async def test_a_line_that_takes_no_more_is_broken_after_half_a_minute(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, pytest.RaisesGroup(LinkError):
        patched.setattr("qwen_companion.remote.link.PING_S", 0.1)
        async with linked(home, apart()) as (link, _, _server):
            with silent_line(), anyio.fail_after(TIMEOUT_S):
                with pytest.raises(UncertainError):
                    await link.ask("replace", bytes(3_000_000), root=str(home), file="large", expected=None)
                await anyio.sleep_forever()


async def test_one_that_does_not_read_holds_up_no_other(home: Path) -> None:
    async with linked(home) as (link, _, _server):
        port = await serve(link)
        _, lazy = await asyncio.open_connection("127.0.0.1", port)
        lazy.write(b"hello\n")
        assert await fetch(port) == SIZE
        lazy.close()


async def test_what_is_laid_there_goes_with_the_pipe(home: Path) -> None:
    folder = home / ".qwen/ide"
    async with linked(home) as (link, _, _server):
        port = await serve(link)
        for kind in ("lock", "json", "sh"):
            path = (await link.request("lay", kind=kind, port=port, text="{}"))["path"]
            assert Path(path).stat().st_mode & 0o777 == 0o600
        assert folder.stat().st_mode & 0o777 == 0o700
        assert len(list(folder.iterdir())) == 4
    assert not (home / ".qwen").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the number of a process tells whether it is alive")
async def test_the_next_one_removes_what_a_killed_one_has_left(home: Path) -> None:
    folder = home / ".qwen/ide"
    with pytest.RaisesGroup(LinkError):
        async with linked(home) as (link, greeting, _server):
            mark = {"emacsRelay": {"pid": greeting.pid, "started": greeting.started}}
            await link.request("lay", kind="lock", port=1234, text=json.dumps(mark))
            await link.request("lay", kind="sh", port=1234, text="")
            os.kill(greeting.pid, signal.SIGKILL)
            await anyio.sleep_forever()
    (folder / "4711.lock").write_text("{}")
    assert len(list(folder.iterdir())) == 4
    async with linked(home):
        # That of another program stays.
        assert [path.suffix for path in sorted(folder.iterdir())] == [".lock", ".sock"]


async def test_the_files_of_a_relay_in_another_container_stay_while_it_runs(home: Path) -> None:
    """Its number says nothing here: a home may be in several containers."""
    folder = home / ".qwen/ide"
    folder.mkdir(parents=True, mode=0o700)
    (folder / "4711.lock").write_text(json.dumps({"emacsRelay": {"pid": 2**22, "started": "1-other"}}))
    (folder / f"emacs-{2**22}-1-other.sh").touch()
    name = folder / f"emacs-{2**22}-1-other.x.{VERSION}.sock"
    server = await asyncio.start_unix_server(lambda _reader, writer: writer.close(), name)
    async with server, linked(home):
        assert len(list(folder.iterdir())) == 4
    server.close()
    # Python 3.13 removes it with the server.
    if not name.exists():
        with socket.socket(socket.AF_UNIX) as unused:
            unused.bind(str(name))
    async with linked(home):
        assert [path.suffix for path in folder.iterdir()] == [".sock"]


async def leave(home: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Leave a relay behind that does not answer for a while; return its process."""
    left = 0
    with monkeypatch.context() as patched, pytest.RaisesGroup(LinkError):
        patched.setattr("qwen_companion.remote.link.PING_S", 0.05)
        async with linked(home, apart(), linger=60) as (link, greeting, _server):
            await serve(link)
            left = greeting.pid
            os.kill(left, signal.SIGSTOP)
            await anyio.sleep_forever()
    os.kill(left, signal.SIGCONT)
    return left


async def test_a_relay_that_does_not_answer_is_not_told_to_end(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = await leave(home, monkeypatch)
    async with linked(home, apart(), linger=60) as (link, greeting, _server):
        assert greeting.pid == left
        await serve(link)
    assert not (home / ".qwen").exists()


async def test_a_relay_that_has_not_served_ends_with_its_line(home: Path) -> None:
    """Emacs that ended while it came up cannot tell it to."""
    relays: list[psutil.Process] = []
    with pytest.RaisesGroup(LinkError):
        async with linked(home, apart(), linger=60) as (_, greeting, _server):
            relays.append(psutil.Process(greeting.pid))
            cut()
            await anyio.sleep_forever()
    await to_thread.run_sync(relays[0].wait)
    assert not (home / ".qwen").exists()


async def test_no_connection_is_carried_before_the_server_knows_what_admits_it(home: Path) -> None:
    data = MARK + hello() + OPENED + Frame(1, Kind.DATA, b"hello\n").encode()
    async with linked(home, says(home, data), admit=False) as (_, _, server):
        while not any(server.streams.who(port) is not None for port in range(1024, 65536)):
            await anyio.sleep(0.01)
        for _ in range(10):
            await anyio.wait_all_tasks_blocked()
        assert server.lines == []
        server.streams.admit()
        await server.asked.wait()
        assert server.lines == [b"hello\n"]


@asynccontextmanager
async def asking(home: Path, question: bytes, answer_bytes: int, hold: float = HOLD_S) -> AsyncGenerator[bytes]:
    """Yield what a CLI reads further whose `question` had got only so many bytes when the process here was killed."""
    async with AsyncExitStack() as stack:
        readers: list[asyncio.StreamReader] = []
        with pytest.RaisesGroup(LinkError):
            async with linked(home, apart(), 60, answer_bytes=answer_bytes, hold=hold) as (link, _, server):
                reader, writer = await asyncio.open_connection("127.0.0.1", await serve(link))
                stack.callback(writer.close)
                readers.append(reader)
                writer.write(question)
                await server.asked.wait()
                await reader.readexactly(answer_bytes)
                cut()
                await anyio.sleep_forever()
        if hold < HOLD_S:
            yield await readers[0].read(-1)
        async with linked(home, apart(), 60) as (_, _, server):
            if hold == HOLD_S:
                yield await readers[0].read(-1)
            assert server.lines == []


@pytest.mark.parametrize("hold", [HOLD_S, 0.1], ids=["until-the-next-pipe", "too-long"])
@pytest.mark.parametrize(
    ("question", "answer_bytes", "rest"),
    [
        (b"GET /mcp\n", 100, b""),
        # The CLI asks again.
        (b"GET /mcp\n", 0, b"\r\n\r\nretry: 1500\n\n"),
    ],
)
async def test_a_stream_of_events_ends_well_without_its_server(
    home: Path, question: bytes, answer_bytes: int, rest: bytes, hold: float
) -> None:
    async with asking(home, question, answer_bytes, hold) as read:
        assert read.endswith(rest)
        assert bool(read) is bool(rest)


async def test_what_a_killed_server_was_asked_is_not_asked_of_the_next_one(home: Path) -> None:
    """It may have done it; here too, a request fails whose server is killed."""
    async with asking(home, b"POST /mcp\n", 0) as read:
        assert read == b""


async def test_one_that_passes_bytes_on_ends_with_the_relay_behind_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = await leave(home, monkeypatch)
    with pytest.RaisesGroup(LinkError):
        async with linked(home, apart(), linger=60) as (link, _, _server):
            # Killed with bytes unread, it resets the connection.
            os.kill(left, signal.SIGSTOP)
            with anyio.move_on_after(0.5):
                await serve(link)
            os.kill(left, signal.SIGKILL)
            await anyio.sleep_forever()
    assert [path.name.split("-")[1] for path in (home / ".qwen/ide").iterdir()] == [str(left)]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the number of a process tells whether it is alive")
async def test_a_relay_that_takes_no_connection_is_replaced(home: Path) -> None:
    folder = home / ".qwen/ide"
    async with linked(home) as (_, greeting, _):
        namespace = greeting.started.partition("-")[2]
    folder.mkdir(parents=True, mode=0o700)
    started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    (folder / f"emacs-{os.getpid()}-{started}-{namespace}.id.{VERSION}.sock").touch()
    async with linked(home) as (link, _, _server):
        await serve(link)
    assert len(list(folder.iterdir())) == 1


async def test_two_emacsen_leave_the_files_of_each_other(home: Path) -> None:
    folder = home / ".qwen/ide"
    async with linked(home) as (link, _, _server):
        port = await serve(link)
        await link.request("lay", kind="lock", port=port, text="{}")
        async with linked(home, identifier="other") as (second, greeting, _other):
            assert await serve(second) != port
            await second.request("lay", kind="sh", port=1, text="")
            assert str(greeting.pid) in (await second.request("lay", kind="sh", port=1, text=""))["path"]
            assert len(list(folder.iterdir())) == 4
        assert len(list(folder.iterdir())) == 2
    assert not folder.exists()


@pytest.mark.parametrize(("options", "reason"), [("size=4k", "No space left"), ("ro", "Read-only file system")])
async def test_a_home_that_cannot_be_written_to_is_told(home: Path, options: str, reason: str) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", home], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted: {mounted.stderr.strip()}")
    try:
        if options != "ro":
            (home / "filler").write_bytes(b"x" * 4096)
        async with linked(home) as (link, _, _server):
            with pytest.raises(RequestError, match=reason):
                await link.request("lay", kind="lock", port=await serve(link), text="{}")
    finally:
        subprocess.run(["umount", "--lazy", home], check=True)


@needs_root
@pytest.mark.parametrize("address", ["127.0.0.1", "::ffff:127.0.0.1"])
async def test_another_user_there_is_not_let_in(home: Path, address: str) -> None:
    async with linked(home) as (link, _, server):
        connect = f"exec 3<>/dev/tcp/{address}/{await serve(link)}; echo hello >&3; cat <&3"
        ended = await anyio.to_thread.run_sync(
            partial(subprocess.run, ["bash", "-c", connect], user=65534, capture_output=True, check=False)
        )
        assert (ended.stdout, server.lines) == (b"", [])


@needs_root
async def test_another_user_there_who_is_gone_at_once_is_not_let_in(home: Path) -> None:
    """To the system, a connection without a process is of root."""
    async with linked(home) as (link, greeting, server):
        port = await serve(link)
        connect = f"exec 3<>/dev/tcp/127.0.0.1/{port}; echo theirs >&3"
        os.kill(greeting.pid, signal.SIGSTOP)
        await to_thread.run_sync(partial(subprocess.run, ["bash", "-c", connect], user=65534, check=True))
        closed = f" 0100007F:{port:04X} 05 "
        await until(lambda: closed in Path("/proc/net/tcp").read_text())
        os.kill(greeting.pid, signal.SIGCONT)
        assert await fetch(port) == SIZE
        assert server.lines == [b"hello\n"]


async def test_connections_without_a_token_keep_no_cli_out(home: Path) -> None:
    async with linked(home, answer_bytes=1) as (link, _, server):
        port = await serve(link, "s3cret")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST s3cret\n")
        await reader.readexactly(1)
        strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_STREAMS)]
        with anyio.fail_after(TIMEOUT_S):
            assert await strangers[0][0].read() == b""
        other, late = await asyncio.open_connection("127.0.0.1", port)
        late.write(b"POST s3cret\n")
        with anyio.fail_after(TIMEOUT_S):
            assert await other.readexactly(1) == b"x"
        assert not reader.at_eof()
        assert [line for line in server.lines if line] == [b"POST s3cret\n"] * 2
        for each in (writer, late, *(writer for _, writer in strangers)):
            each.close()


async def test_connections_without_a_token_are_not_held_while_the_line_is_broken(home: Path) -> None:
    async with AsyncExitStack() as stack:
        ports: list[int] = []
        known: list[asyncio.StreamReader] = []
        with pytest.RaisesGroup(LinkError):
            async with linked(home, apart(), linger=60, hold=0.1, answer_bytes=0) as (link, _, server):
                ports.append(await serve(link, "s3cret"))
                reader, writer = await asyncio.open_connection("127.0.0.1", *ports)
                stack.callback(writer.close)
                known.append(reader)
                writer.write(b"POST s3cret\n")
                await server.asked.wait()
                cut()
                await anyio.sleep_forever()
        for _ in range(2):
            stranger, writer = await asyncio.open_connection("127.0.0.1", *ports)
            stack.callback(writer.close)
            writer.write(b"POST theirs\n")
            with anyio.fail_after(TIMEOUT_S):
                assert await stranger.read() == b""
        assert not known[0].at_eof()
        async with linked(home, apart(), linger=60):
            pass


@pytest.mark.parametrize(
    ("shell", "start", "line"),
    [
        ("bash", ".bash_profile", "export PATH=%s:$PATH; echo Welcome"),
        ("zsh", ".zprofile", "export PATH=%s:$PATH; echo Welcome"),
        ("fish", ".config/fish/config.fish", "set -x PATH %s $PATH; echo Welcome"),
        ("tcsh", ".tcshrc", "setenv PATH %s:$PATH; echo Welcome"),
        ("csh", ".cshrc", "setenv PATH %s:$PATH; echo Welcome"),
    ],
)
@pytest.mark.parametrize("has_old", [False, True])
async def test_a_login_shell_that_prints_finds_the_node(
    home: Path, shell: str, start: str, line: str, has_old: bool
) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    variables = {"PATH": without_node(home), "SHELL": program}
    if has_old:
        old = Path(variables["PATH"]) / "node"
        old.write_text("#!/bin/sh\necho v18.20.8\n")
        old.chmod(0o700)
    (home / "node").symlink_to(NODE)
    (home / start).parent.mkdir(parents=True, exist_ok=True)
    (home / start).write_text(line % home + "\n")
    async with linked(home, variables=variables) as (_, greeting, _server):
        assert greeting.home == str(home)


async def test_names_do_not_depend_on_the_locale(home: Path) -> None:
    file = home / "naïve file.txt"
    file.write_text("x")
    command = ["env", "LC_ALL=C", *relay_command([Hop("docker", "box")], None)]
    async with linked(home, command) as (link, _, _server):
        (found,) = (await link.request("look", paths=[str(file)]))["files"]
        assert (found["spellings"], found["kind"]) == ([str(file)], "file")


async def test_a_directory_that_others_can_write_to_is_refused(home: Path) -> None:
    (home / ".qwen/ide").mkdir(parents=True)
    (home / ".qwen/ide").chmod(0o777)
    async with linked(home) as (link, _, _server):
        with pytest.raises(RequestError, match="not a directory of this user alone"):
            await link.request("lay", kind="lock", port=1234, text="{}")


async def test_changes_and_bytes_of_files_are_told(home: Path) -> None:
    file = home / "a file.txt"
    told: list[str] = []
    seen = anyio.Event()

    def changed(paths: Sequence[str]) -> None:
        told.extend(paths)
        seen.set()

    async with linked(home, changed=changed) as (link, _, _server):
        await link.request("watch", paths=[str(file)])
        # As editors and CLIs write.
        (home / "other.txt").write_text("x")
        (home / "new").write_bytes(b"\xff text\n")
        (home / "new").rename(file)
        await seen.wait()
        assert told == [str(file)]
        assert await link.read(str(file), 100) == (b"\xff text\n", file.stat().st_mtime_ns // 1_000_000)
        # What a link leads to is written by its own name.
        (home / "below").mkdir()
        (home / "below/target").write_text("old")
        (home / "link").symlink_to("below/target")
        await link.request("watch", paths=[str(home / "link")])
        told.clear()
        seen = anyio.Event()
        (home / "below/target").write_text("new")
        await seen.wait()
        assert told == [str(home / "link")]
        # The directory is made anew, as by a change of the branch.
        await link.request("watch", paths=[str(home / "below/target")])
        for text in ("of another branch", "back"):
            told.clear()
            shutil.rmtree(home / "below")
            (home / "below").mkdir()
            (home / "below/target").write_text(text)
            with anyio.fail_after(TIMEOUT_S):
                while not told:
                    seen = anyio.Event()
                    await seen.wait()
            await link.request("watch", paths=[str(home / "below/target")])
        assert set(told) == {str(home / "below/target")}
        with pytest.raises(RequestError, match="more than 3 bytes"):
            await link.read(str(file), 3)
        with pytest.raises(RequestError, match="ENOENT"):
            await link.read(str(home / "none"), 100)
        with pytest.raises(RequestError, match="not a regular file"):
            await link.read(str(home), 100)


# --- Stand-ins


def hello(**changes: object) -> bytes:
    values = {"version": VERSION, "pid": 1, "started": "1", "home": "/h", "folder": "/f", "node": "/n", "layer": "/l"}
    return Frame(0, Kind.HELLO, json.dumps({**values, "curl": "", "now": 0, **changes}).encode()).encode()


def says(home: Path, data: bytes) -> list[str]:
    """Return the command of a stand-in that prints `data`, and then takes all that it is sent."""
    (home / "said").write_bytes(data)
    return ["sh", "-c", f"cat {shlex.quote(str(home / 'said'))}; exec cat >/dev/null"]


OPENED = Frame(1, Kind.OPEN, b"{}").encode()

HOSTILE = {
    "garbage": (b"\n\r garbage" * 10_000, "no relay"),
    "a frame of 4 GB": (MARK + struct.pack(">IBI", 1, Kind.REPLY, 0xFFFFFFFF), "4294967295 bytes"),
    "an unknown kind": (MARK + struct.pack(">IBI", 1, 99, 0), "unknown kind 99"),
    "another version": (MARK + hello(version=VERSION + 1), "another version"),
    "half a greeting": (MARK + hello(home=5), "greeting"),
    "no JSON": (MARK + hello() + Frame(0, Kind.EVENT, b"[" * 5000).encode(), "no JSON"),
    "too much of a stream": (
        MARK + hello() + OPENED + Frame(1, Kind.DATA, b"x" * 65536).encode() * 400,
        "more bytes",
    ),
    "empty pieces": (
        MARK + hello() + Frame(1, Kind.OPEN, b"{}").encode() + Frame(1, Kind.DATA).encode(),
        "empty piece",
    ),
    "two ends": (MARK + hello() + Frame(1, Kind.OPEN, b"{}").encode() + Frame(1, Kind.END).encode() * 2, "its end"),
    "endless connections": (
        MARK + hello() + b"".join(Frame(number, Kind.OPEN, b"{}").encode() for number in range(10_000)),
        "more connections",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_relay_that_breaks_the_rules_is_left(home: Path, name: str) -> None:
    data, reason = HOSTILE[name]

    async def keep(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            writer.close()

    async with await asyncio.start_server(keep, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        with pytest.RaisesGroup(pytest.RaisesExc(LinkError, match=reason)):
            streams = Streams(port)
            streams.admit()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(streams.run)
                try:
                    link = Link(says(home, data), environ(home), b"", streams, lambda _paths: None)
                    await link.run(lambda _: None)
                finally:
                    tasks.cancel_scope.cancel()


async def test_a_relay_answers_garbage_and_leaves_a_pipe_with_a_frame_of_4_gb(home: Path) -> None:
    command = relay_command([Hop("docker", "box")], None)
    decoder = Decoder()
    async with await anyio.open_process(command, env=environ(home)) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        garbage = b"".join(Frame(number, Kind.REQUEST, b"\xff garbage" * number).encode() for number in range(3))
        await process.stdin.send(relay_source("id", 0) + garbage + struct.pack(">IBI", 3, Kind.REQUEST, 0xFFFFFFFF))
        # One that hears nothing leaves its pipe after 45 s.
        with anyio.fail_after(30):
            frames = [frame async for data in process.stdout for frame in decoder.feed(data)]
        assert await process.wait() == 0
    assert [frame.kind for frame in frames] == [Kind.HELLO, *[Kind.REPLY] * 3]
    assert all("error" in read_message(frame.payload)[0] for frame in frames[1:])
    assert not (home / ".qwen").exists()


async def test_a_shell_that_prints_and_too_many_connections_do_no_harm(home: Path) -> None:
    opened = b"".join(Frame(number, Kind.OPEN, b"{}").encode() for number in range(1, 2 * MAX_STREAMS))
    command = says(home, b"Welcome!\n\x1b[0m" + MARK + hello() + opened)
    async with linked(home, command) as (_, _, server):
        while sum(server.streams.who(port) is not None for port in range(1024, 65536)) < MAX_STREAMS:
            await anyio.sleep(0.01)
        assert server.lines == []


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (None, "no Node.js"),
        # It says that it is an old one, as the bootstrap does there.
        ("#!/bin/sh\necho 'qwen-companion: node 18.20.4' >&2; exit 126\n", "18.20.4, and Qwen Code needs 20"),
        ("#!/bin/sh\necho 'bash: /etc/profile: broken' >&2; exit 1\n", "broken"),
    ],
)
async def test_a_place_without_the_right_node_is_told(home: Path, node: str | None, reason: str) -> None:
    path = without_node(home)
    program = Path(path) / "node"
    if node is not None:
        program.write_text(node)
        program.chmod(0o700)
    link = Link(
        relay_command([Hop("docker", "box")], None),
        {**environ(home), "PATH": path, "SHELL": "/bin/false"},
        relay_source("id", 0),
        Streams(1),
        lambda _paths: None,
    )
    with pytest.raises(LinkError, match=reason) as caught:
        await link.run(lambda _greeting: None)
    assert caught.value.lasting is (reason != "broken")


def test_failures_of_programs_are_told_in_plain_words() -> None:
    for output, remedy in (("sudo: a password is required", "NOPASSWD"), ("doas: Authentication required", "nopass")):
        assert remedy in failure(output)
        assert is_lasting(output)
    assert "host key" in failure("No ED25519 host key is known\nHost key verification failed.\n")
    assert "another one than before" in failure("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key veri")
    assert "password" in failure("rem@far: Permission denied (publickey).\n")
    crash = "node:internal:1\n  throw err;\nError: Cannot find module '/x.cjs'\n\nNode.js v20.20.2\n"
    assert failure(crash) == "Error: Cannot find module '/x.cjs'"


def test_what_a_relay_says_of_a_caller_may_be_anything() -> None:
    for pids in ("x" * 9, 7, ["7"], [7, -1], [0], [True], [2**31], [7.5], [[7]], list(range(1, 1000))):
        caller = caller_at("/ssh:far:", {"pids": pids, "directory": "../etc", "name": "\x1b[2J", "terminal": "1"})
        assert caller.peer.pid < 0
        assert (caller.peer.directory, caller.peer.terminal, caller.peer.ancestors, caller.name) == (None, None, (), "")
    found = {"pids": [7, 3, 1], "directory": "/d", "name": "@qwen-code/qwen-code", "version": "0.24.4"}
    known = caller_at("/ssh:far:", found)
    assert (known.name, known.peer.family, known.peer.directory) == ("Qwen Code", "qwen", "/d")
    assert known.peer.ancestors == (7, 3, 1)
    # The parent of a process may end before it.
    assert known.peer.pid == caller_at("/ssh:far:", {**found, "pids": [7, 1]}).peer.pid < 0
    assert known.peer.pid != caller_at("/ssh:other:", found).peer.pid
