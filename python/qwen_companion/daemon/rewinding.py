# SPDX-License-Identifier: GPL-3.0-or-later
"""Rewind a conversation to before one of its prompts; the journal restores files."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from qwen_companion.base.threads import in_thread
from qwen_companion.base.times import milliseconds
from qwen_companion.daemon import models
from qwen_companion.daemon.address import DaemonAddress
from qwen_companion.daemon.client import CANNOT_REWIND, DaemonClient
from qwen_companion.daemon.errors import DaemonError, GoneError, UnsupportedError
from qwen_companion.daemon.session import DaemonSession
from qwen_companion.daemon.transcript import PastPrompt

NO_PROMPT = "This prompt is not part of the conversation any more."

_EARLY_MS = 50
"""Most ms by which a point's time precedes its prompt's: both are of one clock, but rounded."""

_HOOK_EARLY_MS = 1000
"""Most ms by which a hook reports a prompt after its recorded time; mostly it reports first."""


@dataclass(frozen=True)
class Rewound:
    """The whole `prompt` that the conversation was rewound to before, and the `copy` from before, or None."""

    prompt: str
    copy: str | None


def point_before(
    points: Sequence[models.RewindPoint], prompts: Sequence[PastPrompt], prompt: PastPrompt
) -> models.RewindPoint:
    """Return the one of `points` that lies before `prompt`, one of `prompts`; both are in order.

    :raises GoneError: when there is none
    """
    if len(points) >= models.KEPT_REWIND_POINTS:
        raise GoneError(f"Qwen Code cannot rewind a conversation of {models.KEPT_REWIND_POINTS} prompts or more.")
    times = sorted({other.time for other in prompts})
    # Scripts may prompt faster than `_EARLY_MS`.
    begins = [time - min(_EARLY_MS, (time - before) / 2) for before, time in pairwise([-inf, *times])]
    place = times.index(prompt.time)
    for point in points:
        time = milliseconds(point.timestamp)
        if time is not None and begins[place] <= time < (*begins, inf)[place + 1]:
            return point
    raise GoneError("Qwen Code keeps no point before this prompt, as after the conversation was compressed.")


def prompt_of_turn(prompts: Sequence[PastPrompt], start: int, words: str) -> PastPrompt:
    """Return the one of `prompts` that a hook reported at `start`, in ms, and that begins with the line `words`.

    :raises GoneError: when there is none
    """
    beginning = words.removesuffix("…")
    for prompt in prompts:
        if prompt.time >= start - _HOOK_EARLY_MS and " ".join(prompt.text.split()).startswith(beginning):
            return prompt
    raise GoneError(NO_PROMPT)


Find = Callable[[Sequence[PastPrompt]], PastPrompt]
"""Returns one of a conversation's prompts, or raises GoneError."""

End = Callable[[], Awaitable[None]]
"""Ends a CLI."""


async def rewind_recorded(address: DaemonAddress, directory: str, session_id: str, find: Find, end_cli: End) -> Rewound:
    """Rewind a session that a CLI recorded in `directory` to before the prompt that `find` chooses.

    `end_cli` ends the CLI that has it open, once the daemon at `address` is known to support this.

    :raises DaemonError: when that fails; the conversation is then unchanged
    """
    async with _opened(address, directory, session_id, find, end_cli) as (client, prompts, prompt):
        copy = await copy_and_rewind(client, session_id, prompts, prompt)
        await client.close(session_id)
        return Rewound(prompt.text, copy)


async def fork_recorded(address: DaemonAddress, directory: str, session_id: str, find: Find) -> str:
    """Copy a session recorded in `directory`, up to the turn of the prompt that `find` chooses; return the copy's id.

    The session is unchanged, and a CLI may have it open; a daemon listens at `address`.

    :raises DaemonError: when that fails
    """
    async with _opened(address, directory, session_id, find) as (client, prompts, prompt):
        copy = (await client.branch(session_id)).session_id
        await client.close(session_id)
        following = next((other for other in prompts if other.time > prompt.time), None)
        if following is not None:
            point = point_before(await client.rewind_points(copy), prompts, following)
            await client.rewind(copy, point.prompt_id)
        await client.close(copy)
        return copy


@asynccontextmanager
async def _opened(
    address: DaemonAddress, directory: str, session_id: str, find: Find, end_cli: End | None = None
) -> AsyncGenerator[tuple[DaemonClient, Sequence[PastPrompt], PastPrompt]]:
    """Open a recorded session; yield a client, the prompts, and the one of them that `find` chooses."""
    async with DaemonClient(address.url, address.token) as client:
        if models.REWIND_FEATURE not in (await client.capabilities(directory)).features:
            raise UnsupportedError(CANNOT_REWIND)
        if end_cli is not None:
            await end_cli()
        session, _ = await in_thread(DaemonSession(session_id, None).replayed, await client.load(session_id))
        yield client, session.prompts, find(session.prompts)


async def copy_and_rewind(
    client: DaemonClient, session_id: str, prompts: Sequence[PastPrompt], prompt: PastPrompt
) -> str | None:
    """Rewind an open session to before `prompt`, one of `prompts`; return a copy from before, or None.

    :raises DaemonError: when that fails; the conversation is then unchanged
    """
    point = point_before(await client.rewind_points(session_id), prompts, prompt)
    copy = None
    with suppress(DaemonError):
        # For example, the version cannot fork.
        copy = (await client.branch(session_id)).session_id
        await client.detach(copy)
    await client.rewind(session_id, point.prompt_id)
    return copy
