# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a root at a place, for the journal: changes there and their bytes, in one request to the relay.

The relay identifies bytes by git's digests and remembers what it has sent.  Its answers are checked: names are below
the root, bytes match their digests, and limits are those of a local root.
"""

from __future__ import annotations

import errno
import math
import os
import re
import stat
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from qwen_companion.base.file_names import FileNameError, file_name
from qwen_companion.base.threads import on_event_loop
from qwen_companion.domain import Peer, PlacedFile
from qwen_companion.files.repository import Repository
from qwen_companion.files.rules import RecordRules
from qwen_companion.files.stamps import Status
from qwen_companion.files.table import Change, Look, Table
from qwen_companion.files.versions import LINK, MAX_FILE_BYTES, Loaded, TooLargeError, Version, digest_of
from qwen_companion.journal.activity import Work
from qwen_companion.journal.baselines import MAX_FILES, Baseline, Begun, Scan, check_limits, read_scan
from qwen_companion.journal.contents import Contents
from qwen_companion.journal.root import now_ms
from qwen_companion.journal.sites import Changed
from qwen_companion.journal.staging import OthersStagedError, StagingError
from qwen_companion.journal.store import Store
from qwen_companion.journal.tree_watch import Coverage
from qwen_companion.privacy import options
from qwen_companion.privacy.ignore_files import IgnoreFile, ignore_files
from qwen_companion.privacy.options import Options, UserRules
from qwen_companion.remote.context import NoLinks, rules_of
from qwen_companion.remote.link import Link, LinkError, RequestError, UncertainError, number, objects, read_look

_AT_ONCE = 5000
"""Most files or digests in one request."""

T = TypeVar("T")

_DIGEST = re.compile("[0-9a-f]{40}")


class _FarRules(RecordRules):
    """The rules of a root at a place; `set_texts` updates them."""

    def __init__(self, root: PlacedFile, home: str) -> None:
        self._there = root.path
        self._home = home
        self._options = Options()
        super().__init__(root.name, {})

    def set_options(self, options: Options, hidden: Iterable[str]) -> None:
        self._options = options
        self._hidden = frozenset(hidden)

    def refresh(self) -> None:
        self._spellings = (self._there,)
        self._files = []
        self._settled = ()

    def set_texts(self, texts: Sequence[Mapping[str, Any]]) -> None:
        """Set the `texts` of the ignore files there."""
        self._own.clear()
        settled = UserRules(self._options, {"HOME": self._home}).settle(NoLinks())
        self._settled = options.within(settled, self._spellings)
        files = (rules_of(file, found) for file, found in zip(self.ignore_files, texts, strict=False))
        self._files = [file for file in files if file.patterns is not None or file.problem is not None]

    @property
    def ignore_files(self) -> list[IgnoreFile]:
        """The ignore files of CLIs, whether they exist or not."""
        return list(ignore_files([self._spellings]))


@dataclass(frozen=True)
class _Status:
    """The status of a file there, see `Status`; the relay compares sizes and times of writes."""

    st_ino: int
    st_mode: int
    st_ctime_ns: int
    st_mtime_ns: int = 0
    st_size: int = 0
    st_nlink: int = 1


@dataclass(frozen=True)
class _Entry:
    """A file there: `version` is None if it cannot be recorded because of `problem`.

    `changed` is its change time in ms by the clock there, 0 if unknown, and `created` that of its creation in ns.
    `kept` means that git there has its bytes.
    """

    version: Version | None
    status: _Status
    changed: float
    created: int
    kept: bool
    ignored: bool
    problem: str


class FarSite:
    """The site of `root` at a place, see `Site`.  Methods that wait for the relay are for threads."""

    def __init__(self, root: PlacedFile, home: str, link: Callable[[], Link]) -> None:
        """`home` is the home directory there; `link` returns the pipe to the place, or raises LinkError."""
        self._root = root
        self._link = link
        self.true = root.name
        self.home = PlacedFile(root.place, home).name
        """Emacs's name of the home directory."""
        self.rules = _FarRules(root, home)
        self.complete = False
        """Whether the relay reports each change."""
        self.times: Mapping[bytes, float] = {}
        """The change times of the files found by the last scan, in ms by the clock there."""
        self.loaded: dict[bytes, float] = {}
        """The change times of the files read since that scan."""
        self._changed: Changed | None = None
        self._ahead = 0.0
        """Milliseconds that the clock there is ahead of ours."""

    def true_directory(self, directory: str) -> str:
        """See `Site`.  Links there are not followed: a file behind one has no other name in the record."""
        return directory

    def files(self, directory: str, store: Store) -> Baseline:
        """See `Site`."""
        return Baseline(FarFiles(self, store.contents), self.true, store, self.rules)

    def there(self, name: str) -> str:
        """See `Site`."""
        return name.removeprefix(self._root.place)

    def stamp(self, path: bytes) -> tuple[int, int] | None:
        """See `Site`: the change time, as it was found or read last."""
        time = self.times.get(path) or self.loaded.get(path)
        return (0, int(1000 * time)) if time else None

    def changed_at(self, path: bytes) -> float:
        """See `Site`: a file that no scan found may have changed just now."""
        time = self.times.get(path)
        return (time - self._ahead) / 1000 if time else math.inf

    def work_of(self, peer: Peer) -> Work:
        """See `Site`."""
        found: Mapping[str, Any] = {}
        if peer.ancestors:
            with suppress(OSError):
                found, _ = self.ask("work", pid=peer.ancestors[0])
        typed = number(found.get("typed"))
        return Work(int(number(found.get("written"))) if found else None, int(typed - self._ahead) if typed else None)

    def watch(self, changed: Changed) -> FarSite:
        """See `Site`."""
        self._changed = changed
        return self

    async def cover(self, _directories: Collection[bytes]) -> Coverage:
        """Make the next scan start to watch the directories there; see `TreeWatch`."""
        return Coverage(self.complete, grown=False)

    def read(self) -> bool:
        """See `TreeWatch`: changes arrive unasked."""
        return False

    def close(self) -> None:
        """Stop watching, from the next scan on."""
        self._changed = None

    def stir(self) -> None:
        """Report that something has changed there."""
        if self._changed is not None:
            self._changed(None)

    # --- Requests, in a thread

    def name(self, path: str) -> bytes:
        """Return the record's name of `path`, which is relative to the root."""
        return os.fsencode(f"{self.true.rstrip('/')}/{path}")

    def path(self, name: bytes) -> str:
        """Return the path, relative to the root, of `name` in the record."""
        return os.fsdecode(name)[len(self.true.rstrip("/")) + 1 :]

    def ask(self, request: str, **values: Any) -> tuple[dict[str, Any], bytes]:
        """Return the relay's answer to `request`.

        :raises OSError: when there is none
        """
        return self._wait(lambda link: link.ask(request, root=self._root.path, **values))

    def scan(self, since: int, skip: Sequence[str]) -> tuple[dict[str, Any], bytes]:
        """Return the relay's answer to a scan of all files, with the current rules.

        :raises OSError: when there is none
        """
        files = [file.path for file in self.rules.ignore_files]
        found, data = self.ask("tree", since=since, skip=list(skip), files=files, watch=self._changed is not None)
        self.rules.set_texts(objects(found.get("texts")))
        self.complete = found.get("complete") is True
        self._ahead = number(found.get("time")) - now_ms()
        return found, data

    def write(self, path: bytes, expected: str | None, data: bytes | None, mode: int, since: int | None) -> None:
        """See `Site`.

        :raises OSError: when that fails
        """
        self._change(
            "replace",
            data=data or b"",
            file=self.path(path),
            expected=expected,
            remove=data is None,
            mode=mode & 0o777,
            link=mode == LINK,
            since=None if since is None else since + self._ahead,
        )

    def stage(self, patch: bytes, onto_staged: bool) -> int:
        """See `Site`."""
        try:
            found, _ = self._change("stage", data=patch, onto=onto_staged)
        except OSError as error:
            raise StagingError(error.strerror) from None
        if (others := int(number(found.get("others")))) > 0:
            raise OthersStagedError(others)
        return int(number(found.get("staged")))

    def large(self, path: str) -> bytes:
        """Return the bytes of the file `path`, relative to the root.

        :raises OSError: when it cannot be read
        """
        return self._wait(lambda link: link.read(f"{self._root.path.rstrip('/')}/{path}", MAX_FILE_BYTES))[0]

    def _change(self, request: str, **values: Any) -> tuple[dict[str, Any], bytes]:
        """Send a request that changes something, as `ask` does.

        :raises OSError: when there is no answer
        """
        try:
            return self.ask(request, **values)
        except TimeoutError as error:
            reason = f"{error.strerror}, and it may have been done; do the same again to find out"
            raise TimeoutError(errno.ETIMEDOUT, reason) from None

    def _wait(self, work: Callable[[Link], Coroutine[Any, Any, T]]) -> T:
        try:
            return on_event_loop(lambda: work(self._link()))
        except UncertainError as error:
            raise TimeoutError(errno.ETIMEDOUT, str(error)) from None
        except (LinkError, RequestError) as error:
            raise OSError(errno.EIO, str(error)) from None


class FarFiles:
    """The files below the root of a site; for its methods see `LocalFiles`."""

    def __init__(self, site: FarSite, contents: Contents) -> None:
        """Store bytes in `contents`."""
        self._site = site
        self._contents = contents
        self._since = self._told = 0
        """The numbers of the relay's last recorded answer, and of its last one."""
        self._entries: dict[bytes, _Entry] = {}
        """The files that the last scan has found."""
        self._blobs: dict[str, bytes] = {}
        """The bytes that came with the first scan."""
        self._loaded: dict[bytes, _Entry] = {}
        """The files that were read since the last scan."""
        self._ignored: set[bytes] = set()
        scan = read_scan(contents)
        self._hidden: Set[bytes] = frozenset() if scan is None else scan.hidden

    @property
    def repositories(self) -> Mapping[str, Repository]:
        """See `LocalFiles`: they are there."""
        return {}

    def look(self, table: Table, last: Scan | None, others: Collection[bytes]) -> Look:
        """See `LocalFiles`.

        :raises OSError: when there is no answer
        """
        since, self._since = self._since, 0
        hidden = frozenset[bytes]() if last is None else last.hidden
        answer, data = self._site.scan(since, [self._site.path(name) for name in hidden])
        self._entries = entries = self._all_entries(answer)
        gone = self._gone(answer, entries, table)
        if asked := sorted({name for name in others if name not in entries} - gone):
            found = {name: entry for name, entry, _ in self._fetch(asked)}
            entries.update(found)
            gone.update(name for name in asked if name not in found)
        look = Look(_ns(answer.get("time")), last is None)
        look.changed.update((name, entry.status) for name, entry in entries.items())
        look.failed.update({name: TooLargeError(each.problem) for name, each in entries.items() if not each.version})
        look.created.update((name, entry.created) for name, entry in entries.items())
        look.missing |= gone
        look.gone |= {name for name in gone if name in table}
        self._hidden = look.hidden
        look.hidden |= hidden - entries.keys() - gone
        if number(answer.get("odd")) > 0:
            look.left_out.append("files whose names are not UTF-8")
        self._site.times = {name: entry.changed for name, entry in entries.items()}
        self._site.loaded.clear()
        blobs = dict(_blobs(answer, data))
        self._blobs = blobs if last is None else {}
        self._contents.put(() if last is None else blobs.items())
        self._told = int(number(answer.get("told")))
        return look

    def done(self) -> None:
        """See `LocalFiles`."""
        self._since = self._told
        self._entries, self._blobs, self._loaded, self._site.times = {}, {}, {}, {}

    def begin(self, look: Look, names: Sequence[bytes]) -> Iterator[Begun]:
        """See `LocalFiles`; a part of the bytes has come with the answer."""
        check_limits(len(names), 0)
        for name in look.failed.keys() & set(names):
            look.leave_out(name, look.failed[name])
        entries = {name: self._entries[name] for name in names if name not in look.failed}
        missing: list[bytes] = []
        for name, entry in entries.items():
            if entry.version is not None and (entry.kept or entry.version.digest in self._blobs):
                yield name, entry.version, None if entry.kept else self._blobs[entry.version.digest]
            else:
                missing.append(name)
        total = 0
        for name, entry, data in self._fetch(missing):
            total += len(data)
            check_limits(0, total)
            if entry.version is not None:
                yield name, entry.version, data

    def read(self, name: bytes, before: Version | None) -> Version | None:
        """See `LocalFiles`: the relay has told the digest."""
        return self._entries[name].version

    def keep(self, changes: Sequence[Change], sparingly: bool) -> set[bytes]:
        """See `LocalFiles`."""
        digests = {change.before.digest for change in changes if change.before is not None}
        self._contents.put(self.fetch(digests).items())
        lacking = set(self._contents.lacking(change.after.digest for change in changes if change.after is not None))
        names = [change.path for change in changes if change.after is not None and change.after.digest in lacking]
        for _, entry, data in self._fetch(names):
            if entry.version is not None:
                self._contents.put([(entry.version.digest, data)])
        left = set(self._contents.lacking(lacking))
        return {change.path for change in changes if change.after is not None and change.after.digest in left}

    def status(self, path: bytes) -> tuple[Status | None, int]:
        """See `LocalFiles`: as the file was read last."""
        entry = self._loaded.get(path)
        return (None, 0) if entry is None else (entry.status, entry.created)

    def lists(self, path: bytes) -> bool:
        """See `LocalFiles`."""
        return path not in self._ignored

    def records(self, paths: Sequence[bytes], table: Table) -> bool:
        """See `LocalFiles`."""
        if not self._hidden.isdisjoint(paths):
            return False
        found = {name: entry for name, entry, _ in self._fetch(paths)}
        if any(entry.version is None or entry.ignored for entry in found.values()):
            return False
        made = [self._site.there(os.fsdecode(name)) for name in paths if name not in found]
        looks = (
            [read_look(value) for value in objects(self._site.ask("check", paths=made)[0].get("files"))] if made else []
        )
        # A missing file counts if it would be recorded.
        return len(looks) == len(made) and all(
            look and not (look.repository and look.ignored is not False) for look in looks
        )

    def load(self, name: bytes) -> Loaded | None:
        """See `LocalFiles`.

        :raises TooLargeError: for a file too large to record
        :raises OSError: where it cannot be read
        """
        for _, entry, data in self._fetch([name]):
            (self._ignored.add if entry.ignored else self._ignored.discard)(name)
            self._site.loaded[name] = entry.changed
            self._loaded[name] = entry
            if entry.version is not None:
                return Loaded(entry.version, data)
            if entry.problem.startswith("larger"):
                raise TooLargeError(entry.problem)
            raise OSError(errno.EIO, entry.problem)
        return None

    def directories(self, table: Table) -> set[bytes]:
        """See `LocalFiles`: the relay has them."""
        return set()

    def fetch(self, digests: Iterable[str]) -> dict[str, bytes]:
        """See `LocalFiles`."""
        found: dict[str, bytes] = {}
        lacking = self._contents.lacking(digests)
        with suppress(OSError):
            while lacking:
                answer, data = self._site.ask("fetch", names=[], digests=lacking[:_AT_ONCE])
                got = dict(_blobs(answer, data))
                found.update(got)
                lacking = [digest for digest in lacking if digest not in got] if got else []
        return found

    def committed(self) -> dict[bytes, Version]:
        """See `LocalFiles`.

        :raises OSError: always
        """
        raise OSError(errno.ENOSYS, "the changes since the last commit are not looked at there")

    # --- What the relay says

    def _all_entries(self, answer: Mapping[str, Any]) -> dict[bytes, _Entry]:
        """Return the files in `answer` and its continuations."""
        found = dict(self._read_entries(answer.get("files")))
        while answer.get("more") is True and len(found) <= MAX_FILES:
            answer, _ = self._site.ask("rest")
            found.update(self._read_entries(answer.get("files")))
        return found

    def _read_entries(self, values: object) -> Iterator[tuple[bytes, _Entry]]:
        for value in objects(values):
            name = self._read_name(value.get("name"))
            if name is not None:
                yield name, _entry(value)

    def _read_name(self, value: object) -> bytes | None:
        """Return the record's name of the file `value`; None if it is not below the root."""
        with suppress(FileNameError):
            path = file_name(value, "/")[1:] if isinstance(value, str) and not value.startswith("/") else ""
            if path and os.path.normpath(path) == path and not {"..", ".git"} & set(path.split("/")):
                return self._site.name(path)
        return None

    def _gone(self, answer: Mapping[str, Any], entries: Collection[bytes], table: Table) -> set[bytes]:
        """Return the removed files."""
        if answer.get("full") is True:
            return {name for name in table if name not in entries}
        names = (self._read_name(path) for path, _ in _pairs(answer.get("gone")))
        return {name for name in names if name is not None}

    def _fetch(self, names: Sequence[bytes]) -> Iterator[tuple[bytes, _Entry, bytes]]:
        """Yield the existing ones of the files `names`, with their bytes."""
        left = [self._site.path(name) for name in names]
        while left:
            answer, data = self._site.ask("fetch", names=left[:_AT_ONCE], digests=[])
            blobs = dict(_blobs(answer, data))
            done = answer.get("done")
            if not isinstance(done, int) or done < 1:
                raise OSError(errno.EIO, "the relay's answer is not understood")
            asked = set(left[:done])
            left = left[done:]
            for name, entry in self._read_entries(answer.get("files")):
                path = self._site.path(name)
                if path not in asked or entry.version is None:
                    yield name, entry, b""
                    continue
                text = blobs.get(entry.version.digest)
                if text is None:
                    text = self._site.large(path)
                    entry = replace(entry, version=Version(digest_of(text), entry.version.mode), kept=False)
                yield name, entry, text


def _entry(value: Mapping[str, Any]) -> _Entry:
    inode, digest = value.get("ino"), value.get("digest")
    mode = int(number(value.get("mode")))
    version = None
    if mode > 0 and isinstance(digest, str) and _DIGEST.fullmatch(digest):
        version = Version(digest, LINK if stat.S_ISLNK(mode & 0xFFFF) else stat.S_IFREG | mode & 0o777)
    problem = "".join(c for c in str(value.get("error") or "it cannot be read")[:100] if c.isprintable())
    status = _Status(
        inode if isinstance(inode, int) and 0 <= inode < 2**64 else 0,
        mode & 0xFFFF if mode > 0 else 0,
        _ns(value.get("changed")),
    )
    return _Entry(
        version,
        status,
        number(value.get("changed")),
        _ns(value.get("born")),
        value.get("kept") is True,
        value.get("ignored") is True,
        problem,
    )


def _ns(value: object) -> int:
    """Return the time `value`, in ms from the relay, in ns."""
    return int(min(max(number(value), 0.0) * 1e6, 2.0**62))


def _blobs(answer: Mapping[str, Any], data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the bytes that came with `answer`, with their digests."""
    start = 0
    for digest, size in _pairs(answer.get("blobs")):
        text = data[start : start + max(0, size)]
        start += len(text)
        if digest == digest_of(text):
            yield digest, text


def _pairs(value: object) -> Iterator[tuple[str, int]]:
    """Yield the pairs of a text and a number in `value`, a list from the relay."""
    for item in cast("list[object]", value) if isinstance(value, list) else []:
        parts = cast("list[object]", item) if isinstance(item, list) else []
        if len(parts) == 2 and isinstance(parts[0], str) and isinstance(parts[1], int):
            yield parts[0], parts[1]
