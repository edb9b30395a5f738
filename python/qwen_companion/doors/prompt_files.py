# SPDX-License-Identifier: GPL-3.0-or-later
"""Prompts and answers for a CLI beside its keyboard, in the file that its option `--input-file` names."""

from __future__ import annotations

import json
import os

from qwen_companion.errors import PromptError


def append_prompt(directory: str, path: str, text: str) -> None:
    """Add the prompt `text` to the file at `path`, which must lie in `directory`; wait for the disk.

    A CLI reads what is added after it has begun to watch the file, and skips what was there before.

    :raises PromptError: when it could not be written; then the CLI has got nothing of it
    """
    append_line(directory, path, submission(text))


def submission(text: str) -> str:
    """Return the line by which a CLI is given the prompt `text`."""
    return json.dumps({"type": "submit", "text": text})


def append_line(directory: str, path: str, entry: str) -> None:
    """Add the line `entry`, which is ASCII, to the file at `path`, as `append_prompt` does.

    :raises PromptError: when it could not be written; then the CLI has got nothing of it
    """
    if os.path.dirname(path) != directory:
        raise PromptError("a file of prompts lies outside the private directory")
    line = entry.encode("ascii") + b"\n"
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if os.write(descriptor, line) < len(line):
                # Without its line end the CLI has not read it.
                os.ftruncate(descriptor, size)
                raise PromptError("there is no room for a prompt in the private directory")
        finally:
            os.close(descriptor)
    except OSError as error:
        raise PromptError(f"cannot write a prompt into the private directory: {error.strerror}") from None
