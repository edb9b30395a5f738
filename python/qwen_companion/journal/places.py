# SPDX-License-Identifier: GPL-3.0-or-later
"""The directories of records."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from qwen_companion.base.state import key_of, state_home


def state_directory(environ: Mapping[str, str]) -> str:
    """Return the directory in which everything is recorded."""
    return os.path.join(state_home(environ), "journal")


def is_recorded(roots: Iterable[str], environ: Mapping[str, str]) -> bool:
    """Return whether something of one of `roots` has been recorded before.  Blocks on disk I/O."""
    return any(os.path.isdir(os.path.join(state_directory(environ), key_of(root))) for root in roots)
