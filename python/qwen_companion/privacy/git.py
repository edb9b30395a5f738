# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask git which files it ignores."""

from __future__ import annotations

import errno
import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from qwen_companion.privacy.disk import is_odd, read_start
from qwen_companion.privacy.verdicts import ALLOWED, Verdict, excluded, printable

TIMEOUT_S = 5.0

RETRY_S = 10.0
"""How long git is left alone after it gave no answer."""

# A repository may come from anybody: none of its programs runs, it reaches no network, and nothing is written to it.
_OPTIONS = (
    "--no-pager",
    "-c",
    "core.fsmonitor=false",
    "-c",
    f"core.hooksPath={os.devnull}",
    "-c",
    "core.untrackedCache=false",
    "-c",
    "safe.bareRepository=explicit",
)
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


def search_path(environ: Mapping[str, str]) -> str:
    """Return the directories in which git is looked for: a relative one may be anybody's."""
    return os.pathsep.join(part for part in environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(part))


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for git."""
    # What else is in GIT_... says which repository to use, and this is to be the one a file is in.
    kept = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
    settings = {name: value for name, value in environ.items() if name.startswith("GIT_CONFIG_")}
    return {**kept, **settings, **_ENVIRONMENT}


def run(
    command: Sequence[str | bytes],
    cwd: str,
    environ: Mapping[str, str],
    wait: Callable[[subprocess.Popen[bytes]], tuple[bytes, bytes]],
    umask: int = -1,
) -> tuple[int, bytes, bytes]:
    """Return the status of `command`, which runs git, with its output and errors, for which `wait` waits.

    :raises OSError: when it cannot be started
    :raises TimeoutExpired: when `wait` does; git has been ended then
    """
    process = subprocess.Popen(  # noqa: S603 - the user's own git
        command,
        cwd=cwd,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        umask=umask,
    )
    try:
        output, errors = wait(process)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # Whatever git has started holds its pipes open.
        process.communicate()
        raise
    return process.returncode, output, errors


class _GitError(Exception):
    """Git gave no answer; the text says why."""


class Git:
    """The git of an environment.  The methods wait for the disk and for git."""

    def __init__(
        self,
        environ: Mapping[str, str],
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`timeout_s` is how long one process may take.  `clock` gives seconds."""
        self._path = search_path(environ)
        self._home = environ.get("HOME") or os.path.expanduser("~")
        self._configuration = environ.get("XDG_CONFIG_HOME") or os.path.join(self._home, ".config")
        self._environ = environment(environ)
        self._timeout_s = timeout_s
        self._clock = clock
        self._late: dict[str, float] = {}
        """When git gave no answer last, by the directory in which it was asked."""

    def program(self) -> str | None:
        """Return the git that would be asked."""
        return shutil.which("git", path=self._path)

    def ask(self, top: str, paths: Sequence[str]) -> dict[str, Verdict]:
        """Return the verdicts of the repository in `top` on `paths`, which have no link in any directory."""
        program = self.program()
        if program is None:
            return dict.fromkeys(paths, ALLOWED)
        try:
            return self._check_ignore(program, top, paths)
        except _GitError as error:
            message = str(error)
        if message.startswith("not a git repository (or any"):
            return dict.fromkeys(paths, ALLOWED)
        if message.startswith("detected dubious ownership"):
            note = Verdict(False, printable(f"git was not asked: {top} is another user's (safe.directory)"))
            return dict.fromkeys(paths, note)
        if len(paths) == 1 or message == self._too_slow():
            return dict.fromkeys(paths, excluded(f"git could not be asked: {message}", lasting=False))
        # One name that git does not want keeps it from answering about the others.
        return {path: verdict for single in paths for path, verdict in self.ask(top, [single]).items()}

    def rule_files(self, top: str) -> list[str]:
        """Return the files outside the work tree that decide what the repository in `top` ignores, there or not."""
        files = [
            self._environ.get("GIT_CONFIG_SYSTEM", "/etc/gitconfig"),
            self._environ.get("GIT_CONFIG_GLOBAL", os.path.join(self._home, ".gitconfig")),
            os.path.join(self._configuration, "git/config"),
            os.path.join(self._configuration, "git/ignore"),
        ]
        files += _repository_files(top)
        program = self.program()
        if program is not None:
            with suppress(_GitError):  # Then nothing is known about the paths either.
                files += self._configured(program, top)
        return list(dict.fromkeys(files))

    def _check_ignore(self, program: str, top: str, paths: Sequence[str]) -> dict[str, Verdict]:
        _check_regular(file for path in paths for file in work_tree_files(path))
        data = b"".join(os.fsencode(path) + b"\0" for path in paths)
        command = ("check-ignore", "-z", "--stdin", "--verbose", "--non-matching")
        output, message = self._run(program, top, command, data, (0, 1))
        for line in message.splitlines():
            # Git goes on without a file of rules it cannot read.  One that is a link it never reads.
            if "unable to access" in line and os.strerror(errno.ELOOP) not in line:
                raise _GitError(_plain(line))
        fields = [os.fsdecode(field) for field in output.split(b"\0")]
        verdicts: dict[str, Verdict] = {}
        for source, number, pattern, path in zip(*(fields[start:-1:4] for start in range(4)), strict=True):
            matches = source and not pattern.startswith("!")
            verdicts[path] = excluded(f"git ignores it ({source}:{number}: {pattern})") if matches else ALLOWED
        if verdicts.keys() != set(paths):
            raise _GitError("its answer is not complete")
        return verdicts

    def _configured(self, program: str, top: str) -> Iterator[str]:
        """Return the files of the configuration, those it includes, and the patterns for all repositories."""
        output, _ = self._run(program, top, ("config", "-z", "--list", "--show-origin"), b"", (0,))
        fields = [os.fsdecode(field) for field in output.split(b"\0")]
        for origin, entry in zip(fields[0:-1:2], fields[1::2], strict=False):
            kind, _, file = origin.partition(":")
            file = os.path.join(top, file) if kind == "file" else ""
            if file:
                yield file
            name, _, value = entry.partition("\n")
            if name == "core.excludesfile":
                yield os.path.join(top, self._expanded(value))
            elif name.startswith("include") and name.endswith(".path"):
                yield os.path.join(os.path.dirname(file), self._expanded(value))

    def _expanded(self, path: str) -> str:
        return self._home + path[1:] if path.startswith("~/") else os.path.expanduser(path)

    def _run(
        self, program: str, top: str, command: Sequence[str], data: bytes, good: Sequence[int]
    ) -> tuple[bytes, str]:
        """Return standard output and error of git.

        :raises _GitError: unless its status is `good`
        """
        _check_regular(_repository_files(top))
        if self._clock() < self._late.get(top, -math.inf) + RETRY_S:
            raise _GitError(self._too_slow())
        try:
            status, output, errors = run(
                [program, *_OPTIONS, *command],
                top,
                self._environ,
                lambda process: process.communicate(data, timeout=self._timeout_s),
            )
        except OSError as error:
            raise _GitError(error.strerror or str(error)) from None
        except subprocess.TimeoutExpired:
            self._late[top] = self._clock()
            raise _GitError(self._too_slow()) from None
        message = errors.decode("utf-8", "replace")
        if status not in good:
            raise _GitError(_plain(message) or f"it ended with status {status}")
        return output, message

    def _too_slow(self) -> str:
        return f"no answer within {self._timeout_s:g} s"


def _check_regular(files: Iterable[str]) -> None:
    """Check that git can read `files`.

    :raises _GitError: for a pipe, where it would wait, and for a device
    """
    odd = next(filter(is_odd, files), None)
    if odd is not None:
        raise _GitError(printable(f"{odd} is not a regular file"))


def _repository_files(top: str) -> Iterator[str]:
    """Return the files of the repository in `top` that decide what it ignores, there or not."""
    directory = git_directory(top)
    common = common_directory(directory)
    yield from (os.path.join(directory, name) for name in ("HEAD", "commondir", "config.worktree", "index"))
    yield from (os.path.join(common, name) for name in ("config", "info/exclude"))


def _plain(message: str) -> str:
    """Return the first line of git's message, without the word in front."""
    line = message.strip().partition("\n")[0]
    return line.removeprefix("fatal: ").removeprefix("error: ").removeprefix("warning: ")


def repository(path: str) -> str | None:
    """Return the closest directory around `path`, which has no links, that has the mark of a repository."""
    return next((each for each in _around(path) if os.path.lexists(os.path.join(each, ".git"))), None)


def work_tree_files(path: str) -> Iterator[str]:
    """Return the files, existing or not, that decide what git says about `path`."""
    for directory in _around(path):
        yield os.path.join(directory, ".git")
        yield os.path.join(directory, ".gitignore")


def _around(path: str) -> Iterator[str]:
    """Return the directories that `path` is in, the closest first."""
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        yield path


def git_directory(top: str) -> str:
    """Return where the repository of the work tree `top` is: a worktree or submodule has a file that says it."""
    mark = os.path.join(top, ".git")
    named = _line(mark).removeprefix("gitdir:").strip()
    return os.path.join(top, named) if named else mark


def common_directory(directory: str) -> str:
    """Return the git directory that all worktrees share with the git `directory` of one."""
    return os.path.join(directory, _line(os.path.join(directory, "commondir")))


def _line(path: str) -> str:
    """Return the short text in the file `path`, empty when there is none."""
    try:
        return os.fsdecode(read_start(path, 4096)).strip()
    except (OSError, ValueError):  # It is not there, or no file can have that name.
        return ""
