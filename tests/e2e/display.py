# SPDX-License-Identifier: GPL-3.0-or-later
"""An X display of its own, and keys pressed on it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager

from terminal import PATIENCE


class Display:
    """A running X server without a window manager; `name` is the value for DISPLAY."""

    def __init__(self, name: str) -> None:
        self.name = name

    def keys(self, window: str, *keys: str) -> None:
        """Press `keys`, by xdotool's names ("ctrl+c", "Return"), in `window`, an id."""
        self._xdotool("windowfocus", "--sync", window, "key", "--clearmodifiers", *keys)

    def type(self, window: str, text: str) -> None:
        """Type `text` in `window`, an id."""
        self._xdotool("windowfocus", "--sync", window, "type", "--clearmodifiers", "--delay", "20", text)

    def click(self, x: int, y: int) -> None:
        """Click with the left button at `x`, `y`, in pixels of the screen."""
        self._xdotool("mousemove", "--sync", str(x), str(y), "click", "1")

    def leave(self) -> None:
        """Give the focus to no window, as if the user had gone to another program."""
        self._xdotool("search", "--maxdepth", "0", "", "windowfocus")

    def _xdotool(self, *arguments: str) -> None:
        subprocess.run(["xdotool", *arguments], env={**os.environ, "DISPLAY": self.name}, check=True, timeout=PATIENCE)


@contextmanager
def display(width: int = 1400, height: int = 900) -> Generator[Display]:
    """Yield a display with one screen of `width` x `height` pixels, as long as the context lasts."""
    reader, writer = os.pipe()
    command = ["Xvfb", "-displayfd", str(writer), "-screen", "0", f"{width}x{height}x24", "-nolisten", "tcp"]
    # Else it begins anew when its last client goes, and refuses whoever comes just then.
    command.append("-noreset")
    server = subprocess.Popen(command, pass_fds=(writer,), stderr=subprocess.DEVNULL)
    os.close(writer)
    try:
        with os.fdopen(reader) as answer:
            yield Display(f":{answer.readline().strip()}")
    finally:
        server.terminate()
        server.wait()
