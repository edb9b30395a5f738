# SPDX-License-Identifier: GPL-3.0-or-later
"""The records of a stage that explain a failure."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from editor import EmacsError
from stage import Stage

UNCAUGHT = re.compile(
    r"^error in process .*|^Error (?:running timer|during redisplay).*"
    r"|^Error in \S*-(?:hook|functions?)(?! \(term--update-term-menu\)).*",
    re.MULTILINE,
)
"""The messages of Emacs about errors outside of commands.

Once there was a `term', Emacs 28 fails to update its menu where a buffer without a local keymap is selected.
"""


def keep_records(stage: Stage, folder: Path) -> None:
    """Put all that explains a failure on `stage` into `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if stage.screen.running:
        (folder / "screen.txt").write_text(stage.screen.capture(), errors="backslashreplace")
        (folder / "screen.ansi").write_text(stage.screen.capture(colours=True), errors="backslashreplace")
    (folder / "typed.txt").write_text("\n".join(stage.screen.log) + "\n", errors="backslashreplace")
    (folder / "model-requests.json").write_text(json.dumps(stage.model.bodies, indent=1), errors="backslashreplace")
    (folder / "files.txt").write_bytes(b"\n".join(map(os.fsencode, sorted(stage.sandbox.root.rglob("*")))))
    if stage.emacs.running:
        for buffer in ("*Messages*", "*qwen-companion log*", "*Warnings*", "*Backtrace*"):
            try:
                (folder / f"{buffer.strip('*').replace(' ', '-')}.txt").write_text(
                    stage.emacs.buffer_text(buffer), errors="backslashreplace"
                )
            except EmacsError as error:
                (folder / "emacs-error.txt").write_text(str(error), errors="backslashreplace")
                break
    for log in sorted(stage.sandbox.home.glob(".qwen/debug/*.txt"), key=lambda path: path.stat().st_mtime):
        shutil.copyfile(log, folder / "qwen-debug.txt")


def shown_records(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the records in `folder` that a report shows, each with its name; only the ends of long ones."""
    yield "records", str(folder)
    for name in ("typed", "screen", "Messages", "Warnings", "Backtrace", "emacs-error", "qwen-companion-log"):
        path = folder / f"{name}.txt"
        if path.exists() and (text := path.read_text().strip()):
            yield name, "\n".join(text.splitlines()[-60:])
    log = folder / "qwen-debug.txt"
    if log.exists():
        # A line may hold a whole request.
        yield "log of the CLI", "\n".join(line[:300] for line in log.read_text().splitlines()[-60:])
