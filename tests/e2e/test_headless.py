# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes by CLIs that answer one prompt, `qwen -p`: with our hooks and without, alone and beside another."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager

import pytest

from stage import PATIENCE, Stage
from test_changes import FREE, FREE_QWEN, ask, run

pytestmark = pytest.mark.reuses_stage("free")

ANSWER = [*("qwen", "--approval-mode", "yolo"), "-p"]


def with_layer(stage: Stage) -> dict[str, str]:
    """Return the environment of terminals in Emacs, in which a CLI calls our hooks."""
    shown = stage.emacs.text('(mapconcat #\'identity process-environment "\\n")')
    pairs = (line.partition("=") for line in shown.splitlines())
    return {**stage.environment, **{name: value for name, _, value in pairs if "QWEN" in name}}


@contextmanager
def answering(stage: Stage, prompt: str, environment: Mapping[str, str]) -> Generator[subprocess.Popen[bytes]]:
    """Have a CLI answer `prompt`; it has ended afterwards."""
    project = stage.sandbox.project
    command = stage.there([*ANSWER, prompt], project, environment)
    with subprocess.Popen(command, cwd=project, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


def recorded(stage: Stage) -> dict[str, tuple[str, str, str]]:
    """Return the prompt, the source and the notes of the turn in which each file was changed last."""
    found: dict[str, tuple[str, str, str]] = {}
    for path in stage.journal.glob("*/journal.sqlite"):
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=PATIENCE)) as journal:
            rows = journal.execute(
                "select path, prompt, source, notes from writes join turns on turn = turns.id order by writes.id"
            )
            found |= {os.path.basename(os.fsdecode(path)): (prompt, *rest) for path, prompt, *rest in rows}
    return found


# Of a request, counted simply: four characters are a token.
MOST_ADDED = 4 * 400


def test_emacs_adds_at_most_400_tokens_to_a_request(stage: Stage) -> None:
    stage.start_emacs(stage.sandbox.greeting, forms=(FREE,))
    requests: list[str] = []
    for environment in (stage.environment, with_layer(stage)):
        stage.model.say("Hello.")
        with answering(stage, "hello", environment):
            pass
        body = stage.model.next_request().body
        requests.append(json.dumps([body["messages"], body["tools"]]))
    without, with_tools = requests
    assert "mcp__emacs__" not in without
    assert "mcp__emacs__definition" in with_tools
    assert len(with_tools) - len(without) <= MOST_ADDED


@pytest.mark.ends_cli
def test_what_a_cli_without_hooks_writes_at_once_is_recorded(stage: Stage) -> None:
    """It ends before it is sure that it calls none."""
    stage.start_emacs(stage.sandbox.greeting, forms=(FREE,))
    stage.start_cli()
    # Without an earlier look at the files nobody knows what was there before it came.
    run(stage, "echo made > earlier.txt")
    ask(stage, "earlier", "Made.")
    assert recorded(stage)["earlier.txt"] == ("earlier", "hooks", "[]")
    stage.end_cli()
    run(stage, "echo made > new.txt")
    stage.model.say("All done.")
    with answering(stage, "make it", stage.environment):
        pass
    stage.screen.wait_until(lambda: "new.txt" in recorded(stage), "new.txt recorded")
    assert recorded(stage)["new.txt"] == ("", "disk", "[]")


@pytest.mark.local("which of two agents has written a file is not known there")
def test_two_agents_commands_at_once_are_told_apart(stage: Stage) -> None:
    git = stage.sandbox.project / ".git"
    stage.start_emacs(stage.sandbox.greeting, forms=(FREE,))
    stage.start_cli()

    def script(name: str) -> None:
        for fifo in (git / name, git / f"{name}-end"):
            os.mkfifo(fifo)
        run(stage, f"touch .git/{name}-runs; read x < .git/{name}; echo {name} > {name}.txt; read x < .git/{name}-end")

    def is_running(name: str) -> bool:
        return (git / f"{name}-runs").exists()

    script("one")
    stage.ask("first", FREE_QWEN)
    stage.screen.wait_until(lambda: is_running("one"), "the first command")
    script("two")
    with answering(stage, "second", with_layer(stage)):
        stage.screen.wait_until(lambda: is_running("two"), "the second command")
        for name in ("two", "one"):
            (git / name).write_text("\n")
            stage.screen.wait_until(lambda name=name: f"{name}.txt" in recorded(stage), f"{name}.txt recorded")
        assert recorded(stage)["one.txt"] == ("first", "hooks", "[]")
        assert recorded(stage)["two.txt"] == ("second", "hooks", "[]")
        stage.model.say("All done.")
        stage.model.say("All done.")
        for name in ("one", "two"):
            (git / f"{name}-end").write_text("\n")
    stage.screen.wait_for("All done.")
