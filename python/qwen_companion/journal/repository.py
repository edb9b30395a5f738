# SPDX-License-Identifier: GPL-3.0-or-later
"""The user's repository: its location, settings, rule files and objects.  It is read and never written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from qwen_companion.base.git import EXACT, Git, GitError, items, place
from qwen_companion.privacy.disk import is_odd, read_start
from qwen_companion.privacy.git import common_directory, git_directory, repository
from qwen_companion.privacy.verdicts import printable

COPIED = ("core.filemode", "core.ignorecase", "core.precomposeunicode", "core.symlinks", "core.excludesfile")
"""Settings of the user's repository that affect names and modes of files."""

_CONVERTS = re.compile(rb"(?<![-!\w])(?:text|eol|crlf|filter|ident|working-tree-encoding)\b")


@dataclass(frozen=True)
class Repository:
    """A repository of the user's: its work tree `top`, its own directory and the one that worktrees share."""

    top: str
    directory: str
    common: str


def find_repository(directory: str) -> Repository | None:
    """Return the repository whose work tree contains `directory`, a true name."""
    top = repository(os.path.join(directory, "."))
    own = "" if top is None else os.path.normpath(git_directory(top))
    if top is None or not os.path.isfile(os.path.join(own, "HEAD")):
        return None
    return Repository(top, own, os.path.normpath(common_directory(own)))


class Configuration:
    """The user's settings and rule files for the work tree `top`, which affect names and bytes of files."""

    def __init__(self, git: Git, top: str, repository: Repository | None, environ: Mapping[str, str]) -> None:
        """Without a `repository`, only the rule files of `top` are used."""
        self._git = git
        self._top = top
        self._repository = repository
        self._environ = environ
        self.settings: dict[str, str] = {}
        """The settings of the repository that matter here, by name; none before `read`."""

    def read(self) -> None:
        """Read the settings, and check the files that git would read.

        :raises GitError: if that fails
        """
        self.check_files()
        if self._repository is None or not os.path.isdir(self._repository.directory):
            return
        names = (*(name.partition(".")[2] for name in COPIED), "autocrlf", "eol", "attributesfile")
        pattern = rf"^(core\.({'|'.join(names)})|extensions\.objectformat)$"
        own = self._repository.directory
        # The work tree named there need not exist.
        output = self._git.run(["config", "-z", "--get-regexp", pattern], own, good=(0, 1), options=place(own, own))
        found: dict[str, str] = {}
        for entry in output.split(b"\0"):
            name, _, value = os.fsdecode(entry).partition("\n")
            found[name] = value
        if found.get("core.excludesfile", "").startswith("~"):
            found["core.excludesfile"] = os.path.expanduser(found["core.excludesfile"])
        self.settings = found
        self.check_files()

    def check_files(self) -> None:
        """Check that git can read its files of rules.

        :raises GitError: for a pipe, on which it would block, and for a device without end
        """
        files = [os.path.join(self._top, name) for name in (".gitignore", ".gitattributes")]
        if self._repository is not None:
            names = ("config", "config.worktree", "info/exclude", "info/attributes", "packed-refs")
            files += [os.path.join(self._repository.common, name) for name in names]
            files += [os.path.join(self._repository.directory, "index")]
        if "core.excludesfile" in self.settings:
            files.append(os.path.join(self._top, self.settings["core.excludesfile"]))
        odd = next(filter(is_odd, files), None)
        if odd is not None:
            raise GitError(f"{printable(odd)} is not a regular file")

    def converts_everywhere(self, repository: Repository) -> bool:
        """Return whether git's settings may give files other bytes than their blobs have."""
        if self.settings.get("core.autocrlf", "false").lower() not in ("false", "no", "off", "0"):
            return True
        home = self._environ.get("XDG_CONFIG_HOME") or os.path.join(self._environ.get("HOME", "/"), ".config")
        files = [
            os.path.join(repository.common, "info", "attributes"),
            os.path.expanduser(self.settings.get("core.attributesfile", os.path.join(home, "git", "attributes"))),
            "/etc/gitattributes",
        ]
        return any(_file_converts(file) for file in files)

    def converts(self, paths: Iterable[bytes]) -> bool:
        """Return whether the files of attributes in `paths` may give files other bytes than their blobs have."""
        names = (path for path in paths if path.endswith(b".gitattributes"))
        return any(_file_converts(os.path.join(os.fsencode(self._top), name)) for name in names)


class Objects:
    """The objects of the user's repository; none without a repository."""

    def __init__(
        self, git: Git, directory: str, top: str, pathspec: Sequence[bytes], repository: Repository | None
    ) -> None:
        """`git` finds the objects in the git `directory`.  `pathspec` limits the files of the work tree `top`."""
        self._git = git
        self._directory = directory
        self._top = top
        self._pathspec = pathspec
        self._repository = repository

    def unavailable(self, digests: Iterable[str]) -> set[str]:
        """Return those of `digests` that the user's repository lacks."""
        wanted = list(dict.fromkeys(digests))
        if self._repository is None or not wanted:
            return set(wanted)
        data = "".join(f"{digest}\n" for digest in wanted).encode()
        output = self._cat("--batch-check=%(objectname) %(objecttype)", data)
        return {line.split(" ")[0] for line in output.decode().splitlines() if line.endswith(" missing")}

    def stored_digests(self) -> set[str]:
        """Return the digests in the user's index whose blobs are in the user's repository."""
        if self._repository is None:
            return set()
        options = (*EXACT, *place(self._repository.directory, self._top))
        output = self._git.run(["ls-files", "-z", "-s", "--", *self._pathspec], self._top, options=options)
        digests = {line.split(b" ", 2)[1].decode() for line in items(output)}
        # An entry can exist without a blob.
        return digests - self.unavailable(digests)

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

    def last_tree(self) -> str:
        """Return the digest of the tree of the last commit.

        :raises GitError: if there is no commit
        """
        if self._repository is None:
            raise GitError("not in a git repository")
        options = place(self._repository.directory, self._top)
        command = ["rev-parse", "--verify", "--quiet", "HEAD^{tree}"]
        return self._git.run(command, self._top, options=options).decode().strip()

    def _cat(self, option: str, data: bytes) -> bytes:
        options = place(self._directory, self._directory)
        return self._git.run(["cat-file", option], self._directory, data, options=options)


def _file_converts(path: str | bytes) -> bool:
    """Return whether the file of attributes `path`, existing or not, may make git change bytes."""
    try:
        lines = read_start(os.fsdecode(path), 1024 * 1024).splitlines()
    except OSError:
        return False
    return any(_CONVERTS.search(b" ".join(line.split(None, 1)[1:])) for line in lines if line[:1] != b"#")
