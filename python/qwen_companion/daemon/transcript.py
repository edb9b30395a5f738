# SPDX-License-Identifier: GPL-3.0-or-later
"""The texts, tools, plans and notes of a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from qwen_companion.daemon import models
from qwen_companion.daemon.messages import Change, NoteChange, PlanChange, PlanStep, TextChange, ToolChange, UsageChange
from qwen_companion.daemon.notes import without_notes
from qwen_companion.daemon.sanitize import TextStream, clean, line, reveal
from qwen_companion.daemon.tools import Tools, unknown_content
from qwen_companion.daemon.turns import Turns

_BACKGROUND_DONE = "background_task_completed"
_BACKGROUND = "background_notification"
_BACKGROUND_TURN = "background_notification_turn_started"
_INJECTED = "mid_turn_message_injected"
_PLAN_STATUS = {"pending": "pending", "in_progress": "running", "completed": "done"}
_SHORT_TEXT = 2000


@dataclass(frozen=True)
class PastPrompt:
    """A prompt of the user: Emacs's id of its `turn`, its `time` in ms since the epoch, and its whole `text`."""

    turn: str | None
    time: int
    text: str


class Transcript:
    """One session's transcript since it was loaded; rebuilt by each load."""

    def __init__(self, turns: Turns, author: Callable[[str | None], str | None]) -> None:
        """Begin empty; `author` maps a client id to an author, see `permissions.ME`."""
        self.tools = Tools()
        self.first_words: str | None = None
        """The beginning of the first prompt."""
        self.prompts: list[PastPrompt] = []
        self._turns = turns
        self._author = author
        self._streams: dict[tuple[str, str | None, str | None], TextStream] = {}
        self._mentioned: set[tuple[str, str | None]] = set()
        self._reports: set[tuple[str | None, str]] = set()

    def apply(self, envelope: models.Envelope, payload: models.Payload) -> Iterator[Change]:
        """Yield the changes of the chat by the event `payload`."""
        match payload:
            case models.UserMessageChunk():
                yield from self._user(envelope, payload)
            case models.AgentMessageChunk():
                yield from self._words(envelope, "answer", payload.content, payload.meta)
                yield from self._usage(envelope, payload.meta)
            case models.AgentThoughtChunk():
                yield from self._words(envelope, "thought", payload.content, payload.meta)
            case models.ToolCall() | models.ToolCallUpdate():
                yield from self.unsupported_content(envelope, payload)
                begins = isinstance(payload, models.ToolCall)
                yield self.tools.merge(payload, self._turns.of(envelope), time_of(envelope), begins=begins).change()
            case models.Plan():
                steps = (
                    PlanStep(
                        clean(entry.content)[:_SHORT_TEXT],
                        _PLAN_STATUS.get(entry.status or "", "pending"),
                    )
                    for entry in payload.entries
                )
                yield PlanChange(self._turns.of(envelope), tuple(steps))
            case _:
                yield from self._notes(envelope, payload)

    def _user(self, envelope: models.Envelope, payload: models.UserMessageChunk) -> Iterator[Change]:
        meta, content = payload.meta, payload.content
        # On disk, injected and agents' texts look like the user's (0.24.4).
        if meta is not None and meta.source == _INJECTED:
            yield self._note(envelope, "injected", clean(content.text)[:_SHORT_TEXT])
            return
        if _in_background(meta):
            yield from self._words(envelope, "answer", content, meta)
            return
        if envelope.prompt_id is not None:
            self._turns.begin(envelope.prompt_id)
        elif self._turns.replaying:
            # In a history from disk only this event names the prompt, if any does.
            self._turns.begin_past(None if meta is None else meta.prompt_id)
        match content.type:
            case "text":
                text = without_notes(content.text)
            case "resource_link":
                # In a history from disk, links follow the whole text.
                link = f"@{line(reveal(content.uri.removeprefix(models.FILE_SCHEME)))}"
                text = f"\n{link}" if envelope.prompt_id is None else link
            case other:
                text = f"[{line(other)}]\n"
        self.first_words = self.first_words or line(text) or None
        time = self._note_prompt(envelope, payload, text)
        by = self._author(envelope.originator_client_id)
        yield from self._text(envelope, "user", text, None, by=by, time=time)

    def _note_prompt(self, envelope: models.Envelope, payload: models.UserMessageChunk, text: str) -> int | None:
        """Record the prompt that begins with `text`, and return its time.  The text mentions links, sent later."""
        turn = self._turns.of(envelope)
        recorded = None if payload.meta is None else payload.meta.timestamp
        time = time_of(envelope) if recorded is None else round(recorded)
        if time is not None and (not self.prompts or self.prompts[-1].turn != turn):
            self.prompts.append(PastPrompt(turn, time, clean(text)))
        return time

    def _words(
        self, envelope: models.Envelope, voice: str, content: models.Content, meta: models.Meta | None
    ) -> Iterator[Change]:
        if content.type != "text":
            yield from self.unsupported(f"{voice}/{content.type}", envelope)
            return
        if meta is not None and self._said_already(meta, content.text):
            return
        parent = None if meta is None or meta.parent_tool_call_id is None else meta.parent_tool_call_id
        name = None if parent is None else self.tools.name_of(parent)
        yield from self._text(envelope, voice, content.text, name, background=_in_background(meta))

    def _said_already(self, meta: models.Meta, text: str) -> bool:
        """Return whether a background report repeats what was already shown."""
        if meta.source == _BACKGROUND_TURN:
            # It announces the texts for the model and its answer, which come next.
            return True
        report = (None if meta.background_task is None else meta.background_task.task_id, text)
        if meta.source == _BACKGROUND_DONE:
            self._reports.add(report)
            return False
        return meta.source == _BACKGROUND and report in self._reports

    def _usage(self, envelope: models.Envelope, meta: models.Meta | None) -> Iterator[Change]:
        if meta is not None and meta.usage is not None:
            usage = meta.usage
            turn = self._turns.of(envelope)
            yield UsageChange(turn, usage.input_tokens, usage.output_tokens, usage.cached_read_tokens)

    def _text(
        self,
        envelope: models.Envelope,
        voice: str,
        text: str,
        parent: str | None,
        *,
        by: str | None = None,
        background: bool = False,
        time: int | None = None,
    ) -> Iterator[Change]:
        turn = self._turns.of(envelope)
        # User messages and background ones come whole.
        if voice == "user" or background:
            text = clean(text)
        else:
            text = self._streams.setdefault((voice, turn, parent), TextStream()).feed(text)
        if text:
            yield TextChange(turn, voice=voice, text=text, by=by, parent=parent, background=background, time=time)

    def flush(self) -> Iterator[Change]:
        """Yield the text that the streams hold back."""
        streams, self._streams = self._streams, {}
        for (voice, turn, parent), stream in streams.items():
            if text := stream.flush():
                yield TextChange(turn, voice=voice, text=text, parent=parent)

    def give_up(self, turn: str) -> Iterator[ToolChange]:
        """Yield the tools that fail with `turn`."""
        for tool in self.tools.give_up(turn):
            yield tool.change()

    def _notes(self, envelope: models.Envelope, payload: models.Payload) -> Iterator[Change]:
        match payload:
            case models.ModelSwitchFailed():
                yield self._note(envelope, "model-failed", line(payload.error or "The model was not changed."))
            case models.SettingsChanged():
                yield self._note(envelope, "setting", line(payload.key))
            case models.MidTurnMessageInjected():
                for message in payload.messages:
                    yield self._note(envelope, "injected", clean(message)[:_SHORT_TEXT])
            case models.HistoryTruncated():
                yield self._note(envelope, "truncated", str(payload.truncated_events))
            case models.FollowupSuggestion():
                text = clean(payload.suggestion)[:_SHORT_TEXT]
                yield NoteChange(None, note="suggestion", text=text)
            case models.SessionRewound():
                yield NoteChange(None, note="rewound", text=str(payload.target_turn_index))
            case _:
                pass

    def unsupported_content(self, envelope: models.Envelope, fields: models.ToolFields) -> Iterator[Change]:
        """Report each sort of content in `fields` that cannot be shown."""
        for sort in unknown_content(fields.content):
            yield from self.unsupported(f"tool_call/{sort}", envelope)

    def unsupported(self, name: str, envelope: models.Envelope) -> Iterator[Change]:
        """Report the event `name` that cannot be shown, once in each turn."""
        key = name, self._turns.of(envelope)
        if key not in self._mentioned:
            self._mentioned.add(key)
            yield self._note(envelope, "unsupported", line(name))

    def _note(self, envelope: models.Envelope, note: str, text: str) -> NoteChange:
        return NoteChange(self._turns.of(envelope), note=note, text=text)


def time_of(envelope: models.Envelope) -> int | None:
    """Return when the daemon sent `envelope`, in milliseconds since the epoch, or None."""
    return None if envelope.server_timestamp is None else round(envelope.server_timestamp)


def _in_background(meta: models.Meta | None) -> bool:
    return meta is not None and (meta.qwen_discrete_message or (meta.source or "").startswith(_BACKGROUND))
