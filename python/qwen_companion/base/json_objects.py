# SPDX-License-Identifier: GPL-3.0-or-later
"""JSON from untrusted sources."""

from __future__ import annotations

import json
from typing import Any, cast


def as_object(value: object) -> dict[str, Any]:
    """Return `value`, parsed JSON, if it is an object, else {}."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def valid_text(text: str) -> str:
    """Return `text` with a question mark for each half of a surrogate pair: JSON can hold it, and no message can."""
    return text.encode("utf-8", "replace").decode("utf-8")


def read_object(data: str | bytes) -> dict[str, Any] | None:
    """Return the JSON object in `data`, None without one."""
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None
