# SPDX-License-Identifier: GPL-3.0-or-later
"""The records that each running Qwen Code keeps of itself."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from qwen_companion.base.processes import start_of


def values_of(pid: int, home: Path, /, **others: Any) -> dict[str, Any]:
    """Return what the CLI in the process `pid` has in its record, with `others` in place of that."""
    return {
        "schemaVersion": 1,
        "pid": pid,
        "procStart": start_of(pid),
        "pidNs": os.stat("/proc/self/ns/pid").st_ino if os.path.exists("/proc/self/ns/pid") else None,
        "sessionId": "a-conversation",
        "cwd": str(home),
        "name": "home-b7",
        "startedAt": 1795692392658,
        "qwenVersion": "0.24.4",
        "kind": "tui",
        "ipcPath": "/run/qwen.sock",
        "ipcToken": "not for us",
        **others,
    }


def write(home: Path, values: dict[str, Any] | str, name: str | None = None) -> Path:
    """Put a record where CLIs do, as they do: in one step."""
    directory = home / "sessions"
    directory.mkdir(mode=0o700, exist_ok=True)
    path = directory / (name or f"{values['pid'] if isinstance(values, dict) else os.getpid()}.json")
    temporary = path.with_name(f"{path.name}.0123456789ab.tmp")
    temporary.write_text(values if isinstance(values, str) else json.dumps(values))
    temporary.replace(path)
    return path
