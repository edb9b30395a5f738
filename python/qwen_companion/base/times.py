# SPDX-License-Identifier: GPL-3.0-or-later
"""Times as other programs write them."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime


def milliseconds(value: object) -> int | None:
    """Return the time that `value` is in ISO 8601, in ms since the epoch; None for anything else."""
    with suppress(ValueError, OverflowError):
        if isinstance(value, str):
            # Python 3.10 does not parse the suffix Z.
            return round(1000 * datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp())
    return None
