# SPDX-License-Identifier: GPL-3.0-or-later
"""Emacs's ids in place of the daemon's.

They are hashes of the daemon's ids, so an object has the same id after a reload and in the next process, with no state;
and they cannot be reversed.
"""

from __future__ import annotations

import hashlib

_DIGITS = 16


def local_id(kind: str, *parts: str | int) -> str:
    """Return Emacs's id of the object of a `kind` that the daemon identifies by `parts`."""
    whole = "\0".join(map(str, (kind, *parts)))
    return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
