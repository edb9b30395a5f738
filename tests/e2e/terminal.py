# SPDX-License-Identifier: GPL-3.0-or-later
"""A terminal that a test types into and looks at: a tmux server of its own.

Nothing here sleeps: a control-mode client is told by tmux of every output, and each time the screen is looked at anew,
by the same client.
"""

from __future__ import annotations

import queue
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from limit import limit_s

T = TypeVar("T")

LOOK_S: Final = 1.0
"""Seconds after which a look is worth while though nothing was put out."""
PATIENCE: Final = limit_s()
"""Seconds to wait for anything that should come at once."""


class ScreenTimeoutError(AssertionError):
    """A wait for a text on the screen timed out; the message shows the last screen."""


class Screen:
    """One pane of `columns` x `rows` in which one program runs; the pane stays when the program ends."""

    def __init__(self, directory: Path, environment: Mapping[str, str], columns: int = 130, rows: int = 50) -> None:
        self._socket = directory / "tmux"
        self._environment = dict(environment)
        self._size = (columns, rows)
        self._control: subprocess.Popen[str] | None = None
        self._outputs = 0
        self._changed = threading.Condition()
        self._reader: threading.Thread | None = None
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.log: list[str] = []
        """The keys typed and the texts waited for, for the records of a failed test."""

    # --- Life

    def start(self, command: Sequence[str], directory: Path) -> None:
        """Run `command` in `directory`."""
        columns, rows = self._size
        session = ("new-session", "-d", "-s", "test", "-x", str(columns), "-y", str(rows), "-c", str(directory))
        self._tmux(
            *("-f", "/dev/null", "start-server", ";"),
            *("set-option", "-g", "default-terminal", "screen-256color", ";"),
            *("set-option", "-g", "remain-on-exit", "on", ";"),
            *(*session, "--", *command),
        )
        self._control = subprocess.Popen(
            ["tmux", "-S", str(self._socket), "-C", "attach-session", "-t", "test"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, args=(self._control,), name="tmux-control", daemon=True)
        self._reader.start()
        # To attaching itself.
        self._answer()

    def _read(self, control: subprocess.Popen[str]) -> None:
        assert control.stdout is not None
        lines = iter(control.stdout)
        for line in lines:
            if line.startswith("%begin "):
                self._answers.put(_answer(line, lines))
            elif line.startswith("%"):
                with self._changed:
                    self._outputs += 1
                    self._changed.notify_all()
        self._answers.put(None)

    def _answer(self) -> str:
        answer = self._answers.get(timeout=PATIENCE)
        assert answer is not None, "tmux has ended, or has refused a command"
        return answer

    def close(self) -> None:
        """End the tmux server and all programs in it."""
        control, self._control = self._control, None
        if control is None:
            return
        subprocess.run(["tmux", "-S", str(self._socket), "kill-server"], env=self._environment, capture_output=True)
        with control:
            control.wait(PATIENCE)
            assert self._reader is not None
            self._reader.join(PATIENCE)

    def _tmux(self, *arguments: str) -> str:
        result = subprocess.run(
            ["tmux", "-S", str(self._socket), *arguments],
            env=self._environment,
            capture_output=True,
            check=False,
            encoding="utf-8",
        )
        if result.returncode:
            raise AssertionError(f"tmux {' '.join(arguments)}: {result.stderr}")
        return result.stdout

    @property
    def running(self) -> bool:
        """Whether it has been started and not yet closed."""
        return self._control is not None

    # --- Typing

    def keys(self, *keys: str) -> None:
        """Press `keys`, by tmux's names: "M-x", "C-c", "Enter", "Down"."""
        self.log.append(f"keys {' '.join(keys)}")
        self._tmux("send-keys", "-t", "test", *keys)

    def type(self, text: str, seen: str | re.Pattern[str] | None = None) -> None:
        """Type `text` and wait until it, or `seen`, is on the screen.

        What follows, often Enter, is then not taken for a part of a paste.
        """
        self.log.append(f"type {text}")
        self._tmux("send-keys", "-t", "test", "-l", text)
        self.wait_for(seen or text.rstrip())

    def enter(self, text: str, seen: str | re.Pattern[str] | None = None) -> None:
        """Type `text`, see `type`, and press Enter."""
        self.type(text, seen)
        self.keys("Enter")

    # --- Looking

    def capture(self, colours: bool = False) -> str:
        """Return the screen as text, with escape sequences for `colours` if wanted."""
        control = self._control
        assert control is not None, "nothing was started on this screen"
        assert control.stdin is not None
        control.stdin.write(f"capture-pane -p -t test {'-e' if colours else ''}\n")
        control.stdin.flush()
        return self._answer()

    def wait_for(self, wanted: str | re.Pattern[str], timeout: float = PATIENCE) -> str:
        """Wait until `wanted` is on the screen, and return the screen; `timeout` in seconds."""
        pattern = re.compile(re.escape(wanted)) if isinstance(wanted, str) else wanted

        def look() -> str | None:
            screen = self.capture()
            return screen if pattern.search(screen) else None

        return self.wait_until(look, f"{wanted!r} on the screen", timeout)

    def wait_gone(self, unwanted: str, timeout: float = PATIENCE) -> str:
        """Wait until `unwanted` is no longer on the screen, and return the screen; `timeout` in seconds."""

        def look() -> str | None:
            screen = self.capture()
            return None if unwanted in screen else screen

        return self.wait_until(look, f"{unwanted!r} gone from the screen", timeout)

    def wait_until(self, look: Callable[[], T | None], what: str, timeout: float = PATIENCE) -> T:
        """Call `look` now, after each output and now and then, until it returns something true; `timeout` in seconds.

        `what` names it in the error.
        """
        self.log.append(f"wait for {what}")
        deadline = time.monotonic() + timeout
        while True:
            # Counted before the look: what comes in between wakes us at once.
            seen = self._outputs
            found = look()
            if found:
                return found
            left = deadline - time.monotonic()
            if left > 0:
                # What LOOK looks at may change without a trace on the screen.
                with self._changed:
                    self._changed.wait_for(lambda seen=seen: self._outputs != seen, min(left, LOOK_S))
            else:
                raise ScreenTimeoutError(f"waited {timeout:g} s for {what}; the screen is\n{self._framed()}")

    def _framed(self) -> str:
        edge = "-" * self._size[0]
        return f"{edge}\n{self.capture().rstrip()}\n{edge}"


def _answer(begin: str, lines: Iterable[str]) -> str | None:
    """Return the answer of tmux that starts with the line `begin` and is in the next `lines`; None for an error."""
    number = begin.removeprefix("%begin ")
    answer: list[str] = []
    for line in lines:
        if line == f"%end {number}":
            return "".join(answer)
        if line == f"%error {number}":
            return None
        answer.append(line)
    return None
