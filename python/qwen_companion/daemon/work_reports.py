# SPDX-License-Identifier: GPL-3.0-or-later
"""The activity of a session's agent, for the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from qwen_companion.daemon.interrupted_turns import Output
from qwen_companion.daemon.messages import EndChange, SessionChoices, TextChange, ToolChange, UsageChange
from qwen_companion.domain import READ_TOOL, ChatWork, Usage

_PROMPT_WORDS = 800
"""Most characters of a prompt stored for the journal."""


class WorkReports:
    """Reports the running turn of a session, its prompt and its running tools."""

    def __init__(self, session_id: str, directory: str, worked: Callable[[ChatWork], None]) -> None:
        """Call `worked` with the activity of the agent in `directory`, after each change."""
        self._worked = worked
        self._told = ChatWork(session_id, directory, "Qwen Code", None, "")
        self._sent: dict[str | None, str] = {}
        """The prompts sent from here, by turn."""
        self._echoed: dict[str | None, str] = {}
        """The prompts as the daemon echoes them, by turn."""
        self._starts: dict[str | None, int] = {}
        """The start of each turn, in ms since the epoch."""
        self._tools: dict[str, str] = {}
        self._reads: list[str] = []
        self._used: list[UsageChange] = []
        """The usage of the answers since the last report."""

    def begin_anew(self, outputs: Iterable[Output]) -> None:
        """Record `outputs`, a whole loaded conversation."""
        self._tools.clear()
        self._echoed.clear()
        self._starts.clear()
        for output in outputs:
            self.note(output)
        # Their files may have changed since, and their tokens were counted already.
        self._reads.clear()
        self._used.clear()

    def note(self, output: Output | SessionChoices) -> None:
        """Record the start of the prompt and the running tools in `output`."""
        if isinstance(output, TextChange) and output.voice == "user":
            self._echoed[output.turn] = (self._echoed.get(output.turn, "") + output.text)[:_PROMPT_WORDS]
            if output.time is not None:
                self._starts.setdefault(output.turn, output.time)
        elif isinstance(output, ToolChange) and output.status == "running":
            self._tools[output.id] = output.name or "tool"
        elif isinstance(output, ToolChange):
            self._tools.pop(output.id, None)
            if output.name == READ_TOOL and output.status == "done" and output.parent is None:
                self._reads += [place.path for place in output.places]
        elif isinstance(output, UsageChange):
            self._used.append(output)
        elif isinstance(output, EndChange):
            self._sent.pop(output.turn, None)
            self._echoed.pop(output.turn, None)
            self._starts.pop(output.turn, None)

    def note_prompt(self, turn: str, text: str) -> None:
        """Record the prompt `text` of `turn`, which the daemon will echo."""
        self._sent[turn] = text[:_PROMPT_WORDS]

    def report(self, turn: str | None, model: str | None = None, *, is_lost: bool = False) -> None:
        """Report the activity in `turn`, None when no turn runs, by `model`, if that has changed; see `ChatWork`."""
        work = replace(
            self._told,
            turn=turn,
            prompt=self._sent.get(turn) or self._echoed.get(turn, ""),
            tools=tuple(self._tools.items()) if turn is not None else (),
            reads=tuple(dict.fromkeys(self._reads)),
            used=tuple(Usage(model or "", each.input or 0, each.output or 0, each.cached or 0) for each in self._used),
            start=self._starts.get(turn),
            is_lost=is_lost and turn is not None,
        )
        self._reads.clear()
        self._used.clear()
        if work != self._told:
            self._told = replace(work, reads=(), used=())
            self._worked(work)
