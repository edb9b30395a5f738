# SPDX-License-Identifier: GPL-3.0-or-later
"""JSON from untrusted sources."""

from __future__ import annotations

import json
from typing import Any, cast


def as_object(value: object) -> dict[str, Any]:
    """Return `value`, parsed JSON, if it is an object, else {}."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def read_object(data: str | bytes) -> dict[str, Any] | None:
    """Return the JSON object in `data`, None without one."""
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None
