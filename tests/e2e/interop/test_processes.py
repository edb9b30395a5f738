# SPDX-License-Identifier: GPL-3.0-or-later
"""CLIs that look for a file with a certain process id in its name connect, from wherever Emacs was started.

They go up from their own process to the first shell, and take the parent of that shell's parent.
"""

from __future__ import annotations

import os

import pytest

from clis import CLIS, Cli
from daemon import MODE_ON, WAIT_UNTIL_READY, Daemon
from stage import Stage

each_cli = pytest.mark.parametrize("cli", [pytest.param(cli, id=cli.name) for cli in CLIS if cli.finds_process])
pytestmark = [pytest.mark.interop, pytest.mark.relaunches_cli]


def connect(stage: Stage, cli: Cli) -> None:
    """Start `cli` in a terminal of Emacs; it connects, and its model hears of the file on the screen."""
    stage.start_in_shell(cli)
    stage.converse("say what is open", "A greeting.", cli)
    assert str(stage.sandbox.greeting) in stage.model.next_request().prompt


def connect_in_frame(stage: Stage, daemon: Daemon, cli: Cli) -> None:
    """Connect `cli` in a frame of a client of `daemon`."""
    stage.screen.start(["sh"], stage.sandbox.project)
    daemon.wait_until(WAIT_UNTIL_READY)
    daemon.open_frame(stage.sandbox.greeting)
    connect(stage, cli)
    daemon.close_frame()
    stage.screen.enter("exit")


@each_cli
def test_emacs_started_by_the_terminal(stage: Stage, cli: Cli) -> None:
    stage.start_emacs(stage.sandbox.greeting)
    connect(stage, cli)


@each_cli
def test_emacs_started_by_a_shell(stage: Stage, cli: Cli) -> None:
    stage.start_emacs(stage.sandbox.greeting, by_shell=True)
    parent = stage.emacs.process.parent()
    assert parent and parent.name() == "sh"
    connect(stage, cli)


@each_cli
def test_a_daemon_that_has_left_its_parent(stage: Stage, cli: Cli) -> None:
    daemon = stage.emacs = Daemon(stage.sandbox, stage.screen, stage.environment)
    daemon.start_daemon(forms=(MODE_ON,))
    connect_in_frame(stage, daemon, cli)


@each_cli
def test_a_daemon_that_is_supervised(stage: Stage, cli: Cli) -> None:
    daemon = stage.emacs = Daemon(stage.sandbox, stage.screen, stage.environment)
    with daemon.supervised_daemon(forms=(MODE_ON,)):
        assert daemon.process.ppid() == os.getpid()
        connect_in_frame(stage, daemon, cli)
