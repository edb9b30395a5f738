# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the user's git without running any program of a repository, and stop waiting for a git that stalls.

A repository may come from anybody.  Its settings and attributes name programs: filters, text converters, differs,
hooks, monitors of files, pagers, network transports.  All are off; where git only reads, those in the user's own
settings are off too.
"""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import psutil

from qwen_companion.base.errors import CompanionError
from qwen_companion.base.programs import find_program, isolated, run

SETTINGS = (
    *(
        "--no-pager",
        "-c",
        "core.fsmonitor=false",
        "-c",
        f"core.hooksPath={os.devnull}",
        "-c",
        "core.untrackedCache=false",
    ),
    *("-c", "safe.bareRepository=explicit", "-c", "submodule.recurse=false", "-c", "log.showSignature=false"),
)

VARIABLES = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}

FLAGS = {
    "blame": ("--no-textconv",),
    "diff": ("--no-ext-diff", "--no-textconv"),
    "diff-files": ("--no-ext-diff", "--no-textconv"),
    "diff-index": ("--no-ext-diff", "--no-textconv"),
    "diff-tree": ("--no-ext-diff", "--no-textconv"),
    # It would run git in submodules, which have other settings.
    "status": ("--ignore-submodules=dirty",),
}
"""Options that stop git's commands from running programs, in addition to settings."""

FILTERS_OFF = ("clean=", "smudge=", "process=", "required=false")
"""The settings of a filter that runs nothing."""

NO_FILTERS = frozenset(
    (
        "cat-file",
        "check-ignore",
        "config",
        "diff-tree",
        "init",
        "ls-files",
        "ls-tree",
        "merge-base",
        "notes",
        "read-tree",
    )
    + ("rev-list", "rev-parse", "var", "worktree")
)
"""Commands that read no contents of files, so no filter runs."""

EXACT = (
    *(
        "--literal-pathspecs",
        "-c",
        "core.splitIndex=false",
        "-c",
        "core.trustctime=true",
        "-c",
        "core.checkStat=default",
    ),
    *("-c", "advice.addEmbeddedRepo=false", "-c", "index.sparse=false", "-c", "core.sparseCheckout=false"),
    *("-c", "core.safecrlf=false", "-c", "core.autocrlf=false"),
)
"""Options for unchanged bytes and names."""

LIMIT_S = 60.0
"""Seconds one process may take: the first list of a large directory on a cold disk."""

STALL_S = 5.0
"""Seconds to wait for a git that neither computes nor waits for a disk: it reads a pipe, or waits for another process.

It is checked twice in that time.  A limit of 5 s for all would stop the first list of a large directory on a cold disk.
"""

RETRY_S = 60.0
"""Seconds without new requests to git in a directory after one has stalled there."""


class GitError(CompanionError):
    """Git gave no answer; the message has the reason."""


class StalledError(GitError):
    """Git did not end in time, or was not started because it has just failed to."""

    def __init__(self) -> None:
        super().__init__("git gives no answer; a file that it reads here may be a pipe")


def place(directory: str, tree: str) -> tuple[str, str]:
    """Return options for the repository in `directory` with the files in `tree`, regardless of its settings."""
    return f"--git-dir={directory}", f"--work-tree={tree}"


class Git:
    """The git of an environment.  Its methods block on it and are thread-safe."""

    def __init__(
        self,
        environ: Mapping[str, str],
        objects: str | None = None,
        limit_s: float | None = None,
        retry_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Objects are also looked up in the directory `objects`.

        `limit_s` is the time limit of one process.  For `retry_s` after one has stalled, none is started; `clock`
        returns seconds.
        """
        # Other variables GIT_... choose a repository, and this must be the one of the file.
        kept = {
            name: value
            for name, value in isolated(environ).items()
            if not name.startswith("GIT_") or name.startswith("GIT_CONFIG_")
        }
        self.environ = {**kept, **VARIABLES}
        if objects is not None:
            self.environ["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = objects
        self._limit_s = limit_s
        self._retry_s = retry_s
        self._clock = clock
        self._stalled: dict[str, float] = {}
        """The time of git's last failure to answer, by directory."""

    def program(self) -> str | None:
        """Return the program that runs as git."""
        return find_program("git", self.environ)

    def run(
        self,
        command: Sequence[str | bytes],
        cwd: str,
        data: bytes = b"",
        good: Sequence[int] = (0,),
        options: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        runs_filters: bool = False,
        on_errors: Callable[[str], None] | None = None,
    ) -> bytes:
        """Return the output of git for `command`, the subcommand and its arguments, given `data` as input.

        `options` come before it.  Filters run only if `runs_filters`: for a repository of ours, which has none, and to
        commit.  Files that git writes are private; with other `variables` of the environment, they are the user's as
        usual.  `on_errors` is called with the text of its errors and warnings.

        :raises GitError: if it fails, with another status than `good`
        """
        name = os.fsdecode(command[0])
        if not runs_filters and name not in NO_FILTERS:
            options = [*options, *self._without_filters(cwd, options)]
        if name == "check-ignore":
            # check-ignore accepts no pathspecs, and prints an error for the option.
            options = [option for option in options if option != "--literal-pathspecs"]
        if self._clock() < self._stalled.get(cwd, -math.inf) + (self._retry_s or RETRY_S):
            raise StalledError
        try:
            status, output, errors = run(
                ["git", *SETTINGS, *options, name, *FLAGS.get(name, ()), *command[1:]],
                {**self.environ, **(variables or {})},
                lambda process: self._communicate(process, data),
                cwd,
                umask=0o077 if variables is None else -1,
            )
        except FileNotFoundError as error:
            raise GitError("git is not installed" if self.program() is None else str(error.strerror)) from None
        except OSError as error:
            raise GitError(error.strerror or str(error)) from None
        except subprocess.TimeoutExpired:
            self._stalled[cwd] = self._clock()
            raise StalledError from None
        message = errors.decode("utf-8", "replace")
        if status not in good:
            # Git's own words may begin with a file name.
            raise GitError(f"git: {plain(message) or f'status {status}'}")
        if on_errors is not None:
            on_errors(message)
        return output

    def _without_filters(self, cwd: str, options: Sequence[str]) -> list[str]:
        """Return options that turn off each filter in the settings.

        :raises GitError: for a name that no option of git can contain
        """
        listed = self.run(["config", "--list", "-z", "--name-only"], cwd, options=options)
        keys = (os.fsdecode(key) for key in items(listed) if key.startswith(b"filter."))
        settings: list[str] = []
        for key in dict.fromkeys(key.rpartition(".")[0] for key in keys):
            if "=" in key:
                # Git would end the name at the first equals sign.
                raise GitError(f"a filter in the settings of git has an equals sign in its name: {key!r}")
            for name in FILTERS_OFF:
                settings += ["-c", f"{key}.{name}"]
        return settings

    def _communicate(self, process: subprocess.Popen[bytes], data: bytes) -> tuple[bytes, bytes]:
        """Return the output and the errors of `process`, given `data` as input.

        :raises TimeoutExpired: after the limit, or after `STALL_S` without activity
        """
        limit_s = self._limit_s or LIMIT_S
        deadline = time.monotonic() + limit_s
        done: float | None = None
        given: bytes | None = data
        while True:
            try:
                return process.communicate(given, timeout=min(STALL_S / 2, limit_s))
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
    """Return the parts of `output`, each ended by a NUL."""
    return output.split(b"\0")[:-1]


def plain(message: str) -> str:
    """Return the first line of git's `message`, without the word in front."""
    line = message.strip().partition("\n")[0]
    return line.removeprefix("fatal: ").removeprefix("error: ").removeprefix("warning: ")
