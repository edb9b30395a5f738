# SPDX-License-Identifier: GPL-3.0-or-later
"""The file system for temporary files is full: an accepted text reaches the CLI all the same."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stage import Stage

pytestmark = pytest.mark.local("about the disk of Emacs")

LONG = "".join(f"line {number}, {'naïve ' * 100}\n" for number in range(200))
"""Twice as much as travels inside a call."""


@pytest.fixture
def small_disk(stage: Stage) -> Iterator[Path]:
    """Yield a file system of 1 MB for the temporary files of `stage`."""
    directory = stage.sandbox.tmp
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", directory], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted: {mounted.stderr.strip()}")
    try:
        yield directory
        # What holds files open there has to end first.
        stage.end()
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


def fill(directory: Path) -> Path:
    """Fill the file system of `directory` to its last byte; return the file that does."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError as error:
                assert error.strerror == "No space left on device"
    return filler


def test_a_long_text_is_accepted_while_the_disk_is_full(stage: Stage, small_disk: Path) -> None:
    notes = stage.sandbox.notes
    stage.start_emacs(notes)
    client = stage.connect_client()
    client.propose(notes, LONG)
    stage.screen.wait_for("C-c C-c accept")
    filler = fill(small_disk)
    stage.emacs.eval("(qwen-companion-diff-accept)")
    assert client.write_accepted(notes) == LONG
    messages = stage.emacs.buffer_text("*Messages*")
    assert messages.count("No space left on device") == 1
    assert "long texts are sent over the connection" in messages
    # Emacs tries once more there when it follows what the CLI has written.
    stage.screen.wait_until(lambda: not list(small_disk.glob("qwen-companion-*/text-*")), "no incomplete file")
    filler.unlink()
