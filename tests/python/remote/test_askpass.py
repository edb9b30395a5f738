# SPDX-License-Identifier: GPL-3.0-or-later
"""Passwords that programs ask for by our script."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from qwen_companion.remote.askpass import Askpass

pytestmark = pytest.mark.anyio

PROMPT = "me@far's password: "


class User:
    """Answers with `secret`, or not at all if that is None."""

    def __init__(self, directory: Path, secret: str | None) -> None:
        self.asked: list[str] = []
        self.secret = secret
        self.seen = anyio.Event()
        self.left = anyio.Event()
        self.askpass = Askpass(str(directory), "x", self.ask)

    def ask(self, prompt: str | None) -> None:
        assert self.askpass.is_asking is (prompt is not None)
        if prompt is None:
            self.left.set()
            return
        self.asked.append(prompt)
        self.seen.set()
        if self.secret is not None:
            self.askpass.answer(self.secret)


@asynccontextmanager
async def serving(user: User) -> AsyncGenerator[Mapping[str, str]]:
    async with anyio.create_task_group() as tasks:
        yield await tasks.start(user.askpass.serve)
        tasks.cancel_scope.cancel()


async def test_the_answer_is_what_the_program_reads(tmp_path: Path) -> None:
    user = User(tmp_path, "swörd \\ fish")
    async with serving(user) as variables:
        assert variables["SSH_ASKPASS"] == variables["SUDO_ASKPASS"]
        ended = await anyio.run_process([variables["SSH_ASKPASS"], PROMPT])
        assert ended.stdout.decode() == "swörd \\ fish\n"
        assert user.asked == [PROMPT.strip()]
        assert not any("fish" in path.read_text() for path in tmp_path.iterdir() if path.is_file())
        assert not any(path.stat().st_mode & 0o077 for path in tmp_path.iterdir())


@pytest.mark.parametrize("prompt", ["Are you sure you want to continue connecting (yes/no/[fingerprint])? ", PROMPT])
async def test_without_an_answer_the_program_fails(tmp_path: Path, prompt: str) -> None:
    user = User(tmp_path, "")
    async with serving(user) as variables:
        ended = await anyio.run_process([variables["SSH_ASKPASS"], prompt], check=False)
        assert (ended.returncode, ended.stdout) == (1, b"")
        # A host key is confirmed by nobody.
        assert user.asked == ([] if "yes/no" in prompt else [PROMPT.strip()])


async def test_a_program_that_has_ended_waits_for_no_answer(tmp_path: Path) -> None:
    user = User(tmp_path, None)
    async with serving(user) as variables:
        process = await anyio.open_process([variables["SSH_ASKPASS"], PROMPT])
        await user.seen.wait()
        process.kill()
        await user.left.wait()
        await process.aclose()
