# SPDX-License-Identifier: GPL-3.0-or-later
"""Time how long keys wait in the prompt of a chat while a long answer streams into it, and while it is loaded again.

    .build/venv/bin/python bench/keys.py [CHARACTERS [RATE]]

In `emacs -Q -nw` with its own `gc-cons-threshold`; a played `qwen serve` sends so many CHARACTERS (2,000,000) of prose,
lists, code and tables in small pieces, RATE (200,000) a second.  A key is typed every 20 ms.  A gap is the time between
two calls of a timer that is due every 10 ms.  By the clock, both go by what else the machine does, too; of the
processor's time, only by Emacs.  Asserts nothing.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import struct
import sys
import tempfile
import termios
import time
from bisect import bisect
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(CHECKOUT / name) for name in ("tests/e2e", "tests/helpers", "python")]

from fake_daemon import ROOT, TOKEN, FakeDaemon, FakeSession, chunk, event  # noqa: E402  the path is set first
from table import percentile, row  # noqa: E402

Time = tuple[float, float]
"""Seconds since the epoch, and those that the processor has worked for Emacs."""

GOAL = "p99 50 ms, at most 200 ms"

KEY_S = 0.02

PIECE = 80
"""Characters of a piece of the answer."""

TEXT = '''\
## The next step

The *second* word of `name-of-it` is **not** what one expects: see [the page](https://example.org/a), and then
lib/module.py:12, where the same is done for each of them.  A line of prose is about as long as this one is, or a bit
longer, as models like them to be.

- one point, with `code` in it;
- and another one, which is longer than the first and **stresses** something.

```python
def function(argument: int) -> str:
    """Return it."""
    return [str(number) for number in range(argument) if number % 2]
```

| name | what it is | how many |
|------|:----------:|---------:|
| one  | the first  |       12 |
| two  | the second |      345 |

'''

LAST = "The very end"

INIT = """
(progn
  (setq native-comp-deferred-compilation nil
        qwen-companion-daemon-enabled t
        bench-keys nil bench-ticks nil bench-watcher (timer-create))
  (defun bench-write (name value)
    (let ((file (expand-file-name name (getenv "BENCH"))))
      (write-region (format "%s" value) nil (concat file "-new") nil 0)
      (rename-file (concat file "-new") file)))
  (defun bench-time () (cons (float-time) (float-time (get-internal-run-time))))
  (defun bench-key ()
    (interactive)
    (push (bench-time) bench-keys)
    (if (> (current-column) 60)
        (delete-region qwen-companion-chat-blocks-prompt-start (point))
      (insert "a")))
  (defun bench-times ()
    (mapconcat (lambda (time) (format "%.6f %.6f" (car time) (cdr time)))
               (append (nreverse bench-keys) '((0 . 0)) (nreverse bench-ticks)) " "))
  (defun bench-open ()
    (qwen-companion-chat)
    (delete-other-windows)
    (local-set-key "a" 'bench-key))
  (defun bench-watch ()
    (if (save-excursion
          (goto-char qwen-companion-chat-blocks-prompt-start)
          (search-backward "LAST" (max (point-min) (- (point) 2000)) t))
        (bench-write "shown" t)
      (bench-watch-later)))
  (defun bench-watch-later (&rest _)
    (cancel-timer bench-watcher)
    (setq bench-watcher (run-at-time 0.3 nil 'bench-watch)))
  (advice-add 'qwen-companion-chat--on-reset :after 'bench-watch-later)
  (run-at-time 0.01 0.01 (lambda () (push (bench-time) bench-ticks)))
  (qwen-companion-mode 1)
  (bench-write "started" t))
""".replace("LAST", LAST)


class Terminal:
    """Emacs on a pseudo terminal of 80 columns and 40 lines; what it writes is in the directory `home`."""

    def __init__(self, home: Path, url: str) -> None:
        self._home = home
        command = [os.environ.get("EMACS") or "emacs", "-Q", "-nw", "-l", str(CHECKOUT / "scripts/checkout.el")]
        places = {name: str(home) for name in ("HOME", "XDG_RUNTIME_DIR", "BENCH")}
        daemon = {"QWEN_SERVER_TOKEN": TOKEN, "QWEN_IDE_DAEMON_URL": url}
        self._pid, self._terminal = pty.fork()
        if not self._pid:
            os.chdir(home)
            os.execvpe(command[0], [*command, "--eval", INIT], os.environ | places | daemon | {"TERM": "xterm"})  # noqa: S606
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
        asyncio.get_running_loop().add_reader(self._terminal, os.read, self._terminal, 65536)

    def type(self, text: str) -> None:
        """Type `text`."""
        os.write(self._terminal, text.encode())

    async def written(self, name: str) -> str:
        """Wait for what Emacs writes as `name`; return its text."""
        file = self._home / name
        while not file.exists():
            await asyncio.sleep(KEY_S)
        text = file.read_text()
        file.unlink()
        return text

    async def eval(self, form: str) -> str:
        """Evaluate `form` in Emacs, as the user can, and return its value as text."""
        self.type(f'\x1b:(bench-write "value" {form})\r')
        return await self.written("value")

    async def until(self, form: str) -> None:
        """Wait until `form` is true in Emacs."""
        while await self.eval(form) == "nil":
            await asyncio.sleep(0.1)

    def end(self) -> None:
        """End Emacs."""
        asyncio.get_running_loop().remove_reader(self._terminal)
        os.kill(self._pid, 9)
        os.waitpid(self._pid, 0)


async def type_until_shown(terminal: Terminal, what: str, begin: Callable[[], None]) -> None:
    """Call `begin`, type until all of the answer is shown, and print how long the keys waited and the longest gaps."""
    await terminal.eval("(setq bench-keys nil bench-ticks nil)")
    begin()
    shown = asyncio.create_task(terminal.written("shown"))
    sent: list[float] = []
    while not shown.done():
        await asyncio.sleep(KEY_S)
        sent.append(time.time())
        terminal.type("a")
    keys, ticks = read_times(await terminal.eval("(bench-times)"))
    for clock, name in enumerate(("by the clock", "of the processor's time")):
        waits = [
            1000 * (key[clock] - (_processor(ticks, moment) if clock else moment))
            for key, moment in zip(keys, sent, strict=True)
        ]
        p50, p95, p99 = (percentile(waits, share) for share in (0.5, 0.95, 0.99))
        gap = max(1000 * (later[clock] - earlier[clock]) for earlier, later in pairwise(ticks))
        # `round`, as a format gives "-0".
        times = f"p50 {round(p50)}, p95 {round(p95)}, p99 {round(p99)}, at most {max(waits):.0f} ms"
        measured = f"{times}; longest gap {gap:.0f} ms"
        row("speed", f"a key while a long answer is {what}, {name}", measured, GOAL)


def read_times(text: str) -> tuple[list[Time], list[Time]]:
    """Return the times of the keys and of the ticks in `text`."""
    numbers = list(map(float, text.split()))
    times = list(zip(numbers[::2], numbers[1::2], strict=True))
    end = times.index((0, 0))
    return times[:end], times[end + 1 :]


def _processor(ticks: list[Time], moment: float) -> float:
    """Return how long the processor had worked for Emacs at `moment`, in s, from the `ticks` around it."""
    index = min(max(1, bisect(ticks, (moment, 0.0))), len(ticks) - 1)
    (start, before), (end, after) = ticks[index - 1], ticks[index]
    return before + (after - before) * min(1, max(0, (moment - start) / (end - start)))


async def answer(session: FakeSession, characters: int, rate: int) -> None:
    """Stream an answer of so many `characters`, `rate` a second."""
    text = TEXT * (characters // len(TEXT) + 1)
    started = time.monotonic()
    session.prompts.append("prompt")
    for start in range(0, characters, PIECE):
        session.emit(chunk(text[start : start + PIECE]))
        await asyncio.sleep(max(0, started + start / rate - time.monotonic()))
    ended = event("turn_complete")
    ended["promptId"] = ended["data"]["promptId"] = "prompt"
    session.emit(chunk(f"\n{LAST}\n"), ended)


async def main(characters: int = 2_000_000, rate: int = 200_000) -> None:
    """Print the rows."""
    tasks: list[asyncio.Task[None]] = []
    with tempfile.TemporaryDirectory() as directory:
        async with FakeDaemon() as daemon:
            terminal = Terminal(Path(directory), daemon.url)
            try:
                await terminal.written("started")
                await terminal.until("(eq 'ready (qwen-companion-state))")
                await terminal.eval(f'(qwen-companion-daemon-connect "{ROOT}")')
                await terminal.until("(eq 'connected (qwen-companion-daemon-state))")
                await terminal.eval("(bench-open)")
                await terminal.until("(qwen-companion-daemon-session-state qwen-companion-chat-session)")
                await terminal.eval("(bench-watch-later)")
                (session,) = daemon.sessions.values()
                stream = answer(session, characters, rate)
                await type_until_shown(terminal, "streamed", lambda: tasks.append(asyncio.create_task(stream)))
                await type_until_shown(
                    terminal, "loaded again", lambda: terminal.type("\x1b:(progn (qwen-companion-chat-reload) nil)\r")
                )
            finally:
                terminal.end()
                # The Python process ends with its Emacs: a daemon that closes a stream before its reader logs an error.
                while any(session.streams for session in daemon.sessions.values()):
                    await asyncio.sleep(KEY_S)


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
