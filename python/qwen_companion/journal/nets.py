# SPDX-License-Identifier: GPL-3.0-or-later
"""The net changes of files in turns, or since the last commit, with the texts that they need."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from qwen_companion.files.versions import Loaded, TooLargeError, Version, git_mode
from qwen_companion.journal.baselines import Baseline
from qwen_companion.journal.changes import MissingTextError, Net, moved, net_of
from qwen_companion.journal.store import Store, Write

_AT_ONCE = 50
"""Files whose texts are requested from git at once: starting it takes 3 ms, and all texts are in memory."""


class Nets:
    """The net changes of one root.  Its methods block on disk I/O, are thread-safe, and raise StoreError."""

    def __init__(self, store: Store, files: Baseline) -> None:
        """Read writes from `store`, and texts from `files`."""
        self._store = store
        self._files = files

    def net(
        self, path: bytes, turns: Collection[int], to_now: bool, fetched: Mapping[str, bytes] | None = None
    ) -> Net | None:
        """Return the net change of `turns` in `path`; None if a text is no longer available.

        `fetched` are the bytes of some digests.
        """
        writes = self._store.writes(path)
        if to_now and writes:
            with suppress(OSError, TooLargeError):
                now = self._files.load(path)
                version = None if now is None else now.version
                if version != writes[-1].after:
                    self._store.contents.put([] if now is None else [(now.version.digest, now.data)])
                    writes.append(Write(None, path, writes[-1].after, version))
        try:
            return net_of(writes, turns, to_now, partial(self._text, fetched or {}))
        except MissingTextError:
            return None

    def without(self, path: bytes, turns: Collection[int], version: Version | None) -> Loaded | None:
        """Return the `version` of `path` with the net change of `turns` undone, and the edits of all others kept.

        :raises MissingTextError: if that cannot be computed, as those edits touch it, or a text is no longer available
        """
        net = self.net(path, turns, to_now=False)
        if net is None or net.mixed:
            raise MissingTextError
        before, after = (None if side is None else side.version for side in (net.before, net.after))
        if version in (before, after):
            return net.before
        texts = {side.version.digest: side.data for side in (net.before, net.after) if side is not None}
        if before == after and version is not None and (data := self._text(texts, version.digest)) is not None:
            # These are undone already.
            return Loaded(version, data)
        found = moved(Write(None, path, after, before), version, None, partial(self._text, texts))
        if found is None:
            raise MissingTextError
        return found

    def several(
        self, paths: Sequence[bytes | None], turns: Collection[int], to_now: bool
    ) -> Iterator[tuple[bytes, Net | None]]:
        """Yield each of `paths`, b"" for None, with the result of `net`; git is asked for the bytes of many at once."""
        for start in range(0, len(paths), _AT_ONCE):
            names = [path or b"" for path in paths[start : start + _AT_ONCE]]
            writes = [write for path in names for write in self._store.writes(path)]
            fetched = self._files.fetch(
                side.digest for write in writes for side in (write.before, write.after) if side is not None
            )
            for path in names:
                yield path, self.net(path, turns, to_now, fetched)

    def _text(self, fetched: Mapping[str, bytes], digest: str) -> bytes | None:
        return fetched[digest] if digest in fetched else self._files.text(digest)

    def since_commit(self) -> Iterator[Net]:
        """Yield the changes of files since the last commit, as of the last scan.

        :raises GitError: if that fails
        """
        for path, version in self._files.committed().items():
            before = None if version is None else self._files.text(version.digest)
            with suppress(OSError, TooLargeError):
                now = self._files.load(path)
                net = from_commit(path, version, before, now)
                if net is not None:
                    yield net


def from_commit(path: bytes, version: Version | None, before: bytes | None, now: Loaded | None) -> Net | None:
    """Return the change of `path` from its `version` in a commit, which has the bytes `before`; None for none."""
    if before is not None and now is not None and b"\r\n" in now.data and b"\r" not in before:
        # A commit may have other line ends than the disk.
        before = before.replace(b"\n", b"\r\n")
    loaded = None if version is None or before is None else Loaded(version, before)
    if (
        loaded is not None
        and now is not None
        and loaded.data == now.data
        and loaded.version.mode == git_mode(now.version.mode)
    ):
        return None
    return Net(path, loaded, now)
