# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from qwen_companion.conversations.recorded_sessions import recorded_sessions
from qwen_companion.domain import RecordedSession

PROJECT = "/home/me/my project.d"
PLACE = "projects/-home-me-my-project-d/chats"


def record(home: Path, name: str, time: int, *entries: object) -> None:
    place = home / PLACE
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{name}.jsonl"
    path.write_text("".join(f"{entry if isinstance(entry, str) else json.dumps(entry)}\n" for entry in entries))
    os.utime(path, (time, time))


def prompt(session: str, text: str, cwd: str = PROJECT) -> dict[str, Any]:
    return {"sessionId": session, "cwd": cwd, "type": "user", "message": {"role": "user", "parts": [{"text": text}]}}


def test_the_newest_comes_first_with_its_first_prompt(tmp_path: Path) -> None:
    record(tmp_path, "a", 100, prompt("a", "old\n  one"), prompt("a", "second"))
    record(tmp_path, "b", 200, {"sessionId": "b", "cwd": PROJECT, "type": "system"}, prompt("b", "x" * 500))
    assert recorded_sessions({"QWEN_HOME": str(tmp_path)}, PROJECT) == [
        RecordedSession("b", 200_000, "x" * 120),
        RecordedSession("a", 100_000, "old one"),
    ]
    assert recorded_sessions({"HOME": str(tmp_path)}, PROJECT) == []


def test_half_a_surrogate_pair_in_a_prompt_is_replaced(tmp_path: Path) -> None:
    """A CLI records what it was sent, and no message to Emacs can have it."""
    record(tmp_path, "a", 1, prompt("a", "cut \ud83d"))
    assert recorded_sessions({"QWEN_HOME": str(tmp_path)}, PROJECT) == [RecordedSession("a", 1000, "cut ?")]


def test_others_and_what_is_not_understood_are_left_out(tmp_path: Path) -> None:
    """Another directory has the same name among the projects; files may be cut, damaged or of another version."""
    record(tmp_path, "other", 1, prompt("other", "theirs", cwd="/home/me/my-project.d"))
    record(tmp_path, "empty", 2)
    record(
        tmp_path,
        "damaged",
        3,
        "{",
        "[" * 100_000,
        '"text"',
        "[]",
        {"type": "user", "message": "?"},
        {"message": {"parts": [1]}},
    )
    record(tmp_path, "late", 4, "\x00", prompt("late", "here"))
    (tmp_path / PLACE / "late.runtime.json").write_text("{}")
    (tmp_path / PLACE / "directory.jsonl").mkdir()
    assert recorded_sessions({"QWEN_HOME": str(tmp_path)}, PROJECT) == [RecordedSession("late", 4000, "here")]
