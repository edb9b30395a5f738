# SPDX-License-Identifier: GPL-3.0-or-later
"""Qwen Code at each kind of place, in the versions that have hooks, and over a line that takes its time."""

from __future__ import annotations

import os
import shutil
import time

import pytest

from far import PLACES, Far
from stage import Stage
from test_remote import (
    do_everything,
    far,
    kill_and_wait,
    paste_image,
    propose,
    start_cli,
    start_emacs,
)

__all__ = ["far"]

pytestmark = pytest.mark.interop


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("sudo") is None, reason="needs root, and sudo")
@pytest.mark.parametrize(
    "method", [pytest.param(method, marks=pytest.mark.at(method)) for method in PLACES if method != "ssh"]
)
def test_the_main_job_at_each_kind_of_place(stage: Stage, far: Far, method: str) -> None:
    """As on a host: context, reviews, turns, prompts, tools, following, and nothing left."""
    assert far.place == PLACES[method].format_map(far.users)
    do_everything(stage, far)
    paste_image(stage)


@pytest.mark.at("ssh")
@pytest.mark.parametrize("seconds", [0, 0.08])
def test_a_review_over_a_slow_line(stage: Stage, far: Far, seconds: float) -> None:
    """How long it takes from the answer of the model to the screen is printed, of both kinds of review."""
    if seconds:
        far.slow_down(seconds)
    start_emacs(stage)
    start_cli(stage, far)
    for number, style in enumerate(("ediff", "unified") * 3):
        stage.emacs.eval(f"(setq qwen-companion-diff-style '{style})")
        text = f"# {number}\n"
        stage.model.call("read_file", file_path=str(far.file))
        stage.model.call("write_file", file_path=str(far.file), content=text)
        asked = len(stage.model.bodies)
        stage.ask(f"please {number}")
        stage.screen.wait_until(lambda before=asked: len(stage.model.bodies) > before + 1, "the file to be read")
        start = time.perf_counter()
        stage.screen.wait_for("1 of 1 hunk kept" if style == "unified" else "C-c C-c accept")
        took, load = time.perf_counter() - start, os.getloadavg()[0]
        print(f"a review ({style}) over a line of {1000 * seconds:.0f} ms: {took:.2f} s at a load of {load:.0f}")
        stage.model.say(f"Wrote {number}.")
        stage.accept(f"Wrote {number}.")
        stage.screen.wait_until(lambda written=text: far.file.read_text() == written, "the text there")


@pytest.mark.at("ssh")
@pytest.mark.parametrize("program", ["qwen-0.21.10", "qwen-0.23.4", "qwen"])
def test_a_line_that_breaks_just_after_the_start(stage: Stage, far: Far, program: str) -> None:
    """What it has asked for is sent again, and its session is kept until the line is back, here after six seconds."""
    start_emacs(stage, f'(setq qwen-companion-qwen-command (list "{program}"))')
    start_cli(stage, far)
    far.slow_down(0, start=6)
    kill_and_wait(stage, far, far.links()[-1])
    propose(stage, far, "# new\n")
    stage.model.say("Wrote it.")
    stage.accept("Wrote it.")
    stage.screen.wait_until(lambda: far.file.read_text() == "# new\n", "the text there")


@pytest.mark.at("ssh")
def test_two_emacsen_serve_one_place(stage: Stage, far: Far) -> None:
    """Each has the CLI that it has started, and the end of one costs the other nothing."""

    def locks() -> int:
        return sum(path.suffix == ".lock" for path in far.laid)

    def write(emacs: Stage, text: str) -> None:
        propose(emacs, far, text)
        emacs.model.say(f"Wrote {text.strip()}.")
        emacs.accept(f"Wrote {text.strip()}.")
        emacs.screen.wait_until(lambda: far.file.read_text() == text, "the text there")

    start_emacs(stage)
    start_cli(stage, far)
    with stage.beside() as other:
        start_emacs(other)
        start_cli(other, far)
        assert locks() == 2
        write(other, "# other\n")
        stage.screen.wait_until(lambda: stage.emacs.buffer_text(far.file.name) == "# other\n", "its buffer to follow")
        write(stage, "# first\n")
        other.emacs.quit()
    stage.screen.wait_until(lambda: locks() == 1, "the files of one")
    write(stage, "# again\n")
