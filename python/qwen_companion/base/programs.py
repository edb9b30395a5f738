# SPDX-License-Identifier: GPL-3.0-or-later
"""Start other programs: no other module does.

A project may come from anybody, and contain programs named like git, or modules named like those of Python.  So
programs are found in absolute directories only, and run outside of the project, in a session of their own.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anyio.abc import Process

DIRECTORY = "/"
"""The working directory of programs that need no other.  Only root can put files there."""


def _search_path(environ: Mapping[str, str]) -> str:
    """Return the absolute directories of PATH: a relative one means a directory of the project."""
    return os.pathsep.join(part for part in environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(part))


def find_program(name: str, environ: Mapping[str, str]) -> str | None:
    """Return the absolute name of the program `name`, None if there is none, or for a relative name."""
    if os.path.dirname(name) and not os.path.isabs(name):
        return None
    return shutil.which(name, path=_search_path(environ))


def isolated(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without relative directories in PATH, and without variables of Python."""
    kept = {name: value for name, value in environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PATH": _search_path(environ)}


def _resolved(command: Sequence[str | bytes], environ: Mapping[str, str]) -> list[str | bytes]:
    """Return `command` with the absolute name of its program.

    :raises FileNotFoundError: when there is no such program
    """
    program = find_program(os.fsdecode(command[0]), environ)
    if program is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(command[0]))
    return [program, *command[1:]]


def start(
    command: Sequence[str | bytes],
    environ: Mapping[str, str],
    cwd: str = DIRECTORY,
    stdin: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
    umask: int = -1,
) -> subprocess.Popen[bytes]:
    """Start `command` with the variables `environ`; its output is a pipe.

    :raises OSError: when it cannot be started
    """
    return subprocess.Popen(  # noqa: S603 - absolute
        _resolved(command, environ),
        cwd=cwd,
        env=dict(environ),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
        umask=umask,
    )


def run(
    command: Sequence[str | bytes],
    environ: Mapping[str, str],
    wait: Callable[[subprocess.Popen[bytes]], tuple[bytes, bytes]],
    cwd: str = DIRECTORY,
    umask: int = -1,
) -> tuple[int, bytes, bytes]:
    """Return the status, the output and the errors of `command`; `wait` waits for it.

    :raises OSError: if it cannot be started
    :raises TimeoutExpired: if `wait` does; then it was killed, with the processes that it has started
    """
    process = start(command, environ, cwd, umask=umask)
    try:
        output, errors = wait(process)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # The processes that it has started keep its pipes open.
        process.communicate()
        raise
    return process.returncode, output, errors


def run_within(
    limit_s: float, command: Sequence[str], environ: Mapping[str, str], cwd: str = DIRECTORY
) -> tuple[int, bytes]:
    """Return the status and the output of `command`, without input.

    :raises OSError: if it cannot be started, or takes longer than `limit_s`
    """
    try:
        status, output, _ = run(command, environ, lambda process: process.communicate(b"", timeout=limit_s), cwd)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"no end after {limit_s:g} s") from None
    return status, output


async def open_process(command: Sequence[str], environ: Mapping[str, str]) -> Process:
    """Start `command` with pipes for the event loop.

    :raises FileNotFoundError: where there is no such program
    """
    import anyio

    words = [os.fsdecode(word) for word in _resolved(command, environ)]
    return await anyio.open_process(words, cwd=DIRECTORY, env=dict(environ), start_new_session=True)
