# SPDX-License-Identifier: GPL-3.0-or-later
"""Dispatch each of Emacs's calls to the parts of the backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

from qwen_companion.daemon_front import DaemonFront
from qwen_companion.domain import Settings, Snapshot
from qwen_companion.doors.hook_handler import HookHandler
from qwen_companion.doors.layers import SettingsLayers
from qwen_companion.emacs import messages
from qwen_companion.emacs.journal_front import JournalFront
from qwen_companion.emacs.request_queue import RequestQueue
from qwen_companion.ide.context_distributor import ContextDistributor
from qwen_companion.ide.proposals import HOOK_PREFIX, Decision
from qwen_companion.ide.sessions import Sessions
from qwen_companion.ide.tools import DiffTools
from qwen_companion.publisher import Publisher
from qwen_companion.registry.front import RegistryFront
from qwen_companion.remote.places import Places
from qwen_companion.rewinds import Rewinds
from qwen_companion.tools.calls import Tools
from qwen_companion.tools.diagnostics import Diagnostics
from qwen_companion.transcripts.meter import Meter


@dataclass(frozen=True)
class Inbox:
    """Dispatches calls; `stop` ends the backend for good."""

    publisher: Publisher
    distributor: ContextDistributor
    sessions: Sessions
    diff_tools: DiffTools
    tools: Tools
    diagnostics: Diagnostics
    layers: SettingsLayers
    hooks: HookHandler
    places: Places
    journal: JournalFront
    meter: Meter
    requests: RequestQueue
    registry: RegistryFront
    daemon: DaemonFront
    rewinds: Rewinds
    stop: Callable[[], None]

    def handle(self, message: messages.Incoming) -> None:
        """Handle a call by Emacs; call in their order."""
        if isinstance(message, messages.Roots):
            self.publisher.set_roots(message)
            self.distributor.set_roots(message.roots)
            self.journal.set_roots(message.roots)
        elif isinstance(message, Settings):
            self._set_settings(message)
        elif isinstance(message, Snapshot):
            self.distributor.set_snapshot(message)
            self.places.set_snapshot(message)
            self.journal.journal.roots.set_snapshot(message)
        elif isinstance(message, messages.Watch):
            self.distributor.watch(message.on)
            self.places.watch(message.on)
            self.hooks.watch(message.on)
            self.tools.watch(message.on)
        elif isinstance(message, messages.ReviewOutcome):
            holder = self.hooks if message.id.startswith(HOOK_PREFIX) else self.diff_tools
            holder.decide(message.id, Decision(message.content, message.reason, message.mode))
        else:
            self._handlers[type(message)](message)

    @cached_property
    def _handlers(self) -> Mapping[type[messages.Incoming], Callable[[Any], None]]:
        """The handlers of calls that one part alone handles."""
        return {
            **dict.fromkeys(get_args(messages.QueuedCall), self.requests.handle),
            **dict.fromkeys(get_args(messages.RegistryCall), self.registry.handle),
            **dict.fromkeys(get_args(messages.JournalCall), self.journal.handle),
            messages.ReviewRelease: lambda release: self.hooks.questions.release(release.id),
            messages.ToolsOffered: self._offer_tools,
            messages.ToolAnswer: self.tools.handle,
            messages.PlacesWanted: self.places.want,
            messages.RunAt: self.places.run_at,
            messages.ListPlaceFiles: self.places.list_files,
            messages.CheckPlace: self.places.check,
            messages.RewindRecorded: self.rewinds.handle,
            messages.DaemonCall: self.daemon.handle,
            messages.Stop: lambda _: self.stop(),
        }

    def _offer_tools(self, message: messages.ToolsOffered) -> None:
        self.diagnostics.after_edits = message.after_edits
        self.diagnostics.with_prompts = message.with_prompts
        changed = message.tools != self.tools.definitions
        self.tools.offer(message.tools)
        self.layers.tools = message.tools
        if changed:
            self.publisher.publish_again()
            self.places.lay_again()

    def _set_settings(self, settings: Settings) -> None:
        self.hooks.set_settings(settings)
        if self.layers.set_settings(settings):
            self.publisher.publish_again()
        self.sessions.offers_reviews = not settings.no_reviews
        self.diff_tools.text_limit = settings.size_limit
        self.distributor.set_settings(settings)
        self.places.set_settings(settings)
        self.journal.set_settings(settings)
        self.meter.limit = settings.token_limit
