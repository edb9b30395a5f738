# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask git which files it ignores."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from qwen_companion.base.git import Git, GitError, StalledError, plain
from qwen_companion.privacy.disk import is_odd, read_start
from qwen_companion.privacy.verdicts import ALLOWED, Verdict, excluded, printable

TIMEOUT_S = 5.0

RETRY_S = 10.0
"""Seconds without requests to git after it gave no answer."""


class IgnoreRules:
    """Git's rules for ignored files.  The methods block on the disk and on git."""

    def __init__(
        self,
        environ: Mapping[str, str],
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`timeout_s` limits one process.  `clock` returns seconds."""
        self._home = environ.get("HOME") or os.path.expanduser("~")
        self._configuration = environ.get("XDG_CONFIG_HOME") or os.path.join(self._home, ".config")
        self._git = Git(environ, limit_s=timeout_s, retry_s=RETRY_S, clock=clock)
        self._timeout_s = timeout_s

    def program(self) -> str | None:
        """Return the program that runs as git."""
        return self._git.program()

    def ask(self, top: str, paths: Sequence[str]) -> dict[str, Verdict]:
        """Return the verdicts of the repository in `top` on `paths`, whose directories contain no links."""
        if self.program() is None:
            return dict.fromkeys(paths, ALLOWED)
        try:
            return self._check_ignore(top, paths)
        except GitError as error:
            message = str(error).removeprefix("git: ")
        if message.startswith("not a git repository (or any"):
            return dict.fromkeys(paths, ALLOWED)
        if message.startswith("detected dubious ownership"):
            note = Verdict(False, printable(f"git was not asked: {top} is another user's (safe.directory)"))
            return dict.fromkeys(paths, note)
        if len(paths) == 1 or message == self._too_slow():
            return dict.fromkeys(paths, excluded(f"git could not be asked: {message}", lasting=False))
        # One name that git rejects keeps it from answering about the others.
        return {path: verdict for single in paths for path, verdict in self.ask(top, [single]).items()}

    def rule_files(self, top: str) -> list[str]:
        """Return the files outside the work tree that decide what the repository in `top` ignores, existing or not."""
        files = [
            self._git.environ.get("GIT_CONFIG_SYSTEM", "/etc/gitconfig"),
            self._git.environ.get("GIT_CONFIG_GLOBAL", os.path.join(self._home, ".gitconfig")),
            os.path.join(self._configuration, "git/config"),
            os.path.join(self._configuration, "git/ignore"),
        ]
        files += _repository_files(top)
        if self.program() is not None:
            with suppress(GitError):  # Then the verdicts on the paths are unknown too.
                files += self._configured(top)
        return list(dict.fromkeys(files))

    def _check_ignore(self, top: str, paths: Sequence[str]) -> dict[str, Verdict]:
        _check_regular(file for path in paths for file in work_tree_files(path))
        data = b"".join(os.fsencode(path) + b"\0" for path in paths)
        command = ("check-ignore", "-z", "--stdin", "--verbose", "--non-matching")
        output, message = self._run(top, command, data, (0, 1))
        for line in message.splitlines():
            # Git ignores an unreadable file of rules, and never reads one that is a link.
            if "unable to access" in line and os.strerror(errno.ELOOP) not in line:
                raise GitError(plain(line))
        fields = [os.fsdecode(field) for field in output.split(b"\0")]
        verdicts: dict[str, Verdict] = {}
        for source, number, pattern, path in zip(*(fields[start:-1:4] for start in range(4)), strict=True):
            matches = source and not pattern.startswith("!")
            verdicts[path] = excluded(f"git ignores it ({source}:{number}: {pattern})") if matches else ALLOWED
        if verdicts.keys() != set(paths):
            raise GitError("its answer is not complete")
        return verdicts

    def _configured(self, top: str) -> Iterator[str]:
        """Yield the files of git's configuration, those that it includes, and the patterns for all repositories."""
        output, _ = self._run(top, ("config", "-z", "--list", "--show-origin"), b"", (0,))
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

    def _run(self, top: str, command: Sequence[str], data: bytes, good: Sequence[int]) -> tuple[bytes, str]:
        """Return standard output and error of git.

        :raises GitError: unless its status is `good`
        """
        _check_regular(_repository_files(top))
        errors: list[str] = []
        try:
            output = self._git.run(command, top, data, good, on_errors=errors.append)
        except StalledError:
            raise GitError(self._too_slow()) from None
        return output, "".join(errors)

    def _too_slow(self) -> str:
        return f"no answer within {self._timeout_s:g} s"


def _check_regular(files: Iterable[str]) -> None:
    """Check that git can read `files`.

    :raises GitError: for a pipe, on which it would block, and for a device
    """
    odd = next(filter(is_odd, files), None)
    if odd is not None:
        raise GitError(printable(f"{odd} is not a regular file"))


def _repository_files(top: str) -> Iterator[str]:
    """Yield the files of the repository in `top` that decide what it ignores, existing or not."""
    directory = git_directory(top)
    common = common_directory(directory)
    yield from (os.path.join(directory, name) for name in ("HEAD", "commondir", "config.worktree", "index"))
    yield from (os.path.join(common, name) for name in ("config", "info/exclude"))


def repository(path: str) -> str | None:
    """Return the closest directory around `path` that is marked as a repository; `path` has no links."""
    return next((each for each in _around(path) if os.path.lexists(os.path.join(each, ".git"))), None)


def work_tree_files(path: str) -> Iterator[str]:
    """Yield the files, existing or not, that decide git's verdict on `path`."""
    for directory in _around(path):
        yield os.path.join(directory, ".git")
        yield os.path.join(directory, ".gitignore")


def _around(path: str) -> Iterator[str]:
    """Yield the directories around `path`, the closest first."""
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        yield path


def git_directory(top: str) -> str:
    """Return the git directory of the work tree `top`: in a worktree or submodule a file names it."""
    mark = os.path.join(top, ".git")
    named = _line(mark).removeprefix("gitdir:").strip()
    return os.path.join(top, named) if named else mark


def common_directory(directory: str) -> str:
    """Return the git directory shared by all worktrees; `directory` is the git directory of one of them."""
    return os.path.join(directory, _line(os.path.join(directory, "commondir")))


def _line(path: str) -> str:
    """Return the short text in the file `path`, or "" without a file."""
    try:
        return os.fsdecode(read_start(path, 4096)).strip()
    except (OSError, ValueError):  # It does not exist, or no file can have that name.
        return ""
