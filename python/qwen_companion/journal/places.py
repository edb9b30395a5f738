# SPDX-License-Identifier: GPL-3.0-or-later
"""Where records are kept."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping


def state_directory(environ: Mapping[str, str]) -> str:
    """Return the directory in which everything is recorded."""
    home = environ.get("HOME") or os.path.expanduser("~")
    state = environ.get("XDG_STATE_HOME", "")
    return os.path.join(state if os.path.isabs(state) else os.path.join(home, ".local/state"), "qwen-companion/journal")


def key_of(root: str) -> str:
    """Return the name under which the directory `root` is recorded.  Waits for the disk."""
    return hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:16]


def is_recorded(roots: Iterable[str], environ: Mapping[str, str]) -> bool:
    """Return whether something of one of `roots` has been recorded before.  Waits for the disk."""
    return any(os.path.isdir(os.path.join(state_directory(environ), key_of(root))) for root in roots)


def write_private(path: str, data: bytes) -> None:
    """Write `data` to the file `path`, which only the user can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
