# SPDX-License-Identifier: GPL-3.0-or-later
"""Names for Emacs in place of the daemon's ids.

Made from them, so the same thing has the same name after a reload and in the next process, with nothing to remember;
and one cannot be made into the other.
"""

from __future__ import annotations

import hashlib

_DIGITS = 16


def local_id(kind: str, *parts: str | int) -> str:
    """Return Emacs's id of the thing of a `kind` that the daemon identifies by `parts`."""
    whole = "\0".join(map(str, (kind, *parts)))
    return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
