# SPDX-License-Identifier: GPL-3.0-or-later
"""Call every command of the package in a project with traps, and list the programs that were started.

The project is that of tests/helpers/hostile_project.py.  An Emacs in a terminal calls the commands, see hostile.el.
What the system tells of programs comes from strace, where it is installed; without it only the traps are looked at, and
what starts a program without a trap is missed.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import sys
import tempfile
import termios
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(CHECKOUT / "python"), str(CHECKOUT / "tests/helpers")]

from hostile_project import make_hostile_project  # noqa: E402
from qwen_companion.journal.record import NOBODY, Cause, Record  # noqa: E402
from qwen_companion.journal.store import TurnRow  # noqa: E402

PYTHON = CHECKOUT / ".build/venv/bin/python"
LIMIT_S = 900
"""How long all commands may take."""

EXECUTED = re.compile(r'execve(?:at)?\((?:[^",]+, )?"((?:[^"\\]|\\.)*)", (\[.*?\])?.* = (-?\d+)')

ALLOWED = {
    "as": "Emacs compiles its own Lisp",
    "bash": "term.el asks it for its version",
    "cli": "the CLI in a terminal, a stand-in outside of the project",
    "collect2": "Emacs compiles its own Lisp",
    "cp": "an undo keeps owners and attributes",
    "diff": "what differs from an accepted text",
    "emacs": "the Emacs that calls the commands",
    "env": "starts the others with variables",
    "find": "looks for a renamed file",
    "gemini": "the doctor asks it for its version",
    "git": "git itself",
    "gzip": "Emacs reads its own Lisp",
    "head": "random bytes",
    "ld": "Emacs compiles its own Lisp",
    "node": "the doctor asks it for its version",
    "openssl": "smime.el of Emacs asks it for its version",
    "python": "the backend",
    "qwen": "the doctor asks it for its version",
    "sh": "the shell of a terminal",
    "stat": "when directories were made",
    "stty": "sets the terminal up",
}
"""Programs that may be started, from outside of the project, and what for."""


def record_turn(root: Path, state: Path) -> None:
    """Record a turn of an agent in the project `root`, whose record is below `state`."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(state.parent), "XDG_STATE_HOME": str(state)}
    record = Record(str(root), environ)
    record.scan(NOBODY)
    turn = record.store.begin(TurnRow(0, "s", "Qwen Code", "hooks", "do it", 1000, None, None, (), os.getpid(), "")).id
    for name in ("a.txt", "b.txt", "sub/c.txt"):
        (root / name).write_text("one\n2\n3\nfour\n")
    record.scan(Cause(turn, "run_shell_command"))
    record.close()


def call_all(home: Path) -> str:
    """Have an Emacs call all commands; return what strace says, "" without it."""
    strace = shutil.which("strace")
    log = home / "strace"
    command = [os.environ.get("EMACS") or "emacs", "-nw", "-Q"]
    # Emacs would compile what it loads, and functions that are replaced, with programs of its own.
    command += ["--eval", "(setq native-comp-deferred-compilation nil comp-enable-subr-trampolines nil)"]
    command += ["-l", str(CHECKOUT / "scripts/checkout.el"), "-l", str(CHECKOUT / "bench/hostile.el")]
    command += ["--eval", f'(run-at-time 0.1 nil #\'hostile-main "{home}" "{PYTHON}")']
    if strace is not None:
        command = [strace, "-f", "-qq", "-s", "300", "-e", "trace=execve,execveat", "-o", str(log), *command]
    environ = os.environ | {
        "HOME": str(home),
        "TERM": "xterm",
        "XDG_STATE_HOME": str(home / "state"),
        "XDG_RUNTIME_DIR": str(home),
    }
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(home / "project")
        os.execvpe(shutil.which(command[0]) or command[0], command, environ)  # noqa: S606
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    os.set_blocking(terminal, False)
    end = time.monotonic() + LIMIT_S
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        with suppress(OSError):
            os.read(terminal, 65536)
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return log.read_text(errors="replace") if log.exists() else ""


def judge(text: str, project: Path) -> tuple[Counter[str], list[str]]:
    """Return how often each program was started by the log `text`, and the lines about those that must not be."""
    started: Counter[str] = Counter()
    wrong: list[str] = []
    for line in text.splitlines():
        found = EXECUTED.search(line)
        if found is None:
            continue
        path, status = found[1], int(found[3])
        name = re.sub(r"(?<=python)[\d.]+$|(?<=emacs)-.*$|-.*$", "", os.path.basename(path))
        if not os.path.isabs(path) or path.startswith(f"{project}/"):
            wrong.append(line)
        elif status == 0:
            started[name] += 1
            if name not in ALLOWED:
                wrong.append(line)
    return started, wrong


def main() -> int:
    """Run it, print what was found, and return the exit code."""
    with tempfile.TemporaryDirectory() as place:
        home = Path(os.path.realpath(place))
        project = home / "project"
        make_hostile_project(project, home / "markers")
        record_turn(project, home / "state")
        cli = home / "bin/cli"
        cli.parent.mkdir()
        cli.write_text("#!/bin/sh\nread line\n")
        cli.chmod(0o755)
        text = call_all(home)
        results = (home / "results").read_text().splitlines()
    started, wrong = judge(text, project)
    traps = [line for line in results if line.startswith(("TRAP", "BROKEN"))]
    if "--verbose" in sys.argv:
        print("\n".join(results))
    called = [line for line in results if re.match(r"qwen-companion-.*: [1-9]", line)]
    print(f"{len(called)} commands called")
    for name, count in sorted(started.items()):
        print(f"  {count:5} {name:8} {ALLOWED.get(name, 'NOT ALLOWED')}")
    if not text:
        print("  strace is not installed: what starts programs without a trap is missed")
    print("\n".join([*traps, *wrong[:50]]) or "no trap went off, and nothing else was started")
    return 1 if traps or wrong or results[-1:] != ["END"] else 0


if __name__ == "__main__":
    sys.exit(main())
