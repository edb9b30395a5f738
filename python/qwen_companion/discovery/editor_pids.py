# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the processes that a CLI may hold to be its editor (spec D1).

All generations of both CLIs search in the same way.  From the CLI upward they stop at the first process whose command
is a shell.  Their result is the parent of the shell's parent, since VS Code has a helper in between, or the shell's
parent if its own parent is process 1.  Without a shell, it is the last process below process 1.

Emacs starts a shell, or the CLI, without a helper.  So they arrive at

- the parent of Emacs, or at Emacs if that has none, from a shell that Emacs has started;
- Emacs, from a shell started by such a shell, and from one below a helper of Emacs;
- the end of the walk from Emacs upward, if Emacs has started the CLI itself, or a shell that they do not recognize: a
  login shell is shown as "-zsh".

From shells nested deeper they arrive at a process whose number cannot be known beforehand.
"""

from __future__ import annotations

import os

import psutil

from qwen_companion.base.processes import parent_of

SHELLS = frozenset(("zsh", "bash", "sh", "tcsh", "csh", "ksh", "fish", "dash"))

MAX_STEPS = 32
"""Most processes in a walk; after them, the next one is the result."""


def editor_pids(pid: int) -> tuple[int, ...]:
    """Return the processes that a CLI in a terminal of Emacs, process `pid`, may hold to be its editor; Emacs first."""
    candidates = [pid]
    parent = parent_of(pid)
    if parent > 1:
        candidates.append(parent)
    candidates.append(_walk(pid))
    return tuple(dict.fromkeys(candidates))


def ancestors(pid: int) -> tuple[int, ...]:
    """Return the processes above `pid`, its parent first.

    While none of them ends or executes another program, `editor_pids` stays the same.
    """
    found: list[int] = []
    while (pid := parent_of(pid)) > 1 and len(found) < MAX_STEPS:
        found.append(pid)
    return tuple(found)


def _walk(pid: int) -> int:
    """Return the result of a walk that has reached `pid` without meeting a shell."""
    current = pid
    # The CLI itself was the first step.
    for _ in range(MAX_STEPS - 1):
        parent = parent_of(current)
        if _is_shell(current):
            grandparent = parent_of(parent)
            return grandparent if grandparent > 1 else parent
        if parent <= 1:
            break
        current = parent
    return current


def _is_shell(pid: int) -> bool:
    """Return whether the command of process `pid`, as `ps` shows it, begins with the name of a shell."""
    try:
        words = psutil.Process(pid).cmdline()
    except (psutil.Error, ValueError):
        return False
    return bool(words) and os.path.basename(words[0].split(" ")[0]) in SHELLS
