# SPDX-License-Identifier: GPL-3.0-or-later
"""The recorded conversations that Qwen Code can resume, see its option `--resume`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, cast

from qwen_companion.base.json_objects import as_object, read_object, valid_text
from qwen_companion.domain import RecordedSession
from qwen_companion.doors.user_settings import user_settings_file

MOST = 200
"""Most conversations to return."""

_LINES = 20
"""Most lines of a recording that are searched for the first prompt."""

_LINE_BYTES = 64 * 1024
"""Most bytes of a line; a longer one, with an image, is ignored."""

_PROMPT = 120
"""Most characters of a prompt that are returned."""


def recorded_sessions(environ: Mapping[str, str], directory: str) -> list[RecordedSession]:
    """Return the conversations that were recorded in `directory`, the newest first.  Blocks on disk I/O."""
    try:
        with os.scandir(recordings(environ, directory)) as entries:
            files = [(entry.stat().st_mtime, entry.path) for entry in entries if entry.name.endswith(".jsonl")]
    except OSError:
        return []
    found = (_read(path, round(1000 * time), directory) for time, path in sorted(files, reverse=True))
    return list(islice((session for session in found if session is not None), MOST))


def recordings(environ: Mapping[str, str], directory: str) -> str:
    """Return the directory of the recordings of `directory`, perhaps shared with others."""
    home = os.path.dirname(user_settings_file(environ))
    return os.path.join(home, "projects", re.sub(r"[^a-zA-Z0-9]", "-", directory), "chats")


def move_recording(environ: Mapping[str, str], session: str, directory: str, other: str) -> None:
    """Make `session`, recorded in `directory`, available to a CLI in the directory `other`.  Blocks on disk I/O.

    A CLI finds only conversations of its own directory, which each line names (0.24.4).

    :raises OSError: if that fails; then the recording is unchanged
    """
    path = os.path.join(recordings(environ, directory), f"{session}.jsonl")
    place = os.path.join(recordings(environ, other), f"{session}.jsonl")
    os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
    half = f"{place}.new"
    try:
        with open(path, "rb") as old, open(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as new:
            for line in old:
                entry = read_object(line)
                if entry is not None and entry.get("cwd") == directory:
                    entry["cwd"] = other
                    new.write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
                else:
                    new.write(line)
        os.replace(half, place)
    except OSError:
        with suppress(OSError):
            os.unlink(half)
        raise
    os.unlink(path)


def _read(path: str, time: int, directory: str) -> RecordedSession | None:
    """Return the conversation in the file at `path`; None if it is not one of `directory`, or has no prompt."""
    try:
        with open(path, "rb") as file:
            for line in islice(iter(lambda: file.readline(_LINE_BYTES), b""), _LINES):
                entry = read_object(line) or {}
                if entry.get("cwd") not in (None, directory):
                    return None
                identifier, prompt = entry.get("sessionId"), _prompt(entry)
                if isinstance(identifier, str) and prompt:
                    return RecordedSession(identifier, time, prompt)
    except OSError:
        pass
    return None


def _prompt(entry: Mapping[str, Any]) -> str:
    """Return the beginning of the prompt in `entry`, on one line, or ""."""
    if entry.get("type") != "user":
        return ""
    texts = [part.get("text") for part in parts_of(entry)]
    words = " ".join(text for text in texts if isinstance(text, str))
    return valid_text(" ".join(words[: 10 * _PROMPT].split())[:_PROMPT])


def parts_of(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of the message in `entry`."""
    parts = as_object(entry.get("message")).get("parts")
    return [as_object(part) for part in cast("list[object]", parts)] if isinstance(parts, list) else []
