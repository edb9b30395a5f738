# SPDX-License-Identifier: GPL-3.0-or-later
"""An Emacs with a window of its own on an X display, used by its keys and the mouse."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import pytest

from display import Display, display
from editor import draws_windows
from stage import Stage

needs_windows: Final = pytest.mark.skipif(
    not draws_windows(), reason="this Emacs draws no windows: EMACS=/path/to/emacs names one that does"
)


class Window:
    """The window of the Emacs of `stage` on `screen`."""

    def __init__(self, stage: Stage, screen: Display) -> None:
        self._stage = stage
        self._screen = screen
        self._id = stage.emacs.text("(frame-parameter nil 'outer-window-id)")

    def keys(self, *keys: str) -> None:
        """Press `keys`, see `Display.keys`."""
        self._screen.keys(self._id, *keys)

    def type(self, text: str) -> None:
        """Type `text`."""
        self._screen.type(self._id, text)

    def click(self, x: int, y: int) -> None:
        """Click with the left button at `x`, `y`, in pixels of the screen."""
        self._screen.click(x, y)

    def leave(self) -> None:
        """Take the focus from the window; returns when Emacs knows."""
        self._screen.leave()
        self._stage.emacs.wait_until("(not (frame-focus-state))")

    def command(self, name: str) -> None:
        """Type M-x `name` RET."""
        self.keys("alt+x")
        self.type(name)
        self.keys("Return")

    def wait_until(self, form: str) -> None:
        """Wait until `form` is true in Emacs, which draws on the terminal it was started in when there may be news."""
        self._stage.screen.wait_until(lambda: self._stage.emacs.eval(form) != "nil", form)


@contextmanager
def open_window(stage: Stage, *forms: str) -> Generator[Window]:
    """Start Emacs, which evaluates `forms`, and turn the mode on by typing its name.

    Such an Emacs draws nothing on the terminal it was started in, where `Window.wait_until` looks for something new:
    one of `forms` has to see to it that it writes there.
    """
    with display() as screen:
        stage.emacs.start(stage.sandbox.greeting, forms=forms, display=screen.name)
        window = Window(stage, screen)
        window.command("qwen-companion-mode")
        window.wait_until("(eq (qwen-companion-state) 'ready)")
        yield window
