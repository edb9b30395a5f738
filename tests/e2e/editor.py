# SPDX-License-Identifier: GPL-3.0-or-later
"""A real `emacs -nw` with the checkout loaded, on a `Screen`, with a server for questions by emacsclient."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import psutil

from far import Far
from sandbox import CHECKOUT, Sandbox, has_ended
from terminal import PATIENCE, Screen

PROGRAM: Final = os.environ.get("EMACS") or "emacs"
# As `make emacs`: else Emacs compiles some of its own Lisp to machine code again, in the background of every test.
EMACS: Final = ("env", f"EMACSLOADPATH={CHECKOUT / 'scripts/startup'}:", PROGRAM)
QUIET: Final = (
    "--eval",
    # At its end, Emacs asks about the file of the menus' history when another one has locked it.
    "(setq suggest-key-bindings nil transient-save-history nil"
    # A third of what Emacs does in a test is collecting, by default after each 800 kB.
    " gc-cons-threshold (* 32 1024 1024))",
    # Each file that is visited would start git four times, for the mode line.
    "--eval",
    "(remove-hook 'find-file-hook #'vc-refresh-state)",
)
CLIENT: Final = os.environ.get("EMACSCLIENT") or "emacsclient"


# In its next call FUNCTION lasts until input interrupts it, where that is allowed.
_DAWDLE: Final = """
(progn
  (defun dawdle (&rest _)
    (advice-remove 'FUNCTION #'dawdle)
    (write-region "" nil FILE nil 0)
    (let ((end (+ LIMIT (float-time))))
      (while (< (float-time) end))))
  (advice-add 'FUNCTION :before #'dawdle))
"""


class EmacsError(AssertionError):
    """A form signalled an error, or Emacs did not answer."""


def lisp_string(text: str) -> str:
    """`text` as a string of Emacs Lisp's syntax."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@cache
def draws_windows() -> bool:
    """Whether the Emacs under test can have windows of its own."""
    form = "(kill-emacs (if (fboundp 'x-create-frame) 0 1))"
    return subprocess.run([PROGRAM, "-Q", "--batch", "--eval", form], capture_output=True).returncode == 0


class Emacs:
    """Emacs for the project of `sandbox`, which is at `far` if given, drawn on `screen`.

    It listens on the socket `server`, by default a new one.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        screen: Screen,
        environment: Mapping[str, str],
        server: Path | None = None,
        far: Far | None = None,
    ) -> None:
        self._sandbox = sandbox
        self._far = far
        self.screen = screen
        self._environment = dict(environment)
        # Not "emacs", which is the directory that Emacs itself makes for its servers.
        self._server = server or sandbox.run / "server"
        self._process: psutil.Process | None = None

    # --- Life

    def start(
        self, *files: Path, forms: tuple[str, ...] = (), display: str | None = None, by_shell: bool = False
    ) -> None:
        """Start it, evaluate `forms`, visit `files`, and wait until it can be asked.

        With `display`, the name of one, it has a window there instead of the screen.  It is a child of the terminal, or
        with `by_shell`, of a shell in it.
        """
        place = ["-nw"] if display is None else ["--display", display, "--fullscreen"]
        # Else it would offer what Emacs was killed with in other tests.
        drafts = f"(setq qwen-companion-drafts-directory {lisp_string(str(self._sandbox.run / 'drafts/'))})"
        evaluations = [argument for form in (drafts, self.server_form(), *forms) for argument in ("--eval", form)]
        command = [
            *EMACS,
            *place,
            "-Q",
            *QUIET,
            "-l",
            str(CHECKOUT / "scripts/checkout.el"),
            *evaluations,
            *map(self.name, files),
        ]
        if by_shell:
            # What follows keeps the shell from giving its own process to Emacs.
            command = ["sh", "-c", f"{shlex.join(command)}; true"]
        if self._far is None:
            self.screen.start(command, self._sandbox.project)
        else:
            self.screen.start([*self._far.apart, *command], self._sandbox.here)
        self.screen.wait_until(self._server.exists, "Emacs's server")
        self._process = psutil.Process(int(self.eval("(emacs-pid)")))

    def name(self, path: Path) -> str:
        """Return the name that Emacs has for the file `path` of the CLIs."""
        return self._far.name(path) if self._far else str(path)

    def lisp_name(self, path: Path) -> str:
        """Return that name as a string of Emacs Lisp's syntax."""
        return lisp_string(self.name(path))

    def server_form(self) -> str:
        """Return the form with which it becomes one that can be asked."""
        return (
            f"(progn (setq server-socket-dir {lisp_string(str(self._server.parent))}"
            f" server-name {lisp_string(self._server.name)}) (server-start))"
        )

    @property
    def process(self) -> psutil.Process:
        """The process of Emacs."""
        assert self._process is not None, "Emacs was not started"
        return self._process

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and not has_ended(self._process, 0)

    def quit(self) -> None:
        """End it as C-x C-c does when nothing has to be asked, and wait until it has gone."""
        self.send("(kill-emacs)")
        if not has_ended(self.process, PATIENCE):
            raise EmacsError(f"Emacs is still there {PATIENCE:g} s after kill-emacs")

    # --- Asking

    def eval(self, form: str, timeout: float = PATIENCE) -> str:
        """Evaluate `form` in Emacs and return its value as printed; `timeout` in seconds."""
        try:
            result = subprocess.run(
                [CLIENT, "-s", str(self._server), "--eval", form],
                cwd=self._sandbox.project,
                env=self._environment,
                capture_output=True,
                encoding="utf-8",
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise EmacsError(f"Emacs did not answer {form} in {timeout:g} s") from None
        if result.returncode:
            raise EmacsError(f"{form}: {result.stdout}{result.stderr}")
        return result.stdout.strip()

    def wait_until(self, form: str) -> None:
        """Wait until `form` is true in Emacs, which goes on working meanwhile."""
        # A key that comes meanwhile is read by the command loop only, and FORM may depend on it.
        wait = (
            f'(with-timeout ({PATIENCE} (error "Never true")) (let (done)'
            f" (while (not (or (setq done {form}) (input-pending-p))) (accept-process-output nil 0.05)) (and done t)))"
        )
        deadline = time.monotonic() + PATIENCE
        while self.eval(wait, 2 * PATIENCE) == "nil":
            if time.monotonic() > deadline:
                raise EmacsError(f"keys are pending for {PATIENCE:g} s, and not {form}")

    def send(self, form: str) -> None:
        """Evaluate `form`, which may end Emacs; its value is not wanted."""
        subprocess.run([CLIENT, "-s", str(self._server), "--eval", form], env=self._environment, capture_output=True)

    def text(self, form: str) -> str:
        """Evaluate `form`, whose value is a string, and return it."""
        path = self._server.with_suffix(".value")
        self.eval(
            f"(let ((coding-system-for-write 'utf-8-unix)) (write-region {form} nil {lisp_string(str(path))} nil 0))"
        )
        return path.read_text(encoding="utf-8", errors="surrogateescape")

    def buffer_text(self, name: str) -> str:
        """Return the whole text of the buffer `name`; empty when there is none."""
        buffer = lisp_string(name)
        return self.text(
            f"(if (get-buffer {buffer})"
            f" (with-current-buffer {buffer} (save-restriction (widen) (buffer-substring-no-properties 1 (point-max))))"
            ' "")'
        )

    def visible_buffers(self) -> list[str]:
        """Return the names of the buffers in the windows of the selected frame, from the top left on."""
        return self.text(
            "(mapconcat (lambda (window) (buffer-name (window-buffer window)))"
            ' (window-list nil \'no-minibuffer (frame-first-window)) "\\n")'
        ).split("\n")

    # --- Typing

    def type_into(self, function: str, text: str, start: Callable[[], None]) -> None:
        """Call `start` and type `text`, all at once, while the next call of `function` keeps Emacs busy.

        Returns when all of `text` is on the screen.
        """
        begun = self._server.with_suffix(".begun")
        begun.unlink(missing_ok=True)
        dawdle = _DAWDLE.replace("FUNCTION", function).replace("FILE", lisp_string(str(begun)))
        self.eval(dawdle.replace("LIMIT", f"{PATIENCE:g}"))
        start()
        self.screen.wait_until(begun.exists, f"a call of {function}")
        self.screen.type(text)

    def command(self, name: str, prefix: bool = False) -> None:
        """Type M-x `name` RET, after C-u with `prefix`."""
        self.screen.keys(*(["C-u"] if prefix else []), "M-x")
        # A message that comes meanwhile is shown beside it.
        self.screen.wait_for(re.compile(rf"^{'C-u ' if prefix else ''}M-x(?: +\[.*\])?$", re.MULTILINE))
        self.screen.enter(name)
