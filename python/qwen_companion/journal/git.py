# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the user's git without anything of a repository's running, and give up on one that stalls."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import psutil

from qwen_companion.errors import CompanionError
from qwen_companion.privacy.git import environment, run, search_path

TIMEOUT_S = 60.0
"""How long one process may take: the first list of a large directory on a cold disk."""

# Like those of `privacy.git`: nothing of a repository's runs, no network is reached, nothing of it is written.
OPTIONS = (
    *("--no-pager", "--literal-pathspecs", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}"),
    *("-c", "core.untrackedCache=false", "-c", "core.splitIndex=false", "-c", "core.trustctime=true"),
    *("-c", "core.checkStat=default", "-c", "advice.addEmbeddedRepo=false", "-c", "index.sparse=false"),
    *("-c", "core.sparseCheckout=false", "-c", "core.safecrlf=false", "-c", "core.autocrlf=false"),
)

STALL_S = 5.0
"""How long a git that neither computes nor waits for a disk is waited for: it reads a pipe, or waits for another.

It is looked at twice in that time.

A limit of 5 s for all would give up the first list of a large directory on a cold disk.
"""

RETRY_S = 60.0
"""How long no git is asked about a directory after one has stalled there."""

_STALLED = "git gives no answer; a file that it reads here may be a pipe"


class GitError(CompanionError):
    """Git gave no answer; the text says why."""


class Git:
    """The user's program, for one index of ours.  All methods wait for it, and raise GitError."""

    def __init__(self, directory: str, environ: Mapping[str, str], objects: str | None) -> None:
        """Take the program of `environ`.  The index is in `directory`; objects are also looked up in `objects`."""
        self._directory = directory
        self._program = shutil.which("git", path=search_path(environ))
        self._environ = environment(environ)
        if objects is not None:
            self._environ["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = objects
        self._stalled_at = -math.inf

    def stored(self, *command: str | bytes, raw: bytes = b"") -> bytes:
        """Run git on the index or on objects, and return its output; the work tree need not be there."""
        place = [f"--git-dir={self._directory}", f"--work-tree={self._directory}"]
        return self.run([*place, *command], cwd=self._directory, data=raw)

    def run(
        self,
        command: Sequence[str | bytes],
        cwd: str,
        data: bytes = b"",
        good: Sequence[int] = (0,),
        options: Sequence[str] = OPTIONS,
        variables: Mapping[str, str] | None = None,
    ) -> bytes:
        """Return the output of git with `options`.

        What it writes is private; with other `variables` of the environment, it is the user's as any work of git.

        :raises GitError: when it fails, with another status than `good`
        """
        if self._program is None:
            raise GitError("git is not installed")
        if time.monotonic() < self._stalled_at + RETRY_S:
            raise GitError(_STALLED)
        try:
            status, output, errors = run(
                [self._program, *options, *command],
                cwd,
                {**self._environ, **(variables or {})},
                lambda process: _communicate(process, data),
                umask=0o077 if variables is None else -1,
            )
        except OSError as error:
            raise GitError(error.strerror or str(error)) from None
        except subprocess.TimeoutExpired:
            self._stalled_at = time.monotonic()
            raise GitError(_STALLED) from None
        if status not in good:
            message = errors.decode("utf-8", "replace").strip().partition("\n")[0]
            raise GitError(message.removeprefix("fatal: ") or f"git ended with status {status}")
        return output


def _communicate(process: subprocess.Popen[bytes], data: bytes) -> tuple[bytes, bytes]:
    """Return the output and the errors of `process`, given `data`.

    subprocess.TimeoutExpired after `TIMEOUT_S`, or `STALL_S` in which it does nothing.
    """
    deadline = time.monotonic() + TIMEOUT_S
    done: float | None = None
    given: bytes | None = data
    while True:
        try:
            return process.communicate(given, timeout=STALL_S / 2)
        except subprocess.TimeoutExpired:
            before, done = done, _work_of(process.pid)
            if time.monotonic() > deadline or (before is not None and before == done):
                raise
        given = None


def _work_of(pid: int) -> float | None:
    """Return the seconds for which process `pid` has computed; None while it waits for a disk, or if unknown."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_SLEEPING:
            used = process.cpu_times()
            return used.user + used.system
    return None


def items(output: bytes) -> list[bytes]:
    """Return the parts of `output`, each with a zero at its end."""
    return output.split(b"\0")[:-1]
