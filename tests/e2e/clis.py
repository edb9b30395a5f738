# SPDX-License-Identifier: GPL-3.0-or-later
"""The real CLIs that are tested, as data: a new one is a new row, and its package one in a package.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

QWEN_SETTINGS_FILE: Final = ".qwen/settings.json"
# One file for all versions: each takes from it what it knows, and leaves the rest be (0.10 warns of "memory").
QWEN_SETTINGS: Final[Mapping[str, Any]] = {
    "security": {"auth": {"selectedType": "openai"}},
    "ide": {"enabled": True, "hasSeenNudge": True},
    "model": {"name": "scripted"},
    # Since 0.24 it would otherwise write without proposing.
    "tools": {"approvalMode": "default", "useRipgrep": False},
    "privacy": {"usageStatisticsEnabled": False},
    # The first is the name that 0.1 and 0.5 know, the second that of the later ones; the third keeps CLIs from starting
    # a program with each answer.
    "general": {"disableAutoUpdate": True, "enableAutoUpdate": False, "preventSystemSleep": False},
    # Both ask the model behind the user's back, with the same tools as the user's own conversation.
    "memory": {"enableManagedAutoMemory": False},
    # Each letter of the banner is given its colour again with every new screen.
    "ui": {"enableFollowupSuggestions": False, "hideTips": True, "hideBanner": True},
}

GEMINI_SETTINGS_FILE: Final = ".gemini/settings.json"
GEMINI_SETTINGS: Final[Mapping[str, Any]] = {
    # Its question whether to trust the folder comes before everything else.
    "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
    "ide": {"enabled": True, "hasSeenNudge": True},
    "privacy": {"usageStatisticsEnabled": False},
    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
    "ui": {"hideTips": True, "hideBanner": True},
}

SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    QWEN_SETTINGS_FILE: QWEN_SETTINGS,
    GEMINI_SETTINGS_FILE: GEMINI_SETTINGS,
}
"""The user's settings of all CLIs: file below the home directory, and content."""

IN_CONTAINER: Final = any(Path(sign).exists() for sign in ("/.dockerenv", "/run/.containerenv"))
"""Whether the CLIs take this machine for a container."""


@dataclass(frozen=True)
class Container:
    """The environment `variables` that a CLI needs in a container, and the `reason`."""

    variables: Mapping[str, str]
    reason: str


_HIDE_CONTAINER: Final = {"NODE_OPTIONS": f"--require={Path(__file__).with_name('no_container.cjs')}"}

# A companion beside the CLI in the same container listens on loopback, and host.docker.internal is another machine.
HOST_ONLY: Final = Container(_HIDE_CONTAINER, "in a container it looks for its editor at host.docker.internal only")
HOST_IF_NAMED: Final = Container(
    _HIDE_CONTAINER, "in a container it looks for its editor at host.docker.internal only, if that name has an address"
)
HOST_UNLESS_DEVELOPED_IN: Final = Container(
    {"REMOTE_CONTAINERS": "1"},
    "in a container it looks for its editor at host.docker.internal only, unless editors call it a place to develop in",
)


@dataclass(frozen=True)
class Cli:
    """One CLI in one version."""

    name: str
    """How tests call it."""
    program: str
    """How it is started."""
    container: Container | None = None
    """Its needs in a container, if any: most look for their editor at 127.0.0.1 there too."""
    path_argument: str = "file_path"
    """The parameter of its tool read_file for the name of the file."""
    input_start: str = r"^[ │]*> +"
    """A regular expression for the text of its prompt before the cursor."""
    pause: float = 0
    """Seconds that must be between a text and Enter: closer together it takes both for something pasted."""
    confirmation: str = "Yes, allow once"
    """The label with which it offers to write a file."""
    cancelled: str = r"^[ │]*- +WriteFile"
    """A regular expression for how it marks a change that was rejected."""
    tells_edits: bool = True
    """Whether its model learns of the user's changes to a proposal that was accepted in the editor."""
    tells_rejection: bool = True
    """Whether its model learns, with the next question, that a proposal was rejected in the editor."""
    finds_process: bool = False
    """Whether it looks for a file with the number of a process in its name, which has to be right."""
    newest: bool = False
    """Whether it is the newest of its kind: `make test` leaves the others to `make test-interop`."""

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment variables that it needs here."""
        return self.container.variables if self.container and IN_CONTAINER else {}


QWEN: Final = Cli(
    "qwen-0.24",
    "qwen",
    # What was asked before is on the screen too, but indented.
    input_start="^> +",
    newest=True,
)
GEMINI: Final = Cli(
    "gemini-0.61",
    "gemini",
    container=HOST_UNLESS_DEVELOPED_IN,
    # The limit is 30 ms.
    pause=0.05,
    confirmation="Allow once",
    cancelled="Request cancelled",
    tells_rejection=False,
    finds_process=True,
    newest=True,
)
CLIS: Final = (
    Cli(
        "qwen-0.1.4",
        "qwen-0.1.4",
        container=HOST_ONLY,
        path_argument="absolute_path",
        tells_edits=False,
        finds_process=True,
    ),
    Cli("qwen-0.5.2", "qwen-0.5.2", container=HOST_ONLY, path_argument="absolute_path", tells_edits=False),
    Cli("qwen-0.10.1", "qwen-0.10.1", container=HOST_ONLY, path_argument="absolute_path", tells_edits=False),
    Cli("qwen-0.12.0", "qwen-0.12.0", container=HOST_IF_NAMED, path_argument="absolute_path", tells_edits=False),
    Cli("qwen-0.15.10", "qwen-0.15.10", container=HOST_IF_NAMED),
    QWEN,
    GEMINI,
)
