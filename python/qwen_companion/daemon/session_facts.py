# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts about a session, which survive its loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from qwen_companion.base.local_ids import local_id
from qwen_companion.daemon import models
from qwen_companion.daemon.sanitize import line

_ANSWERED = ("title", "clients", "model", "model_names", "mode")
"""Facts that the daemon's answers have, not only its events."""


@dataclass
class SessionFacts:
    """The name, model, mode and clients of a session.

    `model` is the daemon's id; `window` are the tokens used of the context window, and its size.
    """

    title: str | None = None
    clients: int | None = None
    model: str | None = None
    model_names: Mapping[str, str] = field(default_factory=dict[str, str])
    mode: str | None = None
    window: tuple[int, int] | None = None

    @property
    def model_name(self) -> str | None:
        """The displayed name of the model in use."""
        return None if self.model is None else self.model_names.get(self.model, line(self.model))

    def model_id(self, identifier: str) -> str | None:
        """Return the daemon's id of the model that Emacs calls `identifier`."""
        return next((name for name in self.model_names if local_id("model", name) == identifier), None)

    def rename(self, title: str | None) -> None:
        """Use `title`, the daemon's name for the session, if it has one."""
        self.title = line(title) if title else self.title

    def choose(self, state: models.ContextState) -> None:
        """Set the available models and modes, and those in use."""
        self.model_names = {item.model_id: line(item.name or item.model_id) for item in state.models.available_models}
        self.model = state.models.current_model_id or self.model
        self.mode = state.modes.current_mode_id or self.mode

    def apply(self, payload: models.Payload) -> None:
        """Apply the `payload` of an event."""
        match payload:
            case models.UsageUpdate():
                self.window = payload.used, payload.size
            case models.CurrentModeUpdate():
                self.mode = line(payload.current_mode_id)
            case models.ApprovalModeChanged():
                self.mode = line(payload.next)
            case models.SessionInfoUpdate():
                self.rename(payload.title)
            case models.SessionMetadataUpdated():
                self.rename(payload.display_name)
            case models.ModelSwitched():
                self.model = payload.model_id
            case models.SessionSnapshot():
                self.model = payload.current_model_id or self.model
                self.mode = line(payload.current_approval_mode) if payload.current_approval_mode else self.mode
            case _:
                pass

    def catch_up(self, before: SessionFacts, now: SessionFacts) -> None:
        """Copy the facts of `_ANSWERED` that changed from `before` to `now`."""
        for name in _ANSWERED:
            if getattr(now, name) != getattr(before, name):
                setattr(self, name, getattr(now, name))
