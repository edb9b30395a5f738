# SPDX-License-Identifier: GPL-3.0-or-later
"""Which process a CLI takes for its editor (spec D1).

All generations of both CLIs look for it in the same way.  From the CLI upward they stop at the first process that is
a shell by its command, and take the parent of the shell's parent, since VS Code has a helper in between; if that is
not above process 1, the shell's parent.  Without a shell they take the last process below process 1.

Emacs starts a shell, or the CLI, without a helper.  So they arrive at

- the parent of Emacs, or at Emacs if that has none, from a shell that Emacs has started;
- Emacs, from a shell started by such a shell, and from one below a helper of Emacs;
- where the walk goes on from Emacs, when Emacs has started the CLI itself or a shell they do not know for one: a login
  shell is shown as "-zsh".

Shells nested deeper have a process number that nobody knows beforehand.
"""

from __future__ import annotations

import os

import psutil

from qwen_companion.processes import parent_of

SHELLS = frozenset(("zsh", "bash", "sh", "tcsh", "csh", "ksh", "fish", "dash"))

MAX_STEPS = 32
"""How many processes a walk looks at; it takes the next one then."""


def editor_pids(pid: int) -> tuple[int, ...]:
    """Return the processes that a CLI in a terminal of Emacs, process `pid`, may take for its editor; Emacs first."""
    candidates = [pid]
    parent = parent_of(pid)
    if parent > 1:
        candidates.append(parent)
    candidates.append(_walk(pid))
    return tuple(dict.fromkeys(candidates))


def ancestors(pid: int) -> tuple[int, ...]:
    """Return the processes above `pid`, its parent first: unless one of them ends, `editor_pids` stays the same.

    Or unless one of them executes another program.
    """
    found: list[int] = []
    while (pid := parent_of(pid)) > 1 and len(found) < MAX_STEPS:
        found.append(pid)
    return tuple(found)


def _walk(pid: int) -> int:
    """Return where the walk ends that has come to `pid` without having met a shell."""
    current = pid
    # The CLI itself was looked at before.
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
    """Return whether the first word of the command of `pid`, as `ps` shows it, is that of a shell."""
    try:
        words = psutil.Process(pid).cmdline()
    except (psutil.Error, ValueError):
        return False
    return bool(words) and os.path.basename(words[0].split(" ")[0]) in SHELLS
