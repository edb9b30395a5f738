# SPDX-License-Identifier: GPL-3.0-or-later
"""Emacs as a daemon, without a frame of its own, and frames of emacsclient."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from editor import CLIENT, EMACS, QUIET, Emacs, EmacsError
from sandbox import CHECKOUT
from terminal import PATIENCE

# In a file of settings it stands like this too.
MODE_ON = "(qwen-companion-mode 1)"
WAIT_UNTIL_READY = "(eq (qwen-companion-state) 'ready)"
# The frame on an X display, if there is one.
WINDOW = "(seq-find #'display-graphic-p (frame-list))"
# Emacs keeps the connection to a display whose last frame has gone.
CLOSE_DISPLAYS = "(mapc #'delete-terminal (seq-filter (lambda (each) (eq 'x (terminal-live-p each))) (terminal-list)))"


class Daemon(Emacs):
    """Emacs without a frame of its own."""

    _frames = 0

    def start_daemon(self, *files: Path, forms: tuple[str, ...] = ()) -> None:
        """Start it, evaluate `forms`, visit `files`; returns when it can be asked.  It has no parent but the system."""
        subprocess.run(
            self._command("daemon", files, forms),
            cwd=self._sandbox.project,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PATIENCE,
            check=True,
        )
        self._process = psutil.Process(int(self.eval("(emacs-pid)")))

    @contextmanager
    def supervised_daemon(self, *files: Path, forms: tuple[str, ...] = ()) -> Generator[None]:
        """As `start_daemon`, but a child of this process, as a service is one of its manager; ends with the context."""
        tell = (
            """(advice-add 'server-start :after (lambda (&rest _) (princ "listening\n" #'external-debugging-output)))"""
        )
        with subprocess.Popen(
            self._command("fg-daemon", files, (tell, *forms)),
            cwd=self._sandbox.project,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert process.stderr is not None
                assert any(line == "listening\n" for line in process.stderr)
                self._process = psutil.Process(process.pid)
                yield
                self.quit()
            finally:
                process.kill()

    def _command(self, option: str, files: Sequence[Path], forms: Sequence[str]) -> list[str]:
        self._server = self._sandbox.run / "daemon"
        evaluations = [argument for form in forms for argument in ("--eval", form)]
        options = ["-Q", *QUIET, "-l", str(CHECKOUT / "scripts/checkout.el"), *evaluations]
        return [*EMACS, f"--{option}={self._server}", *options, *map(str, files)]

    def open_window(self, display: str) -> str:
        """Open a frame with a window of its own on `display`; return the id of the window."""
        client = [CLIENT, "-c", "-n", "-s", str(self._server), "--display", display]
        result = subprocess.run(client, env=self._environment, timeout=PATIENCE, capture_output=True, encoding="utf-8")
        if result.returncode:
            raise EmacsError(f"no frame on {display}: {result.stdout}{result.stderr}")
        # The client does not wait for the frame.
        self.wait_until(WINDOW)
        return self.text(f"(frame-parameter {WINDOW} 'outer-window-id)")

    def open_frame(self, file: Path) -> None:
        """Type the command that opens a frame with `file` into the shell on the screen."""
        client = shlex.join([CLIENT, "-t", "-s", str(self._server), str(file)])
        self._frames += 1
        # What is typed is on the screen too, and must not look like what is printed.
        self.screen.enter(f"{client}; printf 'frame %s closed\\n' {self._frames}")
        self.screen.wait_for("File Edit Options")

    def close_frame(self) -> None:
        """Close the frame on the screen; returns when the shell is back."""
        self.screen.keys("C-x", "C-c")
        # Emacs may draw the last time without a menu bar, and would read what is typed then.
        self.screen.wait_for(f"frame {self._frames} closed")
