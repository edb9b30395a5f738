# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes the moving picture of the README from the running demo: `make screenshots`.

Needs what screenshots.py needs, and gifsicle.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import screenshots
from screenshots import PICTURES, review, start_demo, take, wait_for

from editor import Emacs

COLORS = 48
LIMIT_BYTES = 150_000
STILL_S = (2.0, 4.0, 3.5, 2.5, 3.0)
"""How long each frame is shown, in seconds."""


def story(emacs: Emacs, frames: list[Path], directory: Path) -> None:
    """Play a review from the prompt to the list of changes, and add a picture of each moment to `frames`."""

    def frame() -> None:
        # What the pointer is over would be highlighted.
        emacs.eval("(progn (message nil) (set-mouse-position (selected-frame) 0 0) (redisplay t))")
        display = emacs.eval('(getenv "DISPLAY")').strip('"')
        size = emacs.eval('(format "%dx%d+0+0" (frame-pixel-width) (frame-pixel-height))').strip('"')
        path = directory / f"{len(frames)}.gif"
        command = ["import", "-display", display, "-window", "root", "-crop", size, "+repage", "-colors", str(COLORS)]
        command += ["+dither", str(path)]
        subprocess.run(command, check=True)
        frames.append(path)

    review(emacs, frame)
    frame()
    emacs.eval("(qwen-companion-diff-switch)")
    wait_for(emacs, screenshots.HUNKS_SHOWN)
    frame()
    emacs.eval("(qwen-companion-diff-accept)")
    wait_for(emacs, '(with-current-buffer "greeting.py" (string-match-p "very good day" (buffer-string)))')
    wait_for(emacs, "(null (qwen-companion-proposals))")
    frame()
    emacs.eval("(qwen-companion-changes)")
    wait_for(
        emacs,
        "(cl-some (lambda (window) (with-current-buffer (window-buffer window)"
        ' (and (derived-mode-p \'qwen-companion-changes-mode) (string-match-p "greet" (buffer-string)))))'
        " (window-list))",
    )
    frame()


def main() -> int:
    """Take the pictures and put them together; return the exit status."""
    if shutil.which("gifsicle") is None:
        print("moving_picture: not installed: gifsicle", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        frames: list[Path] = []
        take(str(directory / "last.png"), [], 110, 36, start_demo, lambda emacs: story(emacs, frames, directory))
        target = PICTURES / "demo.gif"
        timed = [
            part for path, still_s in zip(frames, STILL_S, strict=True) for part in (f"-d{still_s * 100:.0f}", path)
        ]
        command = ["gifsicle", "--loopcount=forever", "-O3", *map(str, timed), "-o", str(target)]
        subprocess.run(command, check=True)
    size = target.stat().st_size
    print(f"{target.name}: {size} bytes")
    return int(size > LIMIT_BYTES)


if __name__ == "__main__":
    sys.exit(main())
