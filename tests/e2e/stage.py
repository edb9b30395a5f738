# SPDX-License-Identifier: GPL-3.0-or-later
"""All the parts of one end-to-end test, and the steps that many of them begin with."""

from __future__ import annotations

import itertools
import re
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from editor import Emacs
from sandbox import Sandbox
from scripted_model import ScriptedModel
from terminal import PATIENCE, Screen

# A word in the echo area whenever the companion's backend is told the context: an event to wait for on the screen.
SHOW_CONTEXT: Final = """
(advice-add 'qwen-companion-backend-call :before
            (lambda (method payload)
              (when (eq method 'context)
                (message "told: line %s, character %s" (plist-get payload :line) (plist-get payload :character)))))
"""


class Stage:
    """A sandbox, a scripted model, a terminal, and an Emacs in it once it is started."""

    def __init__(self) -> None:
        self.sandbox = Sandbox()
        self.model = ScriptedModel()
        self.environment = environment = {**self.sandbox.environment(), **self.model.environment()}
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
        self.emacs.start(*files, forms=(SHOW_CONTEXT, *forms))
        self.emacs.command("qwen-companion-mode")
        self.screen.wait_for(re.compile(r" Qwen(?!:)\b"))

    def start_cli(self) -> None:
        """Start the CLI from Emacs by typing the command's name; returns when it is connected and can be typed to."""
        self.emacs.command("qwen-companion-run")
        self.screen.wait_for("Type your message")
        self.screen.wait_for("Qwen[1]")

    def script_change(self, path: Path, content: str) -> None:
        """Script the turns in which the model proposes CONTENT for the existing file PATH.

        The CLI lets no model change a file that it has not read.
        """
        self.model.call("read_file", file_path=str(path))
        self.model.call("write_file", file_path=str(path), content=content)

    def wait_for_review(self) -> None:
        """Wait until one proposal is on the screen, in Emacs and in the terminal."""
        self.screen.wait_for("Qwen[1!1]")
        self.screen.wait_for("C-c C-c accept")
        self.screen.wait_for("Yes, allow once")

    def wait_for_status(self, wanted: str) -> None:
        """Ask the CLI for its /ide status until it says WANTED: it may take seconds to notice that all is gone."""
        deadline = time.monotonic() + PATIENCE
        for number in itertools.count(1):
            # The CLI ignores the number; it tells this answer from those above it.
            question = f"/ide status {number}"
            self.ask(question)
            answer = re.compile(f"  > {question}.*(Connected to|Disconnected)", re.DOTALL)
            screen = self.screen.wait_for(answer)
            if wanted in screen[screen.rindex(question) :]:
                return
            assert time.monotonic() < deadline, f"the CLI never said {wanted} but\n{screen}"

    def ask(self, text: str) -> None:
        """Type TEXT to the CLI, in whose window the cursor is, and Enter."""
        # What was asked before is on the screen too, but indented.
        self.screen.type(text, seen=re.compile("^> +" + re.escape(text), re.MULTILINE))
        self.screen.keys("Enter")
