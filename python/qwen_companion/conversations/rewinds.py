# SPDX-License-Identifier: GPL-3.0-or-later
"""Detect rewinds in transcripts, by a CLI itself or by a daemon for another client; no hook reports them.

Only an idle CLI can rewind, so transcripts are followed from the end of a turn to the next prompt.  If the system does
not report changes, the rewind is found at the next hook.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import anyio
from anyio.abc import TaskGroup

from qwen_companion.base.json_objects import read_object
from qwen_companion.base.tasks import contained
from qwen_companion.base.times import milliseconds
from qwen_companion.conversations.recorded_sessions import recordings
from qwen_companion.conversations.recording import Recording, is_transcript
from qwen_companion.conversations.recording_watch import RecordingWatch
from qwen_companion.domain import ChatWork, CliRewind, Peer
from qwen_companion.doors.events import Event
from qwen_companion.doors.listeners import Report, Subscription

_HOOKS = ("SessionStart", "UserPromptSubmit", "Stop", "Notification")

_MOST = 50
"""Most transcripts to follow, the latest ones."""

_START_BYTES = 600
"""The beginning of a line, in bytes, that contains its names and its time."""

_NAMES = re.compile(rb'"(uuid|parentUuid|timestamp)":"([^"\\]*)"')
_PROMPT = b'"type":"user"'
_REWIND = b'"subtype":"rewind"'


class _Rewinds(Recording):
    """The rewinds in the transcript of a conversation."""

    def __init__(self, path: str, session: str, directory: str, rewound: Callable[[CliRewind], None]) -> None:
        self._session = session
        self._directory = directory
        self._rewound = rewound
        self._found: list[CliRewind] = []
        super().__init__(path)

    def begin_anew(self) -> None:
        self._last: tuple[bytes, bytes] = b"", b""
        """Name and time of the last line."""
        self._before_prompts: dict[bytes, bytes] = {}
        """The time of the line before each prompt, by the name of the prompt."""

    def feed(self, line: bytes) -> None:
        start = line[:_START_BYTES]
        names = dict(_NAMES.findall(start))
        if _REWIND in start:
            self._read_rewind(line)
        elif _PROMPT in start and names.get(b"parentUuid") == self._last[0]:
            self._before_prompts[self._last[0]] = self._last[1]
        self._last = names.get(b"uuid", b""), names.get(b"timestamp", b"")

    def _read_rewind(self, line: bytes) -> None:
        entry = read_object(line) or {}
        kept, time = entry.get("parentUuid"), milliseconds(entry.get("timestamp"))
        if (entry.get("type"), entry.get("subtype")) != ("system", "rewind") or time is None:
            return
        # The prompt to which it was rewound follows the last kept line; without kept lines it was the first prompt.
        since = 0 if kept is None else milliseconds(self._before_prompts.get(str(kept).encode(), b"").decode())
        if since is not None:
            self._found.append(CliRewind(self._session, self._directory, since, time))

    def settle(self) -> None:
        found, self._found = self._found, []
        for rewind in found:
            self._rewound(rewind)


class RewindWatch:
    """Listens to hooks and chats.  Call its methods on the event loop."""

    def __init__(self, environ: Mapping[str, str], rewound: Callable[[CliRewind], Awaitable[None]]) -> None:
        """Call `rewound` for each rewind in a transcript; when it is first read, also for past ones."""
        self._environ = environ
        self._rewound = rewound
        self._tasks: TaskGroup | None = None
        self._watch = RecordingWatch()
        self._followed: OrderedDict[str, _Rewinds] = OrderedDict()
        """Transcripts by conversation, the latest one last."""
        self._pids: dict[str, int] = {}

    async def run(self) -> None:
        """Follow transcripts until cancelled."""
        try:
            async with anyio.create_task_group() as self._tasks:
                await self._watch.run()
        finally:
            self._tasks = None

    # --- Idle CLIs ---

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        """The hooks that it subscribes to."""
        return tuple(map(Subscription, _HOOKS))

    def holds(self, event: Event) -> bool:
        """Return False: no CLI has to wait."""
        return False

    async def hear(self, report: Report) -> None:
        """Handle a hook at the beginning or end of a CLI's turn."""
        event = report.event
        if event.agent_id is None and event.session_id and is_transcript(event.transcript_path):
            self._pids[event.session_id] = report.peer.pid
            idle = event.name != "UserPromptSubmit"
            await self._follow(event.session_id, event.transcript_path, event.cwd, idle)

    def take_chat(self, work: ChatWork) -> None:
        """Handle the activity of a daemon's agent, which hooks may report too."""
        is_name = os.path.basename(work.session) == work.session
        if self._tasks is not None and work.session not in self._pids and is_name:
            path = os.path.join(recordings(self._environ, work.directory), f"{work.session}.jsonl")
            self._tasks.start_soon(contained, self._follow, work.session, path, work.directory, work.turn is None)

    def ended(self, peer: Peer) -> None:
        """Stop following the conversations of the process of `peer`."""
        for session in [session for session, pid in self._pids.items() if pid == peer.pid]:
            del self._pids[session]
            if session in self._followed:
                self._watch.forget(self._followed.pop(session))

    # --- Following ---

    async def _follow(self, session: str, path: str, directory: str, idle: bool) -> None:
        followed = self._followed.pop(session, None)
        if followed is None or followed.path != path:
            if followed is not None:
                self._watch.forget(followed)
            followed = _Rewinds(path, session, directory, self._report)
        self._followed[session] = followed
        if len(self._followed) > _MOST:
            self._watch.forget(self._followed.popitem(last=False)[1])
        if idle:
            self._watch.follow(followed)
        else:
            self._watch.forget(followed)
        await self._watch.read(followed)

    def _report(self, rewind: CliRewind) -> None:
        # A rewind that is read after the end of a CLI may be ours.
        if self._tasks is not None and rewind.session in self._followed:
            self._tasks.start_soon(partial(contained, self._rewound, rewind))
