# SPDX-License-Identifier: GPL-3.0-or-later
"""Git as a list of files that notices changes: an index of our own over a directory of the user's.

Git gives paths, ignore rules and the cache of file stamps.  It stores nothing: with `--info-only` an index takes the
digest of a file and no copy, so neither filters nor line ends can change what is recorded.  The user's repository is
read and never written: its index is copied, and its objects are only looked up.
"""

from __future__ import annotations

import errno
import math
import os
import re
import shutil
import signal
import stat
import subprocess
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise

import psutil

from qwen_companion.errors import CompanionError
from qwen_companion.frozen import frozen
from qwen_companion.journal.versions import EXECUTABLE, FILE, LINK, Version
from qwen_companion.privacy.disk import is_odd, read_start
from qwen_companion.privacy.verdicts import printable

TIMEOUT_S = 60.0
"""How long one process may take: the first list of a large directory on a cold disk."""

# Like those of `privacy.git`: nothing of a repository's runs, no network is reached, nothing of it is written.
_OPTIONS = (
    *("--no-pager", "--literal-pathspecs", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}"),
    *("-c", "core.untrackedCache=false", "-c", "core.splitIndex=false", "-c", "core.trustctime=true"),
    *("-c", "core.checkStat=default", "-c", "advice.addEmbeddedRepo=false", "-c", "index.sparse=false"),
    *("-c", "core.sparseCheckout=false", "-c", "core.safecrlf=false", "-c", "core.autocrlf=false"),
)
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}

_COPIED = ("core.filemode", "core.ignorecase", "core.precomposeunicode", "core.symlinks", "core.excludesfile")
"""Settings of the user's repository that decide about names and modes of files."""

STALL_S = 5.0
"""How long a git that neither computes nor waits for a disk is waited for: it reads a pipe, or waits for another.

It is looked at twice in that time.

A limit of 5 s for all would give up the first list of a large directory on a cold disk.
"""

RETRY_S = 60.0
"""How long no git is asked about a directory after one has stalled there."""

MAX_INDEX_BYTES = 64 * 1024 * 1024
"""Largest index of the user's that is copied; one of as many files as are recorded has a third of that."""

_NO_CONVERSION = b"* -text -eol -crlf -filter -ident -working-tree-encoding\n"

_CONVERTS = re.compile(rb"(?<![-!\w])(?:text|eol|crlf|filter|ident|working-tree-encoding)\b")

_STAMPS = re.compile(rb"([^\0]+)\0  ctime: .*\n  mtime: .*\n  dev: .*\tino: (\d+)\n  uid: .*\n  size: .*\n")
"""An entry with what the index has of the file's status."""

_GITLINK = "160000"
_MODES = {"100644": FILE, "100755": EXECUTABLE, "120000": LINK}


class GitError(CompanionError):
    """Git gave no answer; the text says why."""


@frozen
class Repository:
    """A repository of the user's: its work tree `top`, its own directory and the one that worktrees share."""

    top: str
    directory: str
    common: str


@frozen
class Listing:
    """Differences from the index: `changed` with the index's entries, and `unknown` paths, relative to the top.

    `nested` are directories with a repository of their own.  `ignored` are files, and directories for all in them.
    """

    changed: dict[bytes, Version | None]
    unknown: list[bytes]
    nested: list[bytes]
    ignored: list[bytes]


def find_repository(directory: str) -> Repository | None:
    """Return the repository whose work tree `directory`, a true name, is in."""
    top: str = directory
    while not os.path.lexists(os.path.join(top, ".git")):
        if top == "/":
            return None
        top = os.path.dirname(top)
    mark = os.path.join(top, ".git")
    named = _line(mark).removeprefix("gitdir:").strip()
    own = os.path.normpath(os.path.join(top, named)) if named else mark
    if not os.path.isfile(os.path.join(own, "HEAD")):
        return None
    return Repository(top, own, os.path.normpath(os.path.join(own, _line(os.path.join(own, "commondir")))))


def _line(path: str) -> str:
    try:
        return os.fsdecode(read_start(path, 4096)).strip()
    except (OSError, ValueError):
        return ""


class Index:
    """An index of ours in a directory of its own, over the files below `scope`.  All methods wait for git."""

    def __init__(self, directory: str, scope: str, environ: Mapping[str, str], repository: Repository | None) -> None:
        """`scope` is the true name of a directory, in the user's `repository` or in none."""
        self.directory = directory
        self.repository = repository
        self.top = self.repository.top if self.repository else scope
        self.prefix = os.fsencode(self.top).rstrip(b"/") + b"/"
        below = os.fsencode(os.path.relpath(scope, self.top))
        self._pathspec = [] if below == b"." else [below]
        path = os.pathsep.join(
            part for part in environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(part)
        )
        self._program = shutil.which("git", path=path)
        kept = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
        settings = {name: value for name, value in environ.items() if name.startswith("GIT_CONFIG_")}
        self._environ = {**kept, **settings, **_ENVIRONMENT}
        self._settings: tuple[str, ...] = ()
        self._users: dict[str, str] = {}
        self.algorithm = "sha1"
        self._stalled_at = -math.inf
        self._known_entries: dict[bytes, Version | None] = {}
        """The results of `entry`, valid for one state of the index."""
        self._known_state: tuple[int, int] | None = None
        """That state: inode and time of change of the index file; None while there is no such file."""

    # --- Making it ---

    def open(self) -> None:
        """Make the directory ready, with the index as it was left.

        :raises GitError, OSError: when that fails
        """
        self._check_rule_files()
        settings = self._read_settings()
        self.algorithm = settings.pop("extensions.objectformat", "sha1")
        self._settings = tuple(
            part for name in _COPIED if name in settings for part in ("-c", f"{name}={settings[name]}")
        )
        if not os.path.isfile(os.path.join(self.directory, "HEAD")):
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            options = ["--object-format=sha256"] if self.algorithm == "sha256" else []
            # No template: it may bring hooks and rules.
            self._call(["init", "--quiet", "--bare", "--template=", *options, self.directory], cwd=self.directory)
            os.makedirs(os.path.join(self.directory, "info"), mode=0o700, exist_ok=True)
            write_private(os.path.join(self.directory, "info", "attributes"), _NO_CONVERSION)
        # A process that was killed leaves it.
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self.directory, "index.lock"))

    def clear(self) -> None:
        """Begin with no file."""
        self._git("read-tree", "--empty")

    def copy_users_index(self) -> bool:
        """Begin with the user's index, if all it says of unchanged files holds for their bytes; else with none.

        Return whether it could be taken.
        """
        repository = self.repository
        target = os.path.join(self.directory, "index")
        with suppress(FileNotFoundError):
            os.unlink(target)
        if repository is None or self._converts(repository):
            return False
        source = os.path.join(repository.directory, "index")
        try:
            _copy_index(source, target)
            if self.converts(self._drop_flags()):
                os.unlink(target)
                return False
        except (OSError, GitError):
            with suppress(FileNotFoundError):
                os.unlink(target)
            return False
        return True

    def _check_rule_files(self) -> None:
        """Check that git can read its files of rules.

        :raises GitError: for a pipe, where it would wait, and for a device without end
        """
        files = [os.path.join(self.top, name) for name in (".gitignore", ".gitattributes")]
        if self.repository is not None:
            names = ("config", "config.worktree", "info/exclude", "info/attributes", "packed-refs")
            files += [os.path.join(self.repository.common, name) for name in names]
            files += [os.path.join(self.repository.directory, "index")]
        if "core.excludesfile" in self._users:
            files.append(os.path.join(self.top, self._users["core.excludesfile"]))
        odd = next(filter(is_odd, files), None)
        if odd is not None:
            raise GitError(f"{printable(odd)} is not a regular file")

    def _read_settings(self) -> dict[str, str]:
        if self.repository is None or not os.path.isdir(self.repository.directory):
            return {}
        names = (*(name.partition(".")[2] for name in _COPIED), "autocrlf", "eol", "attributesfile")
        pattern = rf"^(core\.({'|'.join(names)})|extensions\.objectformat)$"
        own = self.repository.directory
        # The work tree that it names need not be there.
        command = [f"--git-dir={own}", f"--work-tree={own}", "config", "-z", "--get-regexp", pattern]
        # Without our own settings, which would be found in place of the user's.
        output = self._call(command, cwd=own, good=(0, 1), options=())
        found: dict[str, str] = {}
        for entry in output.split(b"\0"):
            name, _, value = os.fsdecode(entry).partition("\n")
            found[name] = value
        if found.get("core.excludesfile", "").startswith("~"):
            found["core.excludesfile"] = os.path.expanduser(found["core.excludesfile"])
        self._users = found
        self._check_rule_files()
        return dict(found)

    def _converts(self, repository: Repository) -> bool:
        """Return whether git's settings may give files other bytes than their blobs have."""
        if self._users.get("core.autocrlf", "false").lower() not in ("false", "no", "off", "0"):
            return True
        home = self._environ.get("XDG_CONFIG_HOME") or os.path.join(self._environ.get("HOME", "/"), ".config")
        files = [
            os.path.join(repository.common, "info", "attributes"),
            os.path.expanduser(self._users.get("core.attributesfile", os.path.join(home, "git", "attributes"))),
            "/etc/gitattributes",
        ]
        return any(_file_converts(file) for file in files)

    def converts(self, paths: Iterable[bytes]) -> bool:
        """Return whether the files of attributes in `paths` may give files other bytes than their blobs have."""
        names = (path for path in paths if path.endswith(b".gitattributes"))
        return any(_file_converts(self.prefix + name) for name in names)

    def _drop_flags(self) -> list[bytes]:
        """Make the copied index tell of each file, and hold no other repository; return its paths."""
        paths: list[bytes] = []
        unchanged: list[bytes] = []
        gone: list[bytes] = []
        for line in _items(self._git("ls-files", "-z", "-v", "-s")):
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
        """Ignore files by `rules`, lines of the gitignore format, beside those that git ignores here."""
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
        self._check_rule_files()
        # First: of rules that change just now, a file may be ignored and unknown, but must not be neither.
        ignored = self._ignored()
        changed: dict[bytes, Version | None] = {}
        for path, mode, digest in self._raw("diff-files", "--raw", "-z", "--abbrev=64", "--ignore-submodules=all"):
            changed[path] = None if mode is None else Version(digest, mode)
        unknown: list[bytes] = []
        nested: list[bytes] = []
        for path in _items(self._git("ls-files", "-z", "--others", "--exclude-standard", "--", *self._pathspec)):
            if path.endswith(b"/"):
                nested.append(path[:-1])
            else:
                unknown.append(path)
        for path in self._replaced_by(unknown) if unknown else ():
            # It was there yet when the changes were listed, and `update` would drop it.
            changed.setdefault(path, self.entry(path))
        return Listing(changed, unknown, nested, ignored)

    def _replaced_by(self, paths: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the files in the index that are where `paths` have directories, or in directories where they are."""
        known = _items(self._git("ls-files", "-z", "--", *self._pathspec))
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
        found = _items(self._git("ls-files", *options, "--", *self._pathspec))
        # A directory that is listed for its contents only comes right before them.
        return [
            path.rstrip(b"/")
            for path, following in pairwise([*found, b""])
            if not (path.endswith(b"/") and following.startswith(path))
        ]

    def _raw(self, *command: str) -> Iterator[tuple[bytes, int | None, str]]:
        """Yield the path, and the mode and digest on the left side, of each entry of a raw difference."""
        fields = _items(self._git(*command, "--", *self._pathspec))
        for head, path in zip(fields[::2], fields[1::2], strict=True):
            old_mode, _, digest, _, _ = os.fsdecode(head).lstrip(":").split(" ")
            if old_mode != _GITLINK:
                yield path, _MODES.get(old_mode), digest

    def update(self, paths: Sequence[bytes]) -> None:
        """Take `paths` into the index as they are on the disk, or out of it."""
        if paths:
            self._git("update-index", "--info-only", "--add", "--remove", "--replace", "-z", "--stdin", data=paths)

    def drop(self, paths: Sequence[bytes]) -> None:
        """Take `paths` out of the index, there or not."""
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

    def lists(self, *paths: bytes) -> bool:
        """Return whether each of `paths` is in the index, or lies on the disk and is not ignored."""
        options = ("-z", "--cached", "--others", "--exclude-standard")
        return set(paths) <= set(_items(self._git("ls-files", *options, "--", *paths)))

    def ignores(self, *paths: bytes) -> bool:
        """Return whether any of `paths`, which need not be there, is ignored.

        :raises GitError: for one behind a link
        """
        names = b"".join(b"./" + path + b"\0" for path in paths)
        place = [f"--git-dir={self.directory}", f"--work-tree={self.top}"]
        # This command takes no pathspecs, and says so; status 1 says that none is.
        options = [option for option in _OPTIONS if option != "--literal-pathspecs"]
        command = [*self._settings, *place, "check-ignore", "-z", "--stdin"]
        return bool(self._call(command, cwd=self.top, data=names, good=(0, 1), options=options))

    def directories(self) -> set[bytes]:
        """Return the absolute names of the directories that files are in which are not ignored, and of those above."""
        scope = os.path.join(self.prefix, *self._pathspec).rstrip(b"/")
        found = {scope}
        options = ("-z", "--cached", "--others", "--exclude-standard")
        for path in _items(self._git("ls-files", *options, "--", *self._pathspec)):
            directory = os.path.dirname(self.prefix + path)
            while directory not in found and len(directory) > len(scope):
                found.add(directory)
                directory = os.path.dirname(directory)
        return found

    def entries(self) -> Iterator[tuple[bytes, Version]]:
        """Return all files in the index."""
        yield from self._entries(*self._pathspec)

    def differing(self, versions: Mapping[bytes, Version]) -> list[bytes]:
        """Return the paths of `versions` for which the index has another version, or none."""
        if not versions:
            return []
        entries = set(_items(self._git("ls-files", "-z", "-s", "--", *self._pathspec)))
        return [
            path
            for path, version in versions.items()
            if b"%o %b 0\t%b" % (version.mode, version.digest.encode(), path) not in entries
        ]

    def moved(self) -> dict[bytes, int]:
        """Return the files in the index that have gone, or have another name by now, with their inodes."""
        entries = _STAMPS.findall(self._stored("ls-files", "-z", "--debug", "--", *self._pathspec))
        return {path: int(inode) for path, inode in entries if not os.path.lexists(self.prefix + path)}

    def _entries(self, *paths: bytes) -> Iterator[tuple[bytes, Version]]:
        for line in _items(self._stored("ls-files", "-z", "-s", "--", *paths)):
            entry, _, path = line.partition(b"\t")
            mode, digest, _ = os.fsdecode(entry).split(" ")
            if mode in _MODES:
                yield path, Version(digest, _MODES[mode])

    def unavailable(self, digests: Iterable[str]) -> set[str]:
        """Return those of `digests` that the user's repository has not."""
        wanted = list(dict.fromkeys(digests))
        if self.repository is None or not wanted:
            return set(wanted)
        data = "".join(f"{digest}\n" for digest in wanted).encode()
        output = self._stored("cat-file", "--batch-check=%(objectname) %(objecttype)", raw=data)
        return {line.split(" ")[0] for line in output.decode().splitlines() if line.endswith(" missing")}

    def stored_digests(self) -> set[str]:
        """Return the digests in the user's index whose blobs the user's repository has."""
        if self.repository is None:
            return set()
        place = [f"--git-dir={self.repository.directory}", f"--work-tree={self.top}"]
        output = self._call([*place, "ls-files", "-z", "-s", "--", *self._pathspec], cwd=self.top)
        digests = {line.split(b" ", 2)[1].decode() for line in _items(output)}
        # An entry can be made without a blob.
        return digests - self.unavailable(digests)

    def blobs(self, digests: Sequence[str]) -> dict[str, bytes]:
        """Return the bytes of those of `digests` that the user's repository has."""
        found: dict[str, bytes] = {}
        if self.repository is None or not digests:
            return found
        output = self._stored("cat-file", "--batch", raw="".join(f"{digest}\n" for digest in digests).encode())
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

    def committed(self) -> dict[bytes, Version | None]:
        """Return the version in the last commit of each file that differs from it; None where it has none.

        :raises GitError: where there is no commit
        """
        if self.repository is None:
            raise GitError("not in a git repository")
        place = [f"--git-dir={self.repository.directory}", f"--work-tree={self.top}"]
        tree = self._call([*place, "rev-parse", "--verify", "--quiet", "HEAD^{tree}"], cwd=self.top).decode().strip()
        entries = self._raw("diff-index", "--raw", "-z", "--abbrev=64", "--ignore-submodules=all", tree)
        return {path: None if mode is None else Version(digest, mode) for path, mode, digest in entries}

    # --- Running git ---

    def _git(self, *command: str | bytes, data: Sequence[bytes] | None = None, raw: bytes = b"") -> bytes:
        if data is not None:
            raw = b"".join(path + b"\0" for path in data)
        place = [f"--git-dir={self.directory}", f"--work-tree={self.top}"]
        return self._call([*self._settings, *place, *command], cwd=self.top, data=raw)

    def _stored(self, *command: str | bytes, raw: bytes = b"") -> bytes:
        """Run git on the index or on objects, and return its output; the work tree need not be there."""
        place = [f"--git-dir={self.directory}", f"--work-tree={self.directory}"]
        return self._call([*place, *command], cwd=self.directory, data=raw)

    def _call(
        self,
        command: Sequence[str | bytes],
        cwd: str,
        data: bytes = b"",
        good: Sequence[int] = (0,),
        options: Sequence[str] = _OPTIONS,
    ) -> bytes:
        """Return the output of git with `options`.

        :raises GitError: when it fails, with another status than `good`
        """
        if self._program is None:
            raise GitError("git is not installed")
        if time.monotonic() < self._stalled_at + RETRY_S:
            raise GitError(_STALLED)
        environ = dict(self._environ)
        if self.repository is not None:
            environ["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = os.path.join(self.repository.common, "objects")
        try:
            process = subprocess.Popen(  # noqa: S603 - the user's own git
                [self._program, *options, *command],
                cwd=cwd,
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                umask=0o077,
            )
        except OSError as error:
            raise GitError(error.strerror or str(error)) from None
        try:
            output, errors = _communicate(process, data)
        except subprocess.TimeoutExpired:
            self._stalled_at = time.monotonic()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise GitError(_STALLED) from None
        if process.returncode not in good:
            message = errors.decode("utf-8", "replace").strip().partition("\n")[0]
            raise GitError(message.removeprefix("fatal: ") or f"git ended with status {process.returncode}")
        return output


_STALLED = "git gives no answer; a file that it reads here may be a pipe"


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


def _copy_index(source: str, target: str) -> None:
    """Copy the index `source`, a regular file and no larger than one can be, to `target`.

    :raises OSError: when it cannot be copied
    """
    descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_INDEX_BYTES:
            raise OSError(errno.EFBIG, "It is no index of a usual size", source)
        write_private(target, file.read(MAX_INDEX_BYTES))
    # With its time: an entry as new as the index is not trusted.
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def write_private(path: str, data: bytes) -> None:
    """Write `data` to the file `path`, which only the user can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)


def _items(output: bytes) -> list[bytes]:
    return output.split(b"\0")[:-1]


def _file_converts(path: str | bytes) -> bool:
    """Return whether the file of attributes `path`, there or not, may have git change bytes."""
    try:
        lines = read_start(os.fsdecode(path), 1024 * 1024).splitlines()
    except OSError:
        return False
    return any(_CONVERTS.search(b" ".join(line.split(None, 1)[1:])) for line in lines if line[:1] != b"#")
