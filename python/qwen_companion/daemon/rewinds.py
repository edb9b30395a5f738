# SPDX-License-Identifier: GPL-3.0-or-later
"""Rewind conversations of CLIs in terminals: each by a separate daemon, once the CLI has ended."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import anyio
from anyio.abc import TaskGroup

from qwen_companion.base.errors import CompanionError
from qwen_companion.base.processes import end
from qwen_companion.base.tasks import log_failure
from qwen_companion.base.threads import in_thread
from qwen_companion.conversations.recorded_sessions import move_recording
from qwen_companion.domain import Peer
from qwen_companion.wire import messages

END_S = 15.0
"""Seconds a CLI may take to end."""


class CliLivesError(CompanionError):
    """A CLI has not ended."""


class Rewinds:
    """Carries out the calls `rewind-recorded`."""

    def __init__(
        self,
        tell: Callable[[messages.Notification], None],
        tasks: TaskGroup,
        peer_of: Callable[[str], Peer | None],
    ) -> None:
        """`peer_of` returns the process of a connected CLI."""
        self._tell = tell
        self._tasks = tasks
        self._peer_of = peer_of

    def handle(self, call: messages.RewindRecorded) -> None:
        """Schedule `call`, which gets one answer."""
        self._tasks.start_soon(self._answer, call)

    async def _answer(self, call: messages.RewindRecorded) -> None:
        try:
            await self._rewind(call)
        except CompanionError as error:
            unsure = " It may be rewound all the same; look before you try again." * getattr(error, "maybe_done", False)
            self._tell(messages.RecordedRewound(call.id, error=f"{error}{unsure}"))
        except OSError as error:
            self._tell(messages.RecordedRewound(call.id, error=f"{error.filename}: {error.strerror}"))
        except ImportError as error:
            self._tell(messages.RecordedRewound(call.id, error=f"the client of qwen serve lacks {error.name}"))
        except Exception as error:  # noqa: BLE001 - Emacs waits for an answer
            log_failure(self._rewind, error)
            self._tell(messages.RecordedRewound(call.id, error="it failed; see the buffer *qwen-companion log*"))

    async def _rewind(self, call: messages.RewindRecorded) -> None:
        # Most users never need these modules.
        from qwen_companion.daemon.local_daemon import start_local
        from qwen_companion.daemon.rewinding import fork_recorded, prompt_of_turn, rewind_recorded

        peer = None if call.session is None else self._peer_of(call.session)
        if peer is None and call.session is not None:
            raise CliLivesError("the CLI is not connected any more")
        # Without our settings: the work of its agent must not be recorded as a CLI's.
        daemon = await start_local(call.program, call.directory, {})
        try:
            find = partial(prompt_of_turn, start=call.start, words=call.prompt)
            where = daemon.address, call.directory, call.conversation, find
            if peer is None:
                copy = await fork_recorded(*where)
                if call.tree is not None:
                    await in_thread(move_recording, os.environ, copy, call.directory, call.tree)
                self._tell(messages.RecordedRewound(call.id, copy=copy))
            else:
                done = await rewind_recorded(*where, partial(_end, peer))
                self._tell(messages.RecordedRewound(call.id, text=done.prompt, copy=done.copy))
        finally:
            with anyio.CancelScope(shield=True):
                await daemon.stop()


async def _end(peer: Peer) -> None:
    """End the process of a CLI.

    :raises CliLivesError: if it continues
    """
    if not await end(peer.pid, peer.started, END_S):
        raise CliLivesError(f"the CLI, process {peer.pid}, does not end")
