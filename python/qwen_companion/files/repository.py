# SPDX-License-Identifier: GPL-3.0-or-later
"""The user's repository: its location, settings, rule files and objects.  It is read and never written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate

from qwen_companion.base.git import Git, GitError, place
from qwen_companion.base.state import write_private
from qwen_companion.privacy.disk import is_odd, read_start
from qwen_companion.privacy.git import common_directory, git_directory, repository
from qwen_companion.privacy.verdicts import printable

_SETTINGS = r"^core\.(autocrlf|excludesfile|attributesfile)$"
"""The settings of the user's repository that matter here."""

_SHA256 = re.compile(rb"^\s*objectformat\s*=\s*\"?sha256", re.IGNORECASE | re.MULTILINE)

MAX_INDEX_BYTES = 64 * 1024 * 1024
"""Largest index of the user's that is read: that of some 500,000 files."""

_CONVERTS = re.compile(rb"(?<![-!\w])(?:text|eol|crlf|filter|ident|working-tree-encoding)\b")


@dataclass(frozen=True)
class Repository:
    """A repository of the user's: its work tree `top`, its own directory and the one that worktrees share."""

    top: str
    directory: str
    common: str

    @property
    def objects(self) -> str:
        """The directory of its objects."""
        return os.path.join(self.common, "objects")

    @property
    def index(self) -> str:
        """The file with its index, there or not."""
        return os.path.join(self.directory, "index")

    @property
    def algorithm(self) -> str:
        """The name of the digest that it uses."""
        with suppress(OSError):
            return "sha256" if _SHA256.search(read_start(os.path.join(self.common, "config"), 1024 * 1024)) else "sha1"
        return "sha1"


def find_repository(directory: str) -> Repository | None:
    """Return the repository whose work tree contains `directory`, a true name."""
    top = repository(os.path.join(directory, "."))
    own = "" if top is None else os.path.normpath(git_directory(top))
    if top is None or not os.path.isfile(os.path.join(own, "HEAD")):
        return None
    return Repository(top, own, os.path.normpath(common_directory(own)))


class Configuration:
    """The user's settings and rule files for the work tree `top`, which affect names and bytes of files."""

    def __init__(self, git: Git, top: str, repository: Repository | None) -> None:
        """Read the settings; without a `repository`, only the rule files of `top` are used.

        :raises GitError: if that fails
        """
        self._git = git
        self._top = top
        self._repository = repository
        self._settings: dict[str, str] = {}
        self.check_files()
        if repository is None:
            return
        own = repository.directory
        # The work tree named there need not exist.
        output = git.run(["config", "-z", "--get-regexp", _SETTINGS], own, good=(0, 1), options=place(own, own))
        for entry in output.split(b"\0"):
            name, _, value = os.fsdecode(entry).partition("\n")
            self._settings[name] = value

    def check_files(self) -> None:
        """Check that git can read its files of rules.

        :raises GitError: for a pipe, on which it would block, and for a device without end
        """
        files = [os.path.join(self._top, name) for name in (".gitignore", ".gitattributes")]
        if self._repository is not None:
            names = ("config", "config.worktree", "info/exclude", "info/attributes", "packed-refs")
            files += [os.path.join(self._repository.common, name) for name in names]
            files.append(self._repository.index)
        if "core.excludesfile" in self._settings:
            files.append(os.path.join(self._top, os.path.expanduser(self._settings["core.excludesfile"])))
        odd = next(filter(is_odd, files), None)
        if odd is not None:
            raise GitError(f"{printable(odd)} is not a regular file")
        with suppress(OSError):
            if self._repository is not None and os.path.getsize(self._repository.index) > MAX_INDEX_BYTES:
                raise GitError(f"{printable(self._repository.index)} is larger than {MAX_INDEX_BYTES >> 20} MiB")

    def converts(self, paths: Iterable[bytes]) -> bool:
        """Return whether git may give files other bytes than their blobs have.

        The files of attributes are among `paths`, absolute names.
        """
        if self._settings.get("core.autocrlf", "false").lower() not in ("false", "no", "off", "0"):
            return True
        environ = self._git.environ
        home = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", "/"), ".config")
        files = [
            os.path.expanduser(self._settings.get("core.attributesfile", os.path.join(home, "git", "attributes"))),
            "/etc/gitattributes",
            *(os.fsdecode(path) for path in paths if path.endswith(b".gitattributes")),
        ]
        if self._repository is not None:
            files.append(os.path.join(self._repository.common, "info", "attributes"))
        return any(map(_file_converts, files))


def empty_repository(directory: str, algorithm: str) -> str:
    """Return a repository of ours below `directory`, with digests by `algorithm`, no files and no settings of others.

    :raises OSError: if it cannot be made
    """
    path = os.path.join(directory, algorithm)
    if not os.path.isfile(os.path.join(path, "HEAD")):
        for each in (directory, path, os.path.join(path, "objects"), os.path.join(path, "refs")):
            os.makedirs(each, mode=0o700, exist_ok=True)
        version = "1\n[extensions]\n\tobjectformat = sha256" if algorithm == "sha256" else "0"
        text = f"[core]\n\tbare = true\n\trepositoryformatversion = {version}\n"
        write_private(os.path.join(path, "config"), text.encode())
        write_private(os.path.join(path, "HEAD"), b"ref: refs/heads/main\n")
    return path


class Objects:
    """The objects of the user's repository; none without a repository."""

    def __init__(self, git: Git, directory: str, repository: Repository | None) -> None:
        """`git` finds the objects in the git `directory`."""
        self.git = git
        self.directory = directory
        self._repository = repository

    def unavailable(self, digests: Iterable[str]) -> set[str]:
        """Return those of `digests` that the user's repository lacks."""
        wanted = list(dict.fromkeys(digests))
        if self._repository is None or not wanted:
            return set(wanted)
        data = "".join(f"{digest}\n" for digest in wanted).encode()
        output = self._cat("--batch-check=%(objectname) %(objecttype)", data)
        return {line.split(" ")[0] for line in output.decode().splitlines() if line.endswith(" missing")}

    def few(self, digests: Sequence[str], most: int) -> Sequence[str]:
        """Return the first of `digests`, at least one, whose blobs have at most `most` bytes together."""
        if self._repository is None or len(digests) < 2:
            return digests
        data = "".join(f"{digest}\n" for digest in digests).encode()
        sizes = self._cat("--batch-check=%(objectsize)", data).decode().splitlines()
        # The line about a missing blob has another form.
        totals = accumulate(int(size) if size.isdigit() else 0 for size in sizes)
        return digests[: max(1, sum(total <= most for total in totals))]

    def blobs(self, digests: Sequence[str]) -> dict[str, bytes]:
        """Return the bytes of those of `digests` that are in the user's repository."""
        found: dict[str, bytes] = {}
        if self._repository is None or not digests:
            return found
        output = self._cat("--batch", "".join(f"{digest}\n" for digest in digests).encode())
        position = 0
        while position < len(output):
            end = output.index(b"\n", position)
            fields = output[position:end].decode().split(" ")
            position = end + 1
            if len(fields) == 3:
                size = int(fields[2])
                found[fields[0]] = output[position : position + size]
                position += size + 1
        return found

    def _cat(self, option: str, data: bytes) -> bytes:
        options = place(self.directory, self.directory)
        return self.git.run(["cat-file", option], self.directory, data, options=options)


def _file_converts(path: str | bytes) -> bool:
    """Return whether the file of attributes `path`, existing or not, may make git change bytes."""
    try:
        lines = read_start(os.fsdecode(path), 1024 * 1024).splitlines()
    except OSError:
        return False
    return any(_CONVERTS.search(b" ".join(line.split(None, 1)[1:])) for line in lines if line[:1] != b"#")
