# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import psutil
import pytest

from qwen_companion.discovery import editor_pids as module
from qwen_companion.discovery.editor_pids import MAX_STEPS, editor_pids


@dataclass(frozen=True)
class FakeProcess:
    parent: int
    command: tuple[str, ...]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> dict[int, FakeProcess]:
    """All processes there are; those of no test live above these."""
    processes: dict[int, FakeProcess] = {1: FakeProcess(0, ("/sbin/init",))}

    class Process:
        def __init__(self, pid: int) -> None:
            if pid not in processes:
                raise psutil.NoSuchProcess(pid)
            self._process = processes[pid]

        def cmdline(self) -> list[str]:
            if self._process.command == ("secret",):
                raise psutil.AccessDenied()
            return list(self._process.command)

    monkeypatch.setattr(module.psutil, "Process", Process)

    def parent_of(pid: int) -> int:
        return processes[pid].parent if pid in processes else 0

    monkeypatch.setattr(module, "parent_of", parent_of)
    return processes


def chain(table: dict[int, FakeProcess], *commands: str) -> None:
    """Return processes 10, 20, ... each the parent of the next, the first a child of process 1."""
    for number, command in enumerate(commands, 1):
        table[10 * number] = FakeProcess(10 * (number - 1) or 1, tuple(command.split("|")))


def test_from_a_shell_in_a_terminal(table: dict[int, FakeProcess]) -> None:
    chain(table, "/usr/lib/systemd/systemd|--user", "xterm", "/bin/bash", "emacs")
    # Emacs; its shell's grandparent; and, past Emacs, the grandparent of the shell it was started from.
    assert editor_pids(40) == (40, 30, 10)


def test_from_a_shell_in_tmux(table: dict[int, FakeProcess]) -> None:
    chain(table, "tmux|new", "bash", "emacs")
    assert editor_pids(30) == (30, 20, 10)


def test_from_a_desktop(table: dict[int, FakeProcess]) -> None:
    chain(table, "/usr/lib/systemd/systemd|--user", "gnome-shell", "emacs")
    assert editor_pids(30) == (30, 20, 10)


def test_as_a_daemon(table: dict[int, FakeProcess]) -> None:
    chain(table, "emacs|--daemon")
    assert editor_pids(10) == (10,)


def test_as_a_service_of_the_user(table: dict[int, FakeProcess]) -> None:
    chain(table, "/usr/lib/systemd/systemd|--user", "/usr/bin/emacs|--fg-daemon")
    assert editor_pids(20) == (20, 10)


def test_a_login_shell_is_no_shell_to_the_clis(table: dict[int, FakeProcess]) -> None:
    chain(table, "launchd", "login", "-zsh", "emacs")
    assert editor_pids(40) == (40, 30, 10)


def test_a_shell_started_by_the_first_process(table: dict[int, FakeProcess]) -> None:
    chain(table, "sh", "emacs")
    assert editor_pids(20) == (20, 10, 1)


def test_a_command_that_is_kept_secret(table: dict[int, FakeProcess]) -> None:
    chain(table, "secret", "emacs")
    assert editor_pids(20) == (20, 10)


def test_a_walk_ends(table: dict[int, FakeProcess]) -> None:
    chain(table, *["parent"] * 50, "emacs")
    # The CLI has looked at itself first.
    assert editor_pids(510) == (510, 500, 510 - 10 * (MAX_STEPS - 1))


def test_of_an_emacs_that_has_ended(table: dict[int, FakeProcess]) -> None:
    assert table
    assert editor_pids(999) == (999,)


SAY_AND_WAIT = "import os; print(os.getpid(), flush=True); input()"


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is the shell that it is about")
def test_of_a_real_process_below_a_real_shell(cleanup: ExitStack) -> None:
    shell = cleanup.enter_context(
        subprocess.Popen(
            ["bash", "-c", f"{sys.executable} -c '{SAY_AND_WAIT}'; true"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    )
    assert shell.stdout is not None
    pid = int(shell.stdout.readline())
    assert psutil.Process(pid).ppid() == shell.pid
    here = psutil.Process(shell.pid).parent()
    assert here is not None
    # This process has started the shell; who is above it is not known here.
    above = here.ppid() if here.ppid() > 1 else here.pid
    assert editor_pids(pid) == (pid, shell.pid, above)
    shell.communicate("\n")
