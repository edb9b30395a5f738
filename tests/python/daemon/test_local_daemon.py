# SPDX-License-Identifier: GPL-3.0-or-later
"""A daemon of our own, with shell scripts in the place of `qwen serve`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from qwen_companion.daemon import supervisor
from qwen_companion.daemon.errors import NotStartedError
from qwen_companion.daemon.local_daemon import LocalDaemon, start_local
from support import PYTHON_DIRECTORY, TIMEOUT_S

pytestmark = pytest.mark.anyio

LISTEN = 'echo "qwen serve listening on http://127.0.0.1:4999 (mode=http-bridge)"'
STAY = "exec sleep 1000"


def script(directory: Path, *lines: str) -> list[str]:
    """Return a program of `lines` of shell, as a command."""
    file = directory / "fake-qwen"
    file.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    file.chmod(0o700)
    return [str(file), "--extra"]


async def start(directory: Path, *lines: str) -> LocalDaemon:
    return await start_local(script(directory, *lines), str(directory), {"GIVEN": "a variable"}, timeout=TIMEOUT_S)


@pytest.fixture
def started() -> Callable[[], list[psutil.Process]]:
    """Return a function that lists the child processes of this test, without those that other tests have kept."""
    before = psutil.Process().children(recursive=True)
    return lambda: [process for process in psutil.Process().children(recursive=True) if process not in before]


async def read(file: Path) -> str:
    """Return the text written to `file`, a named pipe."""
    return await asyncio.to_thread(file.read_text)


async def test_it_gets_a_port_of_its_own_a_fresh_token_and_the_workspace(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "told")
    telling = asyncio.create_task(read(tmp_path / "told"))
    daemon = await start(tmp_path, LISTEN, 'echo "$QWEN_SERVER_TOKEN|$PWD|$GIVEN|$*" > told', STAY)
    token, directory, given, arguments = (await telling).strip().split("|")
    assert daemon.address.url == "http://127.0.0.1:4999"
    assert daemon.address.token == token
    assert len(token) == 64
    assert given == "a variable"
    assert directory == str(tmp_path.resolve())
    assert arguments.startswith("--extra serve --hostname 127.0.0.1 --port 0 --require-auth ")
    # A slow machine: by itself the daemon gives an agent 10 s to start.
    assert " --initialize-timeout-ms 60000 " in arguments
    assert arguments.endswith(f"--workspace {tmp_path}")
    await daemon.stop()
    other = await start(tmp_path, LISTEN, STAY)
    assert other.address.token != token
    await other.stop()


async def test_the_token_is_in_the_environment_of_the_daemon_and_nowhere_else(
    tmp_path: Path, started: Callable[[], list[psutil.Process]]
) -> None:
    daemon = await start(tmp_path, LISTEN, STAY)
    token = daemon.address.token
    assert token
    keeping, serving = started()
    assert not any(token in argument for process in (keeping, serving) for argument in process.cmdline())
    assert token not in "".join(keeping.environ().values())
    assert token not in "".join(os.environ.values())
    assert serving.environ()["QWEN_SERVER_TOKEN"] == token
    assert token not in repr(vars(daemon))
    await daemon.stop()
    assert not serving.is_running()
    assert not keeping.is_running()


async def test_what_it_prints_is_kept_in_part_and_without_the_token(tmp_path: Path) -> None:
    daemon = await start(tmp_path, LISTEN, "echo one", "echo two; echo; echo $QWEN_SERVER_TOKEN three >&2")
    assert await daemon.ended() == "one / two / TOKEN three"


async def test_what_was_printed_is_no_reason_for_being_killed(tmp_path: Path) -> None:
    daemon = await start(tmp_path, LISTEN, "echo all is well", "kill -KILL $$")
    assert await daemon.ended() == ""


async def test_one_that_prints_without_end_is_read_on(tmp_path: Path) -> None:
    # More than a pipe holds, and a line longer than any buffer.
    daemon = await start(tmp_path, LISTEN, "head -c 300000 /dev/zero | tr '\\0' x", "echo", "echo done")
    assert (await daemon.ended()).endswith("x / done")


async def test_one_that_ends_at_once_is_explained(tmp_path: Path) -> None:
    with pytest.raises(NotStartedError, match="did not start: Address in use$"):
        await start(tmp_path, "echo Address in use")
    with pytest.raises(NotStartedError, match="it said nothing"):
        await start(tmp_path, "exit 1")


async def test_a_program_or_a_workspace_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotStartedError, match="/nowhere/qwen: No such file"):
        await start_local(["/nowhere/qwen"], str(tmp_path), {})
    with pytest.raises(NotStartedError, match="/nowhere: No such file"):
        await start_local(["true"], "/nowhere", {})


async def test_one_that_does_not_listen_in_time_is_ended(
    tmp_path: Path, started: Callable[[], list[psutil.Process]]
) -> None:
    with pytest.raises(NotStartedError, match="does not listen"):
        await start_local(script(tmp_path, STAY), str(tmp_path), {}, timeout=0.1)
    _, alive = psutil.wait_procs(started(), timeout=TIMEOUT_S)
    assert alive == []


async def test_one_that_nobody_waits_for_any_more_is_told_to_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "told")
    starting = asyncio.create_task(
        start(tmp_path, "trap 'kill $!; echo end > told; exit' TERM", "sleep 1000 &", "echo up > told", "wait")
    )
    assert await read(tmp_path / "told") == "up\n"
    starting.cancel()
    assert await read(tmp_path / "told") == "end\n"
    with pytest.raises(asyncio.CancelledError):
        await starting


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_the_process_that_started_it(tmp_path: Path, number: signal.Signals) -> None:
    starting = (
        "import asyncio; from qwen_companion.daemon.local_daemon import start_local\n"
        "async def main(program, root):\n"
        "    daemon = await start_local([program], root, {})\n"
        "    print(flush=True)\n"
        "    await daemon.ended()\n"
    )
    program, _ = script(tmp_path, LISTEN, STAY)
    owner = subprocess.Popen(
        [sys.executable, "-c", f"{starting}asyncio.run(main({program!r}, {str(tmp_path)!r}))"],
        env={**os.environ, "PYTHONPATH": str(PYTHON_DIRECTORY)},
        stdout=subprocess.PIPE,
    )
    with owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"\n"
        below = psutil.Process(owner.pid).children(recursive=True)
        assert len(below) == 2
        owner.send_signal(number)
        _, alive = psutil.wait_procs(below, timeout=TIMEOUT_S)
        assert alive == []


def run_supervisor(directory: Path, *lines: str) -> subprocess.Popen[bytes]:
    """Return a supervisor with little patience, of a program of `lines`."""
    code = "import sys, supervisor; supervisor.GRACE_S = 0.2; sys.exit(supervisor.main(sys.argv[1:]))"
    return subprocess.Popen(
        [sys.executable, "-c", code, *script(directory, *lines)],
        cwd=Path(supervisor.__file__).parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def test_one_that_does_not_want_to_end_is_made_to(tmp_path: Path) -> None:
    # The child too: it is of the same group.
    with run_supervisor(tmp_path, "trap '' TERM", "echo ready", "sleep 1000", "echo not reached", STAY) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"token\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"ready\n"
        process.stdin.close()
        assert process.stdout.read() == b""
        assert process.wait(TIMEOUT_S) == 128 + signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel tells a process of no end")
def test_it_ends_with_its_supervisor_too(tmp_path: Path) -> None:
    with run_supervisor(tmp_path, "echo ready", STAY) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"token\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"ready\n"
        below = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        assert below
        _, alive = psutil.wait_procs(below, timeout=TIMEOUT_S)
        assert alive == []


def test_the_exit_code_is_that_of_the_program(tmp_path: Path) -> None:
    with run_supervisor(tmp_path, "exit 7") as process:
        assert process.stdin is not None
        process.stdin.write(b"token\n")
        process.stdin.flush()
        assert process.wait(TIMEOUT_S) == 7


def test_nothing_is_started_for_an_owner_that_has_gone_already(tmp_path: Path) -> None:
    with run_supervisor(tmp_path, "echo started") as process:
        assert process.stdin is not None
        process.stdin.write(b"half a tok")
        process.stdin.close()
        assert process.wait(TIMEOUT_S) == supervisor.EXIT_NOT_STARTED
        assert process.stdout is not None
        assert process.stdout.read() == b""
