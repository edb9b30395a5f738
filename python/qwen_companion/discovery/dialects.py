# SPDX-License-Identifier: GPL-3.0-or-later
"""The discovery files of each generation of a CLI, as data: a new generation is a new row of `DIALECTS`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Base(Enum):
    """The directory a file's own directories lie in."""

    TEMPORARY = "temporary"
    """The value of Node's `os.tmpdir()`: TMPDIR, TMP or TEMP, else /tmp."""

    HOME = "home"
    """The directory of Qwen Code: QWEN_HOME, else .qwen in the home directory."""


class Value(Enum):
    """A value that a discovery file or a variable can contain."""

    PORT_NUMBER = "port as a number"
    PORT_STRING = "port as a string"
    WORKSPACE = "workspace roots joined by the path separator"
    TOKEN = "what a request has to show"  # noqa: S105 - its name, not one
    EDITOR_PID = "process id of Emacs"
    EDITOR_INFO = "name and display name of the editor"
    EDITOR_NAME = "display name of the editor"


class Pids(Enum):
    """The process ids in a file's name; a file is written for each."""

    NONE = "its name holds no process id"
    EDITOR = "Emacs"
    CANDIDATES = "all that a CLI may take for its editor; see `discovery.editor_pids`"


@dataclass(frozen=True)
class File:
    """A discovery file: `directories` below `base`, `name` with {pid} and {port}, `content` as a JSON object.

    `without` says for the user which CLIs connect when it cannot be written.
    """

    label: str
    without: str
    base: Base
    directories: tuple[str, ...]
    name: str
    pids: Pids
    content: tuple[tuple[str, Value], ...]


Variables = tuple[tuple[str, Value], ...]


@dataclass(frozen=True)
class Dialect:
    """One generation of a CLI: the `file` it reads, and the `variables` it wants in its terminal."""

    generation: str
    file: File
    variables: Variables


_SPECIFIED_CONTENT = (
    ("port", Value.PORT_NUMBER),
    ("workspacePath", Value.WORKSPACE),
    ("authToken", Value.TOKEN),
    ("ideInfo", Value.EDITOR_INFO),
)

# Spec D2-D4.
SPECIFIED_FILE = File(
    label="specified file",
    without="Qwen Code connects all the same",
    base=Base.TEMPORARY,
    directories=("qwen", "ide"),
    name="qwen-code-ide-server-{pid}-{port}.json",
    pids=Pids.EDITOR,
    content=_SPECIFIED_CONTENT,
)

# Qwen Code 0.1.4 reads this in Gemini's directory, as its fork still had that name.  It reads the file of one process
# only: the one at which its walk ends.
FORK_FILE = File(
    label="file for Qwen Code 0.1",
    without="newer ones connect all the same",
    base=Base.TEMPORARY,
    directories=("gemini", "ide"),
    name="qwen-code-ide-server-{pid}-{port}.json",
    pids=Pids.CANDIDATES,
    content=_SPECIFIED_CONTENT,
)

# Read by Qwen Code since 0.5.  The roots must be one string: an array ends the start of 0.24.  `ppid` must be alive:
# since 0.15 the CLI deletes the files of dead ones.
LOCK_FILE = File(
    label="lock file",
    without="Qwen Code does not connect",
    base=Base.HOME,
    directories=("ide",),
    name="{port}.lock",
    pids=Pids.NONE,
    content=(
        ("port", Value.PORT_STRING),
        ("workspacePath", Value.WORKSPACE),
        ("authToken", Value.TOKEN),
        ("ppid", Value.EDITOR_PID),
        ("ideName", Value.EDITOR_NAME),
        ("ideInfo", Value.EDITOR_INFO),
    ),
)

# Spec G-D2, G-D3.  Up to 0.30, Gemini CLI reads only the file of the process at which its walk ends.  0.34 and later
# read all files that the user owns.  They prefer that process, then living ones, then the highest number.
GEMINI_FILE = File(
    label="file for Gemini CLI",
    without="Gemini CLI does not connect",
    base=Base.TEMPORARY,
    directories=("gemini", "ide"),
    name="gemini-ide-server-{pid}-{port}.json",
    pids=Pids.CANDIDATES,
    content=_SPECIFIED_CONTENT,
)

# Every terminal has both variables of a family.  With one missing, Qwen Code offers to connect and then fails to
# install an extension.  The token is never among them: all that a terminal starts inherits its environment.
QWEN_VARIABLES: Variables = (
    ("QWEN_CODE_IDE_SERVER_PORT", Value.PORT_STRING),  # Spec D6.
    ("QWEN_CODE_IDE_WORKSPACE_PATH", Value.WORKSPACE),
)
_GEMINI_VARIABLES: Variables = (
    ("GEMINI_CLI_IDE_SERVER_PORT", Value.PORT_STRING),  # Spec G-D6.
    ("GEMINI_CLI_IDE_WORKSPACE_PATH", Value.WORKSPACE),
)

# Each row is the behaviour of that generation, as observed or as read in its bundle.
DIALECTS = (
    # No release has been seen to read it.
    Dialect("interface specified in September 2025", SPECIFIED_FILE, QWEN_VARIABLES),
    # 0.1.4: the variable decides between several files of one process.
    Dialect("Qwen Code 0.1", FORK_FILE, QWEN_VARIABLES),
    # 0.5.2, 0.7.1, 0.10.1: the one file whose port the variable names; without the variable, none.
    Dialect("Qwen Code 0.5 to 0.10", LOCK_FILE, QWEN_VARIABLES),
    # 0.12.0: the one the variable names; without the variable, the newest whose roots contain the working directory.
    Dialect("Qwen Code 0.12", LOCK_FILE, QWEN_VARIABLES),
    # 0.15.10 to 0.24.4: the one the variable names if it is usable, else the newest whose roots contain the working
    # directory.
    Dialect("Qwen Code 0.15 and later", LOCK_FILE, QWEN_VARIABLES),
    # 0.8.2, 0.22.4, 0.30.0: the variable decides between several files of one process.
    Dialect("Gemini CLI 0.8 to 0.30", GEMINI_FILE, _GEMINI_VARIABLES),
    # 0.34.0, 0.61.0: the variable decides between several files whose roots contain the working directory.
    Dialect("Gemini CLI 0.34 and later", GEMINI_FILE, _GEMINI_VARIABLES),
    # (Without rows: 0.6.1 accepts an editor only if TERM_PROGRAM is vscode; 0.2.2 sends no token and cannot be served.)
)


def in_effect(dialects: Sequence[Dialect]) -> tuple[tuple[File, ...], Variables]:
    """Return the files and variables of `dialects`, without repetitions."""
    files = dict.fromkeys(row.file for row in dialects)
    variables = dict.fromkeys(variable for row in dialects for variable in row.variables)
    return tuple(files), tuple(variables)
