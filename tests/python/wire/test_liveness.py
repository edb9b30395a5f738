# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from qwen_companion.base.processes import has_ended, start_of
from qwen_companion.wire.liveness import process_end, watch_input
from support import TIMEOUT_S

pytestmark = pytest.mark.anyio

STARTED = start_of(os.getpid()) or ""


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
    started = start_of(child.pid)
    assert started
    assert not has_ended(child.pid, started)
    assert not has_ended(child.pid, "")
    end = asyncio.create_task(process_end(child.pid, poll=0.01))
    assert child.stdin is not None
    child.stdin.close()
    # Nobody has waited for the child yet.
    await asyncio.wait_for(end, TIMEOUT_S)
    assert has_ended(child.pid, started)
    assert has_ended(child.pid, "")
    child.wait(TIMEOUT_S)
    assert has_ended(child.pid, started)
    assert start_of(child.pid) is None


HEADLESS = """
import ctypes, sys, threading
threading.Thread(target=lambda: (print(flush=True), sys.stdin.read())).start()
ctypes.CDLL(None).pthread_exit(None)
"""
"""A program whose first thread ends, while another one waits for the end of its input."""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows such a process as a zombie")
async def test_a_process_lives_as_long_as_its_last_thread() -> None:
    child = subprocess.Popen([sys.executable, "-c", HEADLESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdout.readline()
    started = start_of(child.pid)
    assert started
    while ") Z " not in Path(f"/proc/{child.pid}/stat").read_text():
        pass
    assert not has_ended(child.pid, started)
    end = asyncio.create_task(process_end(child.pid, poll=0.01))
    child.stdin.close()
    await asyncio.wait_for(end, TIMEOUT_S)
    child.stdout.close()
    child.wait(TIMEOUT_S)


def process_descriptors() -> list[str]:
    """Return the descriptors of this process that stand for processes."""
    found: list[str] = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            if "pidfd" in os.readlink(f"/proc/self/fd/{descriptor}"):
                found.append(descriptor)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells by itself")
async def test_the_end_of_a_process_is_told_and_leaves_no_descriptor() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        end = asyncio.create_task(process_end(child.pid, poll=TIMEOUT_S * 10))
        # Until it waits for the descriptor.
        await asyncio.sleep(0)
        assert process_descriptors()
        assert child.stdin is not None
        child.stdin.close()
        await asyncio.wait_for(end, TIMEOUT_S)
        given_up = asyncio.create_task(process_end(os.getpid()))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait([given_up])
    assert process_descriptors() == []


async def test_where_the_system_does_not_tell_it_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    await test_a_zombie_counts_as_dead()


@pytest.mark.parametrize("pid", [2**22 + 1, 2**80, 0, -1])
async def test_a_process_that_never_was_has_ended(pid: int) -> None:
    await asyncio.wait_for(process_end(pid), TIMEOUT_S)


def test_another_process_of_the_same_number_is_another() -> None:
    assert not has_ended(os.getpid(), STARTED)
    assert has_ended(os.getpid(), "an earlier boot:1")


@pytest.mark.parametrize("seconds", [5, -5, 10_000_000])
def test_a_process_lives_on_when_the_clock_is_set(seconds: float, set_clock: Callable[[float], None]) -> None:
    set_clock(seconds)
    assert not has_ended(os.getpid(), STARTED)
    assert start_of(os.getpid()) == STARTED


def test_a_process_that_cannot_be_looked_at_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be no descriptor left."""

    def no_descriptor(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("builtins.open", no_descriptor)
    assert not has_ended(os.getpid(), STARTED)
    assert not has_ended(os.getpid(), "")
