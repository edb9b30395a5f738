# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from qwen_companion.emacs.liveness import process_end, watch_input
from qwen_companion.processes import is_alive, start_time
from support import TIMEOUT_S

pytestmark = pytest.mark.anyio


async def test_the_end_of_input_is_noticed_and_its_content_ignored() -> None:
    reader, writer = os.pipe()
    ended = asyncio.Event()
    watch_input(reader, ended.set)
    os.write(writer, b"noise\n" * 1000)
    assert not ended.is_set()
    os.close(writer)
    await asyncio.wait_for(ended.wait(), TIMEOUT_S)
    os.close(reader)


async def test_a_zombie_counts_as_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = start_time(child.pid)
    assert started is not None
    assert is_alive(child.pid, started)
    end = asyncio.create_task(process_end(child.pid, poll=0.01))
    assert child.stdin is not None
    child.stdin.close()
    # Nobody has waited for the child yet.
    await asyncio.wait_for(end, TIMEOUT_S)
    assert not is_alive(child.pid, started)
    child.wait(TIMEOUT_S)
    assert start_time(child.pid) is None


async def test_a_process_that_never_was_has_ended() -> None:
    await asyncio.wait_for(process_end(2**22 + 1), TIMEOUT_S)


def test_another_process_of_the_same_number_is_another() -> None:
    started = start_time(os.getpid())
    assert started is not None
    assert is_alive(os.getpid(), started)
    assert not is_alive(os.getpid(), started - 100)
    assert not is_alive(-1, 0.0)
