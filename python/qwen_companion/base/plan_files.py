# SPDX-License-Identifier: GPL-3.0-or-later
"""Approved plans: stored as files, a directory for each project, and read by the model."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress

from qwen_companion.base.local_ids import local_id
from qwen_companion.base.state import key_of, state_home, write_private
from qwen_companion.domain import KeptPlan

_MAX_PLANS = 100
"""Most stored plans of a project."""

_TITLE_BYTES = 4096
"""Bytes of a plan that are read for its title."""

_NAME = re.compile(r"(\d{13})-([0-9A-Za-z-]{0,64})\.md")
"""The time in ms since the epoch, and the conversation's id, or Emacs's id of it."""

_EDITED = "The user has edited the plan before approving it. Follow this plan in place of yours:\n\n"
_EDITED_FILE = (
    "The user has edited the plan before approving it. Read all of the file {} before you go on, "
    "and follow the plan in it in place of yours."
)


def now() -> int:
    """Return the time in ms since the epoch."""
    return int(time.time() * 1000)


def words_for_model(plan: str, edited: str | None, comments: str | None, path: str, limit: int) -> str | None:
    """Return the text that the model reads with its approved `plan`, or None.

    That is the text as `edited` by the user, and `comments`.  Above `limit` characters, the model is asked to read the
    file `path` instead.
    """
    texts = [] if edited in (None, plan) else [f"{_EDITED}{edited}"]
    if comments is not None:
        texts.append(comments)
    if len("\n\n".join(texts)) > limit and edited not in (None, plan):
        texts[0] = _EDITED_FILE.format(path)
    return "\n\n".join(texts) or None


def _directory(environ: Mapping[str, str], project: str) -> str:
    return os.path.join(state_home(environ), "plans", key_of(project))


def plan_path(environ: Mapping[str, str], project: str, conversation: str, time: int) -> str:
    """Return the name of the file for a plan that `conversation` proposes at `time` in the directory `project`."""
    name = f"{time:013}-{conversation}.md"
    if _NAME.fullmatch(name) is None:
        # For example a remote id.
        name = f"{time:013}-{local_id('session', conversation)}.md"
    return os.path.join(_directory(environ, project), name)


def save_plan(path: str, text: str) -> None:
    """Write the plan `text` to the file `path`, and remove the oldest of too many beside it.

    :raises OSError: when it cannot be written
    """
    directory = os.path.dirname(path)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    write_private(path, text.encode("utf-8", "replace"))
    for name in sorted(filter(_NAME.fullmatch, os.listdir(directory)))[:-_MAX_PLANS]:
        with suppress(OSError):
            os.unlink(os.path.join(directory, name))


def kept_plans(environ: Mapping[str, str], project: str, conversation: str | None = None) -> tuple[KeptPlan, ...]:
    """Return the approved plans of the directory `project`, or those of `conversation`, newest first.

    A conversation may be given by Emacs's id.
    """
    directories, known = [_directory(environ, project)], None
    if conversation is not None:
        known = {conversation, local_id("session", conversation)}
        directories = [entry.path for entry in _entries(os.path.join(state_home(environ), "plans"))]
    found = [
        (entry.path, match)
        for directory in directories
        for entry in _entries(directory)
        if (match := _NAME.fullmatch(entry.name)) is not None
        and (known is None or not known.isdisjoint((match[2], local_id("session", match[2]))))
    ]
    plans = [KeptPlan(path, int(match[1]), title) for path, match in found if (title := _title(path)) is not None]
    return tuple(sorted(plans, key=lambda plan: plan.time, reverse=True))


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(directory))
    except OSError:
        return []


def _title(path: str) -> str | None:
    """Return the first line of the file `path` that is not blank, without marks of a heading; None if unreadable."""
    try:
        with open(path, "rb") as file:
            lines = file.read(_TITLE_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    return next((line.lstrip("# ").rstrip() for line in lines if line.strip("# \t")), "")
