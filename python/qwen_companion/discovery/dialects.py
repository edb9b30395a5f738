# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files and variables each CLI generation looks for, as data: a new generation is a new row."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Base(Enum):
    """The directory a row's own directories lie in."""

    TEMPORARY = "temporary"
    """What Node's `os.tmpdir()` says: TMPDIR, TMP or TEMP, else /tmp."""

    HOME = "home"
    """The CLI's directory: QWEN_HOME, else .qwen in the home directory."""


class Value(Enum):
    """What can be told to a CLI."""

    PORT_NUMBER = "port as a number"
    PORT_STRING = "port as a string"
    WORKSPACE = "workspace roots joined by the path separator"
    TOKEN = "what a request has to show"  # noqa: S105 - its name, not one
    EDITOR_PID = "process id of Emacs"
    EDITOR_INFO = "name and display name of the editor"
    EDITOR_NAME = "display name of the editor"


@dataclass(frozen=True)
class Dialect:
    """One file: DIRECTORIES below BASE, FILE_NAME with {pid} of Emacs and {port}, CONTENT as a JSON object."""

    name: str
    base: Base
    directories: tuple[str, ...]
    file_name: str
    content: tuple[tuple[str, Value], ...]


DIALECTS = (
    # The companion interface as specified in September 2025 (spec D2-D4).  No CLI has been seen to read it yet.
    Dialect(
        name="specified file",
        base=Base.TEMPORARY,
        directories=("qwen", "ide"),
        file_name="qwen-code-ide-server-{pid}-{port}.json",
        content=(
            ("port", Value.PORT_NUMBER),
            ("workspacePath", Value.WORKSPACE),
            ("authToken", Value.TOKEN),
            ("ideInfo", Value.EDITOR_INFO),
        ),
    ),
    # What Qwen Code since 0.5 reads.  0.5 to 0.10 only the one whose port the environment names; later ones all of
    # them, and they delete one whose ppid is dead.  The roots must be one string: an array ends the CLI's start.
    Dialect(
        name="lock file",
        base=Base.HOME,
        directories=("ide",),
        file_name="{port}.lock",
        content=(
            ("port", Value.PORT_STRING),
            ("workspacePath", Value.WORKSPACE),
            ("authToken", Value.TOKEN),
            ("ppid", Value.EDITOR_PID),
            ("ideName", Value.EDITOR_NAME),
            ("ideInfo", Value.EDITOR_INFO),
        ),
    ),
)

ENVIRONMENT = (
    # Both, in every terminal: with one missing, the CLI's question whether to connect ends in a failed installation.
    # Never the token: the environment is inherited by everything a terminal starts.
    ("QWEN_CODE_IDE_SERVER_PORT", Value.PORT_STRING),
    ("QWEN_CODE_IDE_WORKSPACE_PATH", Value.WORKSPACE),
)
