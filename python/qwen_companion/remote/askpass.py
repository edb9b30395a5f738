# SPDX-License-Identifier: GPL-3.0-or-later
"""Passwords for ssh and sudo, which have no terminal here: they run our script, which asks this process.

An answer goes over a socket in a private directory to the script, and by its standard output to the program: never
through an argument, a variable, a file or a log.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import anyio
from anyio.abc import SocketStream, TaskStatus

from qwen_companion.threads import in_thread

_CLIENT = """\
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
connection.sendall(" ".join(sys.argv[2].split()).encode("utf-8", "replace")[:500] + b"\\n")
answer = connection.makefile("rb").read()
sys.stdout.buffer.write(answer)
sys.exit(not answer)
"""


@dataclass(eq=False)
class _Question:
    """A program's request for a password."""

    answered: anyio.Event = field(default_factory=anyio.Event)
    secret: str | None = field(default=None, repr=False)


class Askpass:
    """Answers the programs that run with its variables."""

    def __init__(self, directory: str, name: str, ask: Callable[[str | None], None]) -> None:
        """Use a private `directory`, and `name` for the files in it.

        `ask` is called with a program's prompt, which `answer` replies to, and with None when the program has ended.
        """
        self._question: _Question | None = None
        self._script = os.path.join(directory, f"ask-{name}")
        self._socket = f"{self._script}.sock"
        self._ask = ask

    @property
    def is_asking(self) -> bool:
        """Whether a program needs an answer."""
        return self._question is not None

    def answer(self, secret: str | None) -> None:
        """Answer a program's prompt by `secret`; None for no answer."""
        if self._question is not None:
            self._question.secret = secret
            self._question.answered.set()

    async def serve(self, *, task_status: TaskStatus[Mapping[str, str]]) -> None:
        """Answer until cancelled; the status is the programs' variables.

        :raises OSError: when the socket or the script cannot be made
        """
        async with await anyio.create_unix_listener(self._socket, mode=0o600) as listener:
            await in_thread(self._write)
            task_status.started(
                {"SSH_ASKPASS": self._script, "SSH_ASKPASS_REQUIRE": "force", "SUDO_ASKPASS": self._script}
            )
            await listener.serve(self._serve)

    def _write(self) -> None:
        words = [sys.executable, "-I", "-c", _CLIENT, self._socket]
        with suppress(FileNotFoundError):
            os.unlink(self._script)
        with os.fdopen(os.open(self._script, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700), "w") as file:
            file.write(f'#!/bin/sh\nexec {shlex.join(words)} "$1"\n')

    async def _ask_for(self, prompt: str) -> str | None:
        question = self._question = _Question()
        self._ask(prompt)
        try:
            await question.answered.wait()
            return question.secret
        finally:
            self._question = None
            self._ask(None)

    async def _serve(self, stream: SocketStream) -> None:
        answer: str | None = None
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            async with stream:
                prompt = (await stream.receive(1000)).decode("utf-8", "replace").strip()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_cancel_at_end, stream, tasks.cancel_scope)
                    # Never accept an unknown host key unseen.
                    answer = None if "(yes/no" in prompt else await self._ask_for(prompt)
                    tasks.cancel_scope.cancel()
                if answer:
                    await stream.send(answer.encode("utf-8", "replace") + b"\n")


async def _cancel_at_end(stream: SocketStream, scope: anyio.CancelScope) -> None:
    """Cancel `scope` when the program at the other end of `stream` stops waiting."""
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
        await stream.receive(1)
    scope.cancel()
