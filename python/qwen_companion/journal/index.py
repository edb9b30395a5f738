# SPDX-License-Identifier: GPL-3.0-or-later
"""An index of our own over a directory of the user's: a list of files that notices changes.

Git provides paths, ignore rules and the cache of file stamps.  It stores nothing: with `--info-only` an index contains
the digest of a file and no copy, so neither filters nor line ends can change what is recorded.  The user's index is
copied.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

from qwen_companion.base.git import EXACT, Git, GitError, items, place
from qwen_companion.base.state import write_private
from qwen_companion.journal.repository import COPIED, Configuration, Objects, Repository
from qwen_companion.journal.versions import EXECUTABLE, FILE, LINK, Version, can_be_held, inode_at
from qwen_companion.privacy.disk import read_start

MAX_INDEX_BYTES = 64 * 1024 * 1024
"""Largest index of the user's that is copied; an index of the most files that are recorded has a third of that size."""

_NO_CONVERSION = b"* -text -eol -crlf -filter -ident -working-tree-encoding\n"

_STAMPS = re.compile(rb"([^\0]+)\0  ctime: .*\n  mtime: .*\n  dev: .*\tino: (\d+)\n  uid: .*\n  size: .*\n")
"""One entry of `ls-files --debug`: path and inode."""

_GITLINK = "160000"
_MODES = {"100644": FILE, "100755": EXECUTABLE, "120000": LINK}


@dataclass(frozen=True)
class Listing:
    """Differences from the index: `changed` with the index's entries, and `unknown` paths, relative to the top.

    `gone` are missing files of `changed`.  `nested` are directories with a repository of their own.  `ignored` are
    files, or directories with all their files.
    """

    changed: dict[bytes, Version | None]
    gone: set[bytes]
    unknown: list[bytes]
    nested: list[bytes]
    ignored: list[bytes]


class Index:
    """An index of ours in a separate directory, over the files below `scope`.  Its methods block on git."""

    def __init__(self, directory: str, scope: str, environ: Mapping[str, str], repository: Repository | None) -> None:
        """`scope` is the true name of a directory, in the user's `repository` or in none."""
        self.directory = directory
        self.repository = repository
        self.top = repository.top if repository else scope
        self.prefix = os.fsencode(self.top).rstrip(b"/") + b"/"
        below = os.fsencode(os.path.relpath(scope, self.top))
        self._pathspec = [] if below == b"." else [below]
        self._program = Git(environ, repository and os.path.join(repository.common, "objects"))
        self.configuration = Configuration(self._program, self.top, repository, environ)
        self.objects = Objects(self._program, directory, self.top, self._pathspec, repository)
        self._settings: tuple[str, ...] = ()
        self.algorithm = "sha1"
        self._known_entries: dict[bytes, Version | None] = {}
        """The results of `entry`, valid for one state of the index."""
        self._known_state: tuple[int, int] | None = None
        """That state: inode and time of change of the index file; None while there is no such file."""

    # --- Making it ---

    def open(self) -> None:
        """Prepare the directory, with the index from before.

        :raises GitError, OSError: if that fails
        """
        self.configuration.read()
        settings = self.configuration.settings
        self.algorithm = settings.get("extensions.objectformat", "sha1")
        self._settings = tuple(
            part for name in COPIED if name in settings for part in ("-c", f"{name}={settings[name]}")
        )
        if not os.path.isfile(os.path.join(self.directory, "HEAD")):
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            options = ["--object-format=sha256"] if self.algorithm == "sha256" else []
            # No template: it may contain hooks and rules.
            command = ["init", "--quiet", "--bare", "--template=", *options, self.directory]
            self._program.run(command, self.directory)
            os.makedirs(os.path.join(self.directory, "info"), mode=0o700, exist_ok=True)
            write_private(os.path.join(self.directory, "info", "attributes"), _NO_CONVERSION)
        # A killed process leaves it behind.
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self.directory, "index.lock"))

    def clear(self) -> None:
        """Begin with no file."""
        self._git("read-tree", "--empty")

    def copy_users_index(self) -> bool:
        """Begin with the user's index, if its statements on unchanged files hold for their bytes; else with none.

        Return whether it was copied.
        """
        repository = self.repository
        target = os.path.join(self.directory, "index")
        with suppress(FileNotFoundError):
            os.unlink(target)
        if repository is None or self.configuration.converts_everywhere(repository):
            return False
        source = os.path.join(repository.directory, "index")
        try:
            _copy_index(source, target)
            if self.configuration.converts(self._drop_flags()):
                os.unlink(target)
                return False
        except (OSError, GitError):
            with suppress(FileNotFoundError):
                os.unlink(target)
            return False
        return True

    def _drop_flags(self) -> list[bytes]:
        """Make the copied index report each file, and remove other repositories; return its paths."""
        paths: list[bytes] = []
        unchanged: list[bytes] = []
        gone: list[bytes] = []
        for line in items(self._git("ls-files", "-z", "-v", "-s")):
            flag, _, rest = line.partition(b" ")
            entry, _, path = rest.partition(b"\t")
            mode, _, stage = entry.split(b" ")
            paths.append(path)
            if mode == _GITLINK.encode() or stage != b"0" or flag in (b"S", b"s"):
                gone.append(path)
            elif flag.islower():
                unchanged.append(path)
        if gone:
            self._git("update-index", "--force-remove", "-z", "--stdin", data=gone)
        if unchanged:
            self._git("update-index", "--no-assume-unchanged", "-z", "--stdin", data=unchanged)
        return paths

    def set_rules(self, rules: bytes) -> None:
        """Ignore files by `rules`, lines of the gitignore format, in addition to git's own rules."""
        if self.repository is not None:
            with suppress(OSError):
                rules = read_start(os.path.join(self.repository.common, "info", "exclude"), 1024 * 1024) + b"\n" + rules
        path = os.path.join(self.directory, "info", "exclude")
        with suppress(OSError):
            if read_start(path, len(rules) + 1) == rules:
                return
        write_private(path, rules)

    # --- Using it ---

    def changes(self) -> Listing:
        """Return the differences of the disk from the index."""
        self.configuration.check_files()
        # First: if the rules change just now, a file may be both ignored and unknown, but must not be neither.
        ignored = self._ignored()
        changed: dict[bytes, Version | None] = {}
        gone: set[bytes] = set()
        for path, version, is_there in self._raw("diff-files", "--raw", "-z", "--abbrev=64", "--ignore-submodules=all"):
            changed[path] = version
            if not is_there:
                gone.add(path)
        unknown: list[bytes] = []
        nested: list[bytes] = []
        for path in items(self._git("ls-files", "-z", "--others", "--exclude-standard", "--", *self._pathspec)):
            if path.endswith(b"/"):
                nested.append(path[:-1])
            else:
                unknown.append(path)
        for path in self._replaced_by(unknown) if unknown else ():
            # It still existed when the changes were listed, and `update` would drop it.
            changed.setdefault(path, self.entry(path))
            gone.add(path)
        return Listing(changed, gone, unknown, nested, ignored)

    def _replaced_by(self, paths: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the files in the index that conflict with `paths`: a directory of one has the name of the other."""
        known = items(self._git("ls-files", "-z", "--", *self._pathspec))
        for path in paths:
            place = bisect_left(known, path + b"/")
            while place < len(known) and known[place].startswith(path + b"/"):
                yield known[place]
                place += 1
            while path := os.path.dirname(path):
                place = bisect_left(known, path)
                if known[place : place + 1] == [path]:
                    yield path

    def _ignored(self) -> list[bytes]:
        options = ("-z", "--others", "--ignored", "--exclude-standard", "--directory")
        found = items(self._git("ls-files", *options, "--", *self._pathspec))
        # A directory that is listed only for its contents comes right before them.
        return [
            path.rstrip(b"/")
            for path, following in pairwise([*found, b""])
            if not (path.endswith(b"/") and following.startswith(path))
        ]

    def _raw(self, *command: str) -> Iterator[tuple[bytes, Version | None, bool]]:
        return raw_entries(self._git(*command, "--", *self._pathspec))

    def update(self, paths: Sequence[bytes]) -> None:
        """Update the index with `paths` as they are on the disk; remove missing ones."""
        if not paths:
            return
        try:
            self._git("update-index", "--info-only", "--add", "--remove", "--replace", "-z", "--stdin", data=paths)
        except GitError:
            # Git adds none if one of them has since become something that an index cannot contain.
            unfit = {path for path in paths if not can_be_held(self.prefix + path)}
            if not unfit:
                raise
            self.drop(list(unfit))
            self.update([path for path in paths if path not in unfit])

    def drop(self, paths: Sequence[bytes]) -> None:
        """Remove `paths` from the index, whether it has them or not."""
        if paths:
            self._git("update-index", "--force-remove", "-z", "--stdin", data=paths)

    def entry(self, path: bytes) -> Version | None:
        """Return the version of `path` in the index."""
        try:
            found = os.stat(os.path.join(self.directory, "index"))
            # Git writes a new file each time.
            state = (found.st_ino, found.st_mtime_ns)
        except OSError:
            state = None
        if state != self._known_state:
            self._known_entries.clear()
            self._known_state = state
        if path not in self._known_entries:
            self._known_entries[path] = dict(self._entries(path)).get(path)
        return self._known_entries[path]

    def below(self, path: bytes) -> bytes:
        """Return the absolute `path` as named in the index."""
        return os.path.relpath(path, os.fsencode(self.top))

    def lists(self, *paths: bytes) -> bool:
        """Return whether each of `paths` is in the index, or exists on the disk and is not ignored."""
        options = ("-z", "--cached", "--others", "--exclude-standard")
        return set(paths) <= set(items(self._git("ls-files", *options, "--", *paths)))

    def ignores(self, *paths: bytes) -> bool:
        """Return whether any of `paths`, which need not exist, is ignored.

        :raises GitError: for a path behind a link
        """
        names = b"".join(b"./" + path + b"\0" for path in paths)
        # Status 1 means that none is.
        return bool(self._git("check-ignore", "-z", "--stdin", raw=names, good=(0, 1)))

    def directories(self) -> set[bytes]:
        """Return the absolute names of the directories with files that are not ignored, and of those above."""
        scope = os.path.join(self.prefix, *self._pathspec).rstrip(b"/")
        found = {scope}
        options = ("-z", "--cached", "--others", "--exclude-standard")
        for path in items(self._git("ls-files", *options, "--", *self._pathspec)):
            directory = os.path.dirname(self.prefix + path)
            while directory not in found and len(directory) > len(scope):
                found.add(directory)
                directory = os.path.dirname(directory)
        return found

    def entries(self) -> Iterator[tuple[bytes, Version]]:
        """Return all files in the index."""
        yield from self._entries(*self._pathspec)

    def _entries(self, *paths: bytes) -> Iterator[tuple[bytes, Version]]:
        for line in items(self._stored("ls-files", "-z", "-s", "--", *paths)):
            entry, _, path = line.partition(b"\t")
            mode, digest, _ = os.fsdecode(entry).split(" ")
            if mode in _MODES:
                yield path, Version(digest, _MODES[mode])

    def differing(self, versions: Mapping[bytes, Version]) -> list[bytes]:
        """Return the paths of `versions` for which the index has another version, or none."""
        if not versions:
            return []
        entries = set(items(self._git("ls-files", "-z", "-s", "--", *self._pathspec)))
        return [
            path
            for path, version in versions.items()
            if b"%o %b 0\t%b" % (version.mode, version.digest.encode(), path) not in entries
        ]

    def moved(self) -> dict[bytes, int]:
        """Return the missing files of the index, with their inodes."""
        entries = _STAMPS.findall(self._stored("ls-files", "-z", "--debug", "--", *self._pathspec))
        return {path: int(inode) for path, inode in entries if int(inode) != inode_at(self.prefix + path)}

    def committed(self) -> dict[bytes, Version | None]:
        """Return the version in the last commit of each file that differs from it; None if it has none.

        :raises GitError: if there is no commit
        """
        tree = self.objects.last_tree()
        entries = self._raw("diff-index", "--raw", "-z", "--abbrev=64", "--ignore-submodules=all", tree)
        return {path: version for path, version, _ in entries}

    def _git(
        self,
        *command: str | bytes,
        data: Sequence[bytes] | None = None,
        raw: bytes = b"",
        good: Sequence[int] = (0,),
    ) -> bytes:
        if data is not None:
            raw = b"".join(path + b"\0" for path in data)
        options = (*EXACT, *self._settings, *place(self.directory, self.top))
        # The attributes of this repository of ours turn all filters off.
        return self._program.run(command, self.top, raw, good, options, runs_filters=True)

    def _stored(self, *command: str | bytes) -> bytes:
        """Return git's output about the index; the work tree need not exist."""
        return self._program.run(command, self.directory, options=(*EXACT, *place(self.directory, self.directory)))


def raw_entries(output: bytes) -> Iterator[tuple[bytes, Version | None, bool]]:
    """Yield the path of each entry of a raw difference, its left side, and whether the right side exists."""
    fields = items(output)
    for head, path in zip(fields[::2], fields[1::2], strict=True):
        old_mode, _, digest, _, status = os.fsdecode(head).lstrip(":").split(" ")
        if old_mode != _GITLINK:
            mode = _MODES.get(old_mode)
            yield path, None if mode is None else Version(digest, mode), status != "D"


def _copy_index(source: str, target: str) -> None:
    """Copy the index `source`, a regular file of a plausible size, to `target`.

    :raises OSError: if it cannot be copied
    """
    descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_INDEX_BYTES:
            raise OSError(errno.EFBIG, "It is no index of a usual size", source)
        write_private(target, file.read(MAX_INDEX_BYTES))
    # With its time: an entry as new as the index is not trusted.
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
