# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell models with a prompt which of the files that they have seen have changed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Sequence
from functools import partial

import anyio

from qwen_companion.base.threads import in_thread
from qwen_companion.domain import Peer
from qwen_companion.doors.listeners import Fitting
from qwen_companion.files.versions import Loaded
from qwen_companion.journal.baselines import FAILURES
from qwen_companion.journal.root import Root, now_ms
from qwen_companion.journal.roots import Roots
from qwen_companion.journal.subscriptions import PROMPT_HOLD_S
from qwen_companion.journal.unseen import UnseenChange, news

Excluded = Callable[["Peer | None", Sequence[str]], Collection[str]]
"""Returns which of the given files must not be reported to the CLI of a process; called in a thread."""

RECORD_S = 0.5 * PROMPT_HOLD_S
"""Seconds that a prompt waits for the record, so that changes by the agent's own commands are known as its own."""

_MOST_ATTACHED = 50
"""Most files quoted in a prompt that are noted."""

_ATTACHED = "\n--- Content from referenced files ---\n"
"""Qwen Code puts this before the files that the user's prompt names with "@"."""

_ATTACHED_NAME = re.compile(r"^Content from (.+):$", re.MULTILINE)


class ModelNews:
    """The texts for models.  Call its methods on the event loop."""

    def __init__(self, roots: Roots, excluded: Excluded) -> None:
        """Store in the records of `roots` what models have seen."""
        self._roots = roots
        self._excluded = excluded

    async def saw(self, name: str, session: str, path: str, time: int) -> None:
        """Note that the model of `session`, which works in the root `name`, has read the file `path`.

        It has done so by `time`, in ms since the epoch; if the file has changed since, the text that it read is
        unknown.
        """
        root = self._roots.by_name.get(self._roots.root_around(name, path))
        known = None if root is None else root.record.names.name_in(path)
        if root is None or known is None or not self._roots.settings.tell_changes:
            return
        loaded = await root.read(known)
        # `time` is rounded down.  Changes after now are unknown, or by another clock.
        if time + 1 < await in_thread(root.record.site.changed_at, known) * 1000 < now_ms() + 1:
            root.do(root.record.unseen.saw_unknown, session, known, now_ms())
        elif loaded is None or isinstance(loaded, Loaded):
            root.do(root.record.unseen.saw, session, known, loaded, now_ms())

    async def of(
        self,
        roots: Sequence[Root],
        session: str,
        peer: Peer | None,
        directory: str,
        time: int,
        attached: Sequence[str] = (),
    ) -> Fitting | None:
        """Return the text about files in `roots` for the model of `session`, which works in `directory`; None for none.

        The prompt, sent at `time`, in ms since the epoch, contains the texts of the files `attached`.
        """
        if not self._roots.settings.tell_changes:
            return None
        paths = [os.path.join(directory, path) for path in attached[:_MOST_ATTACHED]]
        # The record may not have noted them in time.
        seen = {root.record.names.name_in(path) for root in roots for path in paths}
        for root in roots:
            for path in paths:
                await self.saw(root.record.root, session, path, time)
        found: list[tuple[Root, UnseenChange]] = []
        for root in roots:
            changes = await in_thread(_changes, root, session)
            if changes:
                with anyio.move_on_after(RECORD_S / len(roots)):
                    await root.done_so_far()
                    changes = await in_thread(_changes, root, session)
            found += [(root, change) for change in changes if change.view.path not in seen]
        if found:
            names = [change.name for _, change in found]
            excluded = await in_thread(self._excluded, peer, names)
            found = [(root, change) for root, change in found if change.name not in excluded]
        there = found[0][0].record.site.there(directory) if found else directory
        return partial(_tell, found, session, there) if found else None


def attached_files(prompt: str) -> list[str]:
    """Return the names of the files that a CLI has appended to the user's `prompt`."""
    return _ATTACHED_NAME.findall(prompt.partition(_ATTACHED)[2])


def _changes(root: Root, session: str) -> list[UnseenChange]:
    try:
        return root.record.unseen.changes(session)
    except FAILURES:
        return []


def _tell(found: Sequence[tuple[Root, UnseenChange]], session: str, directory: str, room: int) -> str | None:
    """Return the text about `found` that fits into `room`, and note that the model of `session` has received it."""
    text, told, shown = news([change for _, change in found], directory, room)
    root_of = {id(change): root for root, change in found}
    for place, change in enumerate(told):
        root = root_of[id(change)]
        root.do(root.record.unseen.told, session, change, now_ms(), place < shown)
    return text
