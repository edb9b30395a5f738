# SPDX-License-Identifier: GPL-3.0-or-later
"""All the parts of one end-to-end test, and the steps that many of them begin with."""

from __future__ import annotations

import re
from pathlib import Path
from types import TracebackType

from editor import Emacs
from sandbox import Sandbox
from scripted_model import ScriptedModel
from terminal import Screen


class Stage:
    """A sandbox, a scripted model, a terminal, and an Emacs in it once it is started."""

    def __init__(self) -> None:
        self.sandbox = Sandbox()
        self.model = ScriptedModel()
        environment = {**self.sandbox.environment(), **self.model.environment()}
        self.screen = Screen(self.sandbox.run, environment)
        self.emacs = Emacs(self.sandbox, self.screen, environment)

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.screen.close()
            self.sandbox.wait_for_end()
        finally:
            self.model.__exit__(kind, error, trace)
            self.sandbox.remove()

    def end(self) -> None:
        """End Emacs as a user does; nothing of the companion or of the CLI may be left."""
        if self.emacs.running:
            self.emacs.quit()
            self.sandbox.wait_for_end(keep=("tmux: server", "tmux: client"))
            self.sandbox.assert_no_files()

    # --- Steps

    def start_emacs(self, *files: Path, forms: tuple[str, ...] = ()) -> None:
        """Start Emacs and turn the mode on by typing its name; returns when it is ready."""
        self.emacs.start(*files, forms=forms)
        self.emacs.command("qwen-companion-mode")
        self.screen.wait_for(re.compile(r" Qwen(?!:)\b"))

    def start_cli(self) -> None:
        """Start the CLI from Emacs by typing the command's name; returns when it is connected and can be typed to."""
        self.emacs.command("qwen-companion-run")
        self.screen.wait_for("Type your message")
        self.screen.wait_for("Qwen[1]")

    def ask(self, text: str) -> None:
        """Type TEXT to the CLI, in whose window the cursor is, and Enter."""
        self.screen.type(text)
        self.screen.keys("Enter")
