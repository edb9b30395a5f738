# SPDX-License-Identifier: GPL-3.0-or-later
"""The types shared by the parts of the backend: CLIs and their sessions, proposals, and what the user sees and allows.

They import nothing of this package, and know neither EPC nor MCP.  Times are milliseconds since the epoch, lines and
columns count from 1, columns in UTF-16 code units.
"""

from __future__ import annotations

from dataclasses import dataclass

HIDE = "hide"
SHOW = "show"
"""What the user can say of one file, see `VisitedFile`."""


@dataclass(frozen=True)
class Peer:
    """The process at the other end of a session.

    STARTED is what `processes.start_of` returned, "" for nothing: its number alone may be another's by now.  DIRECTORY
    is the one it worked in when it was found, None where that cannot be had.  FAMILY is "qwen", "gemini" or None.
    ANCESTORS are the numbers of the process itself, its parent and so on, up to the child of Emacs; or to the top when
    Emacs is not among them.
    """

    pid: int
    started: str
    directory: str | None
    family: str | None
    ancestors: tuple[int, ...]


@dataclass(frozen=True)
class KnownSession:
    """An MCP session some process of this Emacs has opened; PROTOCOL is the negotiated MCP version.

    CLIENT and VERSION are those of the CLI, "" where nothing that tells the user anything is known.  PEER is None for
    a process that was not found, or not yet.  REVIEWS: whether it was offered to have its changes reviewed.
    """

    id: str
    protocol: str
    client: str
    version: str
    peer: Peer | None = None
    reviews: bool = True

    @property
    def label(self) -> str:
        """Name and version of the CLI for a person; may be empty."""
        return f"{self.client} {self.version}".rstrip() if self.client else ""


@dataclass(frozen=True)
class CliState:
    """What a CLI is doing, as its hooks report it; None where they have not told.

    ACTIVITY is "idle", "working", "asking" or "cancelled", since SINCE.  PROMPT is the beginning of the last prompt,
    QUESTION that of what it asks.  MODE is its approval mode.  TOKENS went in with the last request, CONTEXT percent of
    the model's context are in use.  SUBAGENTS are running.
    """

    activity: str | None = None
    since: int | None = None
    prompt: str | None = None
    question: str | None = None
    mode: str | None = None
    model: str | None = None
    tokens: int | None = None
    context: int | None = None
    subagents: int = 0


@dataclass(frozen=True)
class SessionState:
    """One MCP session: whether its event stream is open, and whether its process has been looked for.

    STATE is what its hooks have reported, None where none has.  NO_HOOKS is why they report nothing although they
    should, in words for a person; None where all is well.
    """

    session: KnownSession
    streaming: bool
    identified: bool = True
    state: CliState | None = None
    no_hooks: str | None = None


@dataclass(frozen=True)
class KnownProposal:
    """A proposal Emacs still holds: under review, or decided and not yet confirmed by `Delivered`.

    DIGEST is that of the text as it was proposed, see `ProposalOpen`.
    """

    id: str
    session: str
    path: str
    digest: str


@dataclass(frozen=True)
class VisitedFile:
    """A file some buffer visits; TIMESTAMP is its last focus in ms since the epoch.

    EXPOSURE is the user's word on this one file: `HIDE`, `SHOW`, or None to leave it to the rules.
    """

    path: str
    timestamp: int
    exposure: str | None = None


@dataclass(frozen=True)
class Snapshot:
    """`context`: what the user looks at.  LINE, CHARACTER and SELECTION belong to ACTIVE."""

    files: tuple[VisitedFile, ...]
    active: str | None
    line: int | None
    character: int | None
    selection: str | None


@dataclass(frozen=True)
class Settings:
    """`settings`: what the user wants CLIs to be told; comes before the first context, and after each change.

    ALL_ROOTS: of files anywhere, not only below the root a CLI works in.  TRUST: whether a CLI is told that its root is
    trusted; None to say nothing, True, or the directories that are.  PATTERNS and AUTH_SOURCES name files of which no
    CLI hears: see `privacy.exclusions.Options`.  REVIEWS: whether CLIs that connect from now on are offered to have
    their changes reviewed in Emacs.  SIZE_LIMIT: largest text Emacs reviews, in UTF-8 bytes; None for any.
    LAYER: whether terminals get a settings layer.  REVIEW_EDITS: which edits are reviewed of a CLI that has it and
    works in its mode `auto`: "all", "open" for those of files that buffers visit, or None.  JOURNAL: whether what
    agents change is recorded, so that it can be undone.  TELL_UNDONE: whether an agent is told with its next prompt
    what of its changes the user has undone.
    """

    all_roots: bool = False
    trust: bool | tuple[str, ...] | None = None
    patterns: tuple[str, ...] = ()
    auth_sources: tuple[str, ...] = ()
    reviews: bool = True
    size_limit: int | None = None
    layer: bool = False
    review_edits: str | None = None
    journal: bool = False
    tell_undone: bool = False


@dataclass(frozen=True)
class Exclusion:
    """No CLI hears of PATH, by RULE in words for a person; or only that of SESSION does not."""

    path: str
    rule: str
    session: str | None = None


@dataclass(frozen=True)
class ChangedFile:
    """What agents did to the file PATH, all in all; PREVIOUS is its old name where it was renamed.

    KIND is "added", "modified", "deleted", "renamed", or "mode" where only the mode changed.  ADDED and DELETED count
    lines; a BINARY file has none.  SEEN: the user has marked this change as seen, or only the hunks SEEN_HUNKS, which
    are keys of Emacs.  MIXED: edits of the user could not be told from the agent's.  WRITERS are pairs of a tool and of
    the subagent that used it, "" for none.
    """

    path: str
    kind: str
    previous: str | None = None
    binary: bool = False
    added: int = 0
    deleted: int = 0
    seen: bool = False
    seen_hunks: tuple[str, ...] = ()
    mixed: bool = False
    writers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Turn:
    """What was changed below ROOT from a prompt of the user to the end of the work on it.

    SESSION is the conversation.  CLIENT is the CLI's name for a person, PROMPT the first line of the prompt, both "" if
    not known.  END is None while the turn goes on.  SOURCE is where it is known from: "hooks", "disk", "chat", or
    "undo" for a turn of the user that undid the turn UNDONE.  UNDONE_BY are turns that undid something of this one.
    NOTES tell a person what is missing.
    """

    id: str
    root: str
    session: str
    client: str
    source: str
    prompt: str
    start: int
    end: int | None = None
    undone: str | None = None
    undone_by: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
