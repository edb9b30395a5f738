# SPDX-License-Identifier: GPL-3.0-or-later
"""Where things are kept that outlive an Emacs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping


def state_home(environ: Mapping[str, str]) -> str:
    """Return the directory below which everything is kept."""
    home = environ.get("HOME") or os.path.expanduser("~")
    state = environ.get("XDG_STATE_HOME", "")
    return os.path.join(state if os.path.isabs(state) else os.path.join(home, ".local/state"), "qwen-companion")


def key_of(root: str) -> str:
    """Return the name under which things of the directory `root` are kept.  Waits for the disk."""
    return hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:16]


def write_private(path: str, data: bytes) -> None:
    """Write `data` to the file `path`, which only the user can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
