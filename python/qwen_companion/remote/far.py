# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a root at a place, for the journal: changes there and their bytes, in one request to the relay.

The relay identifies bytes by git's digests and remembers what it has sent.  Its answers are checked: names are below
the root, bytes match their digests, and limits are those of a local root.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar, cast

from qwen_companion.base.file_names import FileNameError, file_name
from qwen_companion.base.state import write_private
from qwen_companion.base.threads import on_event_loop
from qwen_companion.domain import Peer, PlacedFile
from qwen_companion.files.rules import RecordRules
from qwen_companion.files.versions import LINK, MAX_FILE_BYTES, Loaded, TooLargeError, Version, digest_of
from qwen_companion.journal.activity import Work
from qwen_companion.journal.baselines import (
    BATCH_BYTES,
    CHUNK,
    MAX_FILES,
    MAX_TOTAL_BYTES,
    Change,
    Found,
    Keep,
    LimitError,
    Skip,
    UnknownBeforeError,
)
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

_UNKNOWN = Version("", 0)


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
class _Entry:
    """A file there: `version` is None if it cannot be recorded because of `problem`.

    `born` and `changed` are its creation and change time in ms by the clock there, 0 if unknown.  `kept` means that git
    there has its bytes.
    """

    version: Version | None
    inode: int
    born: float
    changed: float
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
        """Those of files that were read since."""
        self._changed: Changed | None = None
        self._ahead = 0.0
        """How far the clock there is ahead of ours, in ms."""

    def true_directory(self, directory: str) -> str:
        """See `Site`.  Links there are not followed: a file behind one has no other name in the record."""
        return directory

    def files(self, directory: str, store: Store) -> FarFiles:
        """See `Site`."""
        return FarFiles(self, directory, store)

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
    """The files below the root of a site, see `Files`."""

    def __init__(self, site: FarSite, directory: str, store: Store) -> None:
        """Store in `directory` the state of the last scan."""
        self._site = site
        self._store = store
        self._contents = store.contents
        self._file = os.path.join(directory, "far-look")
        self._since = 0
        """The number of the relay's last recorded answer."""
        self._time: float | None = None
        """Its time, in ms by the clock there; None before the first scan."""
        self._hidden: set[bytes] = set()
        """Files left out of the last scan, whose contents are unknown."""
        self._seen: set[bytes] = set()
        """Files seen to be absent since the last scan."""
        self._ignored: set[bytes] = set()
        self._skipped: set[bytes] = set()
        with suppress(OSError, ValueError, TypeError):
            with open(self._file, "rb") as kept:
                time, hidden = json.load(kept)
            self._time, self._hidden = float(time), {os.fsencode(name) for name in hidden}

    @property
    def is_complete(self) -> bool:
        """See `Files`."""
        return self._time is not None

    def take(self, record: Keep, skip: Skip = lambda _path: False) -> Found:
        """See `Files`.

        :raises OSError, StoreError, LimitError: when that fails
        """
        found = Found()
        since, self._since = self._since, 0
        answer, data = self._site.scan(since, [self._site.path(name) for name in self._hidden])
        entries = self._entries(answer)
        gone = self._gone(answer, entries)
        if self._skipped:
            skipped = {name for name in self._skipped if name not in entries}
            now = {name: entry for name, entry, _ in self._fetch(sorted(skipped))}
            entries.update(now)
            gone.update((name, 0) for name in skipped - now.keys())
        self._site.times = {name: entry.changed for name, entry in entries.items()}
        self._site.loaded.clear()
        self._skipped = {name for name in (*entries, *gone) if skip(name)}
        rules = self._site.rules.excluded([*entries, *gone])
        before_hidden, self._hidden = self._hidden, self._hidden - entries.keys() - gone.keys()
        self._hidden |= rules
        for name, entry in entries.items():
            if entry.version is None and name not in rules:
                self._hidden.add(name)
                found.warn(name, TooLargeError(entry.problem))
        if number(answer.get("odd")) > 0:
            found.left_out.append("files whose names are not UTF-8")
        wanted = {
            name: entry
            for name, entry in entries.items()
            if entry.version is not None and name not in rules and name not in self._skipped
        }
        time = number(answer.get("time"))
        blobs = dict(_blobs(answer, data))
        if self._time is None:
            self._begin(wanted, blobs)
        else:
            self._contents.put(blobs.items())
            moved = {inode for inode in gone.values() if inode}
            names = [name for name in gone if name not in self._skipped]
            self._compare(wanted, names, moved, before_hidden, record, found)
        self._save(time)
        self._site.times = {}
        self._seen.clear()
        self._since = int(number(answer.get("told")))
        return found

    def _compare(
        self,
        entries: Mapping[bytes, _Entry],
        gone: Sequence[bytes],
        moved: Collection[int],
        hidden: Collection[bytes],
        record: Keep,
        found: Found,
    ) -> None:
        changes: list[Change] = []
        for name, entry in entries.items():
            before = self._contents.current(name, _UNKNOWN)
            known = name not in hidden
            if before is _UNKNOWN:
                known = known and (name in self._seen or self._is_new(entry) or entry.inode in moved)
                before = None
            if before != entry.version:
                changes.append(Change(name, before, entry.version, known))
                if not known:
                    found.warn(name, UnknownBeforeError())
        for name in gone:
            before = self._contents.current(name, None)
            if before is not None:
                changes.append(Change(name, before, None))
        lost = self._keep(changes)
        changes = [change for change in changes if change.path not in lost]
        for start in range(0, len(changes), CHUNK):
            record(changes[start : start + CHUNK])
        found.changes += [change for change in changes if change.known]
        # Rewritten since the report: the next scan has to report it again.
        self._skipped |= lost

    def _is_new(self, entry: _Entry) -> bool:
        return self._time is not None and entry.born >= self._time

    def _begin(self, entries: Mapping[bytes, _Entry], blobs: Mapping[str, bytes]) -> None:
        """Record the present files; store the bytes that the remote git lacks, in part from `blobs`."""
        if len(entries) > MAX_FILES:
            raise LimitError(f"it has {len(entries)} files, and {MAX_FILES} are the limit")
        self._contents.restart()
        versions = {name: entry.version for name, entry in entries.items()}
        lacking = set(self._contents.lacking(e.version.digest for e in entries.values() if e.version and not e.kept))
        wanted = [(name, its.digest) for name, its in versions.items() if its is not None and its.digest in lacking]
        here = ((name, entries[name], blobs[digest]) for name, digest in wanted if digest in blobs)
        missing = [name for name, digest in wanted if digest not in blobs]
        total = size = 0
        loaded: list[tuple[bytes, Loaded]] = []
        for name, entry, data in chain(here, self._fetch(missing)):
            versions[name] = entry.version
            if entry.version is not None:
                loaded.append((name, Loaded(entry.version, data)))
            total, size = total + len(data), size + len(data)
            if total > MAX_TOTAL_BYTES:
                raise LimitError(f"its files have more than {MAX_TOTAL_BYTES >> 20} MiB")
            if size > BATCH_BYTES:
                self._contents.begin_with(loaded)
                loaded, size = [], 0
        self._contents.begin_with(loaded)
        self._contents.set_current(versions.items())
        for path in self._store.written():
            last, now = self._store.writes(path)[-1].after, versions.get(path)
            if last != now:
                self._store.record([(path, last, now)], None, "", "")

    def _keep(self, changes: Sequence[Change]) -> set[bytes]:
        """Store the bytes before and after `changes`; return the files that changed again meanwhile."""
        digests = {change.before.digest for change in changes if change.before is not None}
        self._contents.put(self.fetch(digests).items())
        lacking = set(self._contents.lacking(change.after.digest for change in changes if change.after is not None))
        names = [change.path for change in changes if change.after is not None and change.after.digest in lacking]
        for _, entry, data in self._fetch(names):
            if entry.version is not None:
                self._contents.put([(entry.version.digest, data)])
        left = set(self._contents.lacking(lacking))
        return {change.path for change in changes if change.after is not None and change.after.digest in left}

    def observe(self, path: bytes, loaded: Loaded | None) -> Change | None:
        """See `Files`."""
        before = self._contents.current(path, _UNKNOWN)
        if before is _UNKNOWN:
            if path in self._ignored or self._site.rules.excluded([path]):
                return None
            if loaded is None:
                self._seen.add(path)
                return None
            before = None
        known = before is not None or (path in self._seen and path not in self._hidden)
        self._seen.add(path)
        self._skipped.discard(path)
        after = None if loaded is None else loaded.version
        if before == after:
            return None
        if loaded is not None:
            self._contents.put([(loaded.version.digest, loaded.data)])
        if before is not None:
            self._contents.put(self.fetch([before.digest]).items())
        return Change(path, before, after, known)

    def records(self, paths: Sequence[bytes]) -> bool:
        """See `Files`."""
        if self._time is None or self._site.rules.excluded(paths) or not self._hidden.isdisjoint(paths):
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
        """See `Files`.

        :raises TooLargeError: for a file too large to record
        :raises OSError: where it cannot be read
        """
        for _, entry, data in self._fetch([name]):
            (self._ignored.add if entry.ignored else self._ignored.discard)(name)
            self._site.loaded[name] = entry.changed
            if entry.version is not None:
                return Loaded(entry.version, data)
            if entry.problem.startswith("larger"):
                raise TooLargeError(entry.problem)
            raise OSError(errno.EIO, entry.problem)
        return None

    def directories(self) -> set[bytes]:
        """See `Files`: the relay has them."""
        return set()

    def text(self, digest: str) -> bytes | None:
        """See `Files`."""
        data = self._contents.get(digest)
        return self.fetch([digest]).get(digest) if data is None else data

    def fetch(self, digests: Iterable[str]) -> dict[str, bytes]:
        """See `Files`."""
        found: dict[str, bytes] = {}
        lacking = self._contents.lacking(digests)
        with suppress(OSError):
            while lacking:
                answer, data = self._site.ask("fetch", names=[], digests=lacking[:_AT_ONCE])
                got = dict(_blobs(answer, data))
                found.update(got)
                lacking = [digest for digest in lacking if digest not in got] if got else []
        return found

    def committed(self) -> dict[bytes, Version | None]:
        """See `Files`.

        :raises OSError: always
        """
        raise OSError(errno.ENOSYS, "the changes since the last commit are not looked at there")

    # --- What the relay says

    def _entries(self, answer: Mapping[str, Any]) -> dict[bytes, _Entry]:
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

    def _gone(self, answer: Mapping[str, Any], entries: Collection[bytes]) -> dict[bytes, int]:
        """Return the removed files with their inodes, as far as known."""
        if answer.get("full") is True:
            return {name: 0 for name in self._contents.recorded() if name not in entries}
        pairs = ((self._read_name(path), inode) for path, inode in _pairs(answer.get("gone")))
        return {name: inode for name, inode in pairs if name is not None}

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

    def _save(self, time: float) -> None:
        os.makedirs(os.path.dirname(self._file), mode=0o700, exist_ok=True)
        write_private(f"{self._file}.new", json.dumps([time, sorted(map(os.fsdecode, self._hidden))]).encode())
        os.replace(f"{self._file}.new", self._file)
        self._time = time


def _entry(value: Mapping[str, Any]) -> _Entry:
    inode, digest = value.get("ino"), value.get("digest")
    mode = int(number(value.get("mode")))
    version = None
    if mode > 0 and isinstance(digest, str) and len(digest) == 40 and digest.isalnum():
        version = Version(digest, LINK if stat.S_ISLNK(mode & 0xFFFF) else stat.S_IFREG | mode & 0o777)
    problem = "".join(c for c in str(value.get("error") or "it cannot be read")[:100] if c.isprintable())
    return _Entry(
        version,
        inode if isinstance(inode, int) else 0,
        number(value.get("born")),
        number(value.get("changed")),
        value.get("kept") is True,
        value.get("ignored") is True,
        problem,
    )


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
