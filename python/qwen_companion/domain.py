# SPDX-License-Identifier: GPL-3.0-or-later
"""The types shared by the parts of the backend: CLIs and their sessions, proposals, and the user's view and settings.

They import nothing of this package, and are independent of EPC and MCP.  Times are milliseconds since the epoch, lines
and columns count from 1, columns in UTF-16 code units.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated

HIDE = "hide"
SHOW = "show"
"""A user's choice about one file, see `VisitedFile`."""

NEWS_UNITS = 9900
"""Longest text that a model gets with a prompt, in UTF-16 units: a CLI cuts it at 10,000."""

READ_TOOL = "read_file"
"""The tool of Qwen Code by which a model reads a file."""


class Words:
    """Mark a text as consisting of one word; with `allowed`, of one of these."""

    def __init__(self, *allowed: str) -> None:
        self.allowed = allowed


Word = Annotated[str, Words()]
"""A word from a fixed set, as opposed to a text."""


class Key:
    """Mark a field that is sent under another name than its own."""

    def __init__(self, name: str) -> None:
        self.name = name


INLINE = "inline"
"""Mark a dataclass as a field whose fields are sent among those of the dataclass around it."""

LONG = "long"

Text = Annotated[str, LONG]
"""A text that may be long: it is sent as the text of its message."""


FAMILIES_WITH_HOOKS = frozenset({"qwen"})
"""The families of CLIs that call hooks in at least one version."""


@dataclass(frozen=True)
class Hop:
    """One hop to another host, in TRAMP's terms: `method` is "ssh", "sudo", "docker" and so on; None for none."""

    method: str
    host: str
    user: str | None = None
    port: str | None = None


@dataclass(frozen=True)
class PlacedFile:
    """The file or directory `path` at `place`, the prefix of its name in Emacs; "" for this machine."""

    place: str
    path: str

    @property
    def name(self) -> str:
        """Its name in Emacs."""
        return self.place + self.path


@dataclass(frozen=True)
class SharedDirectory:
    """A remote directory `there` that is also the directory `here` of this machine."""

    there: str
    here: str


@dataclass(frozen=True)
class PlaceNames:
    """The names in Emacs of files at `place`, their prefix; "" for this machine.

    Files in the directories `shared` with this machine have local names.
    """

    place: str = ""
    shared: tuple[SharedDirectory, ...] = ()

    def file(self, path: str) -> PlacedFile:
        """Return the file that programs there call `path`."""
        found = (_moved(path, each.there, each.here) for each in self.shared)
        here = next((name for name in found if name is not None), None)
        return PlacedFile(self.place, path) if here is None else PlacedFile("", here)

    def path(self, name: str) -> str | None:
        """Return the name that programs there use for the file `name` in Emacs; None for a file elsewhere."""
        found = (_moved(name, each.here, each.there) for each in self.shared)
        path = next((path for path in found if path is not None), None)
        if path is None and name.startswith(f"{self.place}/"):
            path = name.removeprefix(self.place)
            # In a shared directory, buffers of this machine are meant.
            return path if self.file(path).place == self.place else None
        return path

    def there(self, text: str) -> str:
        """Return `text` with the names that programs there use."""
        for each in self.shared:
            text = text.replace(f"{each.here}/", f"{each.there}/")
        return text.replace(self.place, "") if self.place else text


def _moved(path: str, source: str, target: str) -> str | None:
    """Return `path`, a name in the directory `source`, with `target` in place of that; None if it is elsewhere."""
    if path == source:
        return target
    start = source.rstrip("/") + "/"
    return os.path.join(target, path[len(start) :]) if path.startswith(start) else None


@dataclass(frozen=True)
class Peer:
    """The process at the other end of a session.

    `started` is the result of `processes.start_of`, or "" if that is unknown: by now the number alone may belong to
    another process.  `directory` is the working directory when the process was found, None if it is unavailable.
    `family` is "qwen", "gemini" or None.  `ancestors` are the numbers of the process itself, its parent and so on, up
    to the child of Emacs, or to the top if Emacs is not among them.

    For a process at a `place` other than this machine, `pid` is negative and not a process number, and `ancestors` are
    numbers there, for display and comparison only; () if it was not found.  `terminal` is the number of the terminal of
    Emacs in which it was started, None if unknown.  `prompts` says that it reads prompts there.
    """

    pid: int
    started: str
    directory: str | None
    family: Word | None
    ancestors: tuple[int, ...]
    place: str | None = None
    terminal: int | None = None
    prompts: bool = False

    @property
    def process(self) -> tuple[int, str]:
        """The identity of its process on this machine."""
        return self.pid, self.started

    def conversation(self, session: str) -> str:
        """Return the id of its conversation `session`: a remote one may have the same id as a local one."""
        return session if self.place is None else f"{session} {self.place}"


@dataclass(frozen=True)
class KnownSession:
    """An MCP session that a process of this Emacs has opened; `protocol` is the negotiated MCP version.

    `client` and `version` are those of the CLI, "" if unknown.  `peer` is None if the process was not found, or not
    yet.  `reviews` says whether the session was offered reviews in Emacs.
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
class WaitingProposal:
    """A change of the file `path` that the CLI of `session` has proposed and the user has not decided."""

    session: str
    client: str
    pid: int | None
    path: str


@dataclass(frozen=True)
class Todo:
    """An item of a CLI's own to-do list; `status` is "pending", "working" or "done"."""

    text: str
    status: Word


@dataclass(frozen=True)
class CliState:
    """The state of a CLI from the reports of its hooks, or its record; a field is None if it was not reported.

    `activity` is "idle", "working", "asking", "cancelled", "failed" or "retrying", since `since`.  `prompt` is the
    beginning of the last prompt, `question` that of the open question.  `mode` is its approval mode.  `tokens` are
    those of the last request; `context` is the used percentage of the model's context.  `subagents` is the number of
    running ones.  `said` is the last line of the answer that ended the last turn, cut if it is long.  `todos` is its
    list.  `conversation` is the id of its conversation in the journal.  `failure` is why the last request has failed.
    `tool_since`, only from a record, is the time since which a tool has no result: it runs, or the CLI asks.
    """

    activity: Word | None = None
    since: int | None = None
    prompt: str | None = None
    question: str | None = None
    mode: str | None = None
    model: str | None = None
    tokens: int | None = None
    context: int | None = None
    subagents: int = 0
    said: str | None = None
    todos: tuple[Todo, ...] = ()
    conversation: str | None = None
    failure: str | None = None
    tool_since: int | None = None


@dataclass(frozen=True)
class Usage:
    """The tokens of requests to `model`; `cached` is the part of `input` that came from a cache."""

    model: str
    input: int = 0
    output: int = 0
    cached: int = 0


@dataclass(frozen=True)
class RecordedSession:
    """A conversation that a CLI has recorded: its `id`, the `time` of its last change and its first `prompt`."""

    id: str
    time: int
    prompt: str


@dataclass(frozen=True)
class KeptPlan:
    """An approved plan in the file `path`: the `time` when it was proposed, and its first line."""

    path: str
    time: int
    title: str


@dataclass(frozen=True)
class QuestionChoice:
    """One of the answers offered to a question."""

    label: str
    description: str | None


@dataclass(frozen=True)
class AskedQuestion:
    """One question of a form; `multiple` means that several answers may be chosen."""

    text: str
    header: str | None
    multiple: bool
    choices: tuple[QuestionChoice, ...]


@dataclass(frozen=True)
class RegisteredCli:
    """A Qwen Code of this user on this machine, from its own record.

    `id` names the record, `session` the conversation, and `chat` is Emacs's id of the conversation if a daemon has it.
    `name` is the CLI's own name for it.  `kind` is "tui", "serve", "headless" or another word, `start` the time of its
    start, in ms since the epoch.  `listens`: it accepts messages.  `editor` is the name of another editor that it is
    connected to.  `gone`: it was killed, and its record still exists.  `state` is its activity on our prompts, None if
    it has received none.  `problem` describes an error for a person; then the record may be unreadable and the rest
    unknown.
    """

    id: str
    pid: int
    session: str = ""
    chat: str = ""
    directory: str | None = None
    name: str = ""
    version: str = ""
    kind: Word = "tui"
    start: int = 0
    listens: bool = False
    editor: str | None = None
    gone: bool = False
    state: CliState | None = None
    problem: str | None = None


@dataclass(frozen=True)
class HookAnswer:
    """The answer to a CLI's hooks for `event` of `tool`, "" for none: `count` times, last at `time`.

    `answer` is in words for a person.
    """

    event: str
    tool: str
    answer: str
    count: int
    time: int


@dataclass(frozen=True)
class SessionState:
    """One MCP session: whether its event stream is open, and whether its process was looked up.

    `state` is from the reports of its hooks, None if there are none.  `no_hooks` is the reason, for a person, why
    expected hooks do not report; None if all is well.  `usage` is that of the conversation, by model, () if unknown.
    """

    session: KnownSession
    streaming: bool
    identified: bool = True
    state: CliState | None = None
    no_hooks: str | None = None
    usage: tuple[Usage, ...] = ()


@dataclass(frozen=True)
class KnownProposal:
    """A proposal that Emacs still holds: under review, or decided and not yet confirmed by `Delivered`.

    `digest` is that of the text as it was proposed, see `ProposalOpen`.
    """

    id: str
    session: str
    path: str
    digest: str


@dataclass(frozen=True)
class VisitedFile:
    """A file that a buffer visits; `timestamp` is when it was last in focus, in ms since the epoch.

    `exposure` is the user's choice for this file: `HIDE`, `SHOW`, or None to apply the rules.
    """

    path: str
    timestamp: int
    exposure: Annotated[str, Words(HIDE, SHOW)] | None = None


@dataclass(frozen=True)
class Snapshot:
    """`context`: the open files; `active` is the one in focus, with the position and the selected text in it."""

    files: tuple[VisitedFile, ...]
    active: str | None
    line: int | None
    character: int | None
    selection: Text | None


@dataclass(frozen=True)
class ToldFile:
    """An open file as reported to a CLI: `path` is its name in Emacs, `time` its last focus, in ms since the epoch.

    For the `active` file, `line` and `character` are the position of the cursor, from 1, in UTF-16 code units, if
    known.
    """

    path: str
    time: int
    active: bool = False
    line: int | None = None
    character: int | None = None
    selection: str | None = None


@dataclass(frozen=True)
class ToldContext:
    """The content of a context: `files`, the newest first, and `trusted` or `untrusted`, None for neither.

    `pretty` is its JSON on many lines.
    """

    trust: Word | None
    files: tuple[ToldFile, ...]
    pretty: Text


@dataclass(frozen=True)
class Settings:
    """`settings`: what the user wants CLIs to be told; comes before the first context, and after each change.

    - `all_roots`: tell of files anywhere, not only below the root that a CLI works in.
    - `trusted`: a CLI is told that its root is trusted; else that it is if it is one of `trusted_directories`.
    - `patterns` and `auth_sources` name files that are excluded for all CLIs: see `privacy.exclusions.Options`.
    - `no_reviews`: CLIs that connect from now on are offered no reviews in Emacs.
    - `size_limit`: largest text that Emacs reviews, in UTF-8 bytes; None for any.
    - `layer`: whether terminals get a settings layer.
    - `review_edits`: which edits are reviewed of a CLI with that layer: in its mode `auto` "all", or "open" for those
      of files that buffers visit; "all-modes", or None.
    - `journal`: whether the changes of agents are recorded, so that they can be undone.
    - `questions`: whether plans and questions of CLIs in terminals are shown in Emacs.
    - `tell_agents`: whether a model is told that another agent works on a file that it has written.
    - `token_limit`: how many tokens a turn may use, None for any number.
    - `tell_changes`: whether a model is told with a prompt what has changed in the files that it has seen.
    - `commit_notes`: whether commits get notes that say which lines agents have written.
    """

    all_roots: bool = False
    trusted: bool = False
    trusted_directories: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    auth_sources: tuple[str, ...] = ()
    no_reviews: bool = False
    size_limit: int | None = None
    layer: Annotated[bool, Key("settings-layer")] = False
    review_edits: Word | None = None
    journal: bool = False
    tell_agents: bool = False
    tell_changes: bool = False
    commit_notes: bool = False
    questions: bool = False
    token_limit: int | None = None

    @property
    def reviewed(self) -> str | None:
        """Which edits are reviewed through the layer, see `review_edits`."""
        return self.review_edits if self.layer and not self.no_reviews else None

    @property
    def trust(self) -> bool | tuple[str, ...] | None:
        """The trust to report to a CLI: None for nothing, True, or the trusted directories."""
        return self.trusted or self.trusted_directories or None


@dataclass(frozen=True)
class ToolArgument:
    """One argument of a tool.

    `kind` is "string", "integer", "boolean", "path" (the name of a file) or "line" (a number from 1); `choices` are the
    only values it can have, () for any.
    """

    name: str
    kind: Word
    description: str
    required: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class ToolDefinition:
    """A tool that Emacs offers to models.

    `unasked`: the CLI may call it without asking the user.  `paged`: its answer is a list that the model requests in
    parts.
    """

    name: str
    description: str
    arguments: tuple[ToolArgument, ...] = ()
    unasked: bool = False
    paged: bool = False


@dataclass(frozen=True)
class ToolItem:
    """One item in the answer of a tool: `text`, about a location if there is a `path`.

    `block`: the text is a part of a file or of another document, with several lines; `line` is the number of the first,
    if known.
    """

    text: str
    path: str | None = None
    line: int | None = None
    column: int | None = None
    block: bool = False


@dataclass(frozen=True)
class Exclusion:
    """A file that is reported to no CLI, or not to that of `session`; `rule` is the reason, for a person."""

    path: str
    rule: str
    session: str | None = None


@dataclass(frozen=True)
class ChangedFile:
    """The combined changes of agents in the file `path`; `previous` is its old name if it was renamed.

    `kind` is "added", "modified", "deleted", "renamed", or "mode" if only the mode changed.  `added` and `deleted`
    count lines; a `binary` file has none.  `seen`: the user has marked this change as seen, or only the hunks
    `seen_hunks`, which are keys of Emacs.  `mixed`: edits of the user could not be separated from the agent's.
    `writers` are pairs of a tool and of the subagent that used it, None for none.  `mode`: its permission bits changed,
    perhaps in addition to its bytes; `link`: it was or is a symbolic link.
    """

    path: str
    kind: Word
    previous: Annotated[str | None, Key("from")] = None
    binary: bool = False
    added: int = 0
    deleted: int = 0
    seen: bool = False
    seen_hunks: tuple[str, ...] = ()
    mixed: bool = False
    writers: Annotated[tuple[tuple[str, str | None], ...], Key("by")] = ()
    mode: bool = False
    link: bool = False


@dataclass(frozen=True)
class Worktree:
    """A git worktree at `path`; the main one is the first of a list.

    `branch` is None for a detached head, "" for a bare repository; `head` is the commit, "" for none yet.  `locked` is
    the reason of a lock, None without one.  `gone`: its directory no longer exists.  The following are None or empty
    while unknown.  `base` is the commit at which it left the main tree.  `files` is the number of files that differ
    from that, and `uncommitted` the number of uncommitted ones.  `ahead` and `behind` count commits relative to the
    main tree.  `conflicts` are the files in which a merge would conflict.  `inner` is the number of unpushed commits of
    repositories within it.
    """

    path: str
    branch: str | None
    head: str
    locked: str | None
    gone: bool
    base: str | None = None
    files: int | None = None
    uncommitted: int = 0
    ahead: int = 0
    behind: int = 0
    conflicts: tuple[str, ...] = ()
    inner: int = 0


@dataclass(frozen=True)
class Turn:
    """The changes below `root` from a prompt of the user to the end of the work on it.

    `session` is the conversation.  `client` is the CLI's name for a person, `prompt` the first line of the prompt,
    both "" if unknown.  `end` is None while the turn is running.  `source` is the origin of the record: "hooks",
    "disk" or "chat" for a turn of an agent.  For a turn of the user it is "undo" (of the turn `undone`), "merge"
    (of changes in a worktree) or "rewind" (edits that a CLI's own rewind overwrote).  `undone_by` are the turns
    that undid a part of this one.  `cli` is its MCP session, None if it is not connected.  `notes` tell a person
    what is missing.  `usage` is the usage of the turn by model, () if unknown.  A `rewound` turn is no longer in
    the conversation, but in its `copy`, None if there is no copy.  `conversation` is Emacs's name of `session`;
    `who` is "user" for an undo.
    """

    id: str
    root: str
    session: str
    conversation: str
    client: str
    who: Word
    source: Word
    prompt: str
    start: int
    end: int | None = None
    undone: Annotated[str | None, Key("undone-of")] = None
    undone_by: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    cli: str | None = None
    usage: tuple[Usage, ...] = ()
    rewound: bool = False
    copy: str | None = None


@dataclass(frozen=True)
class TurnChange:
    """A turn with its new changes: the changed `files`, and those in `files_gone`, which have no change now."""

    turn: Annotated[Turn, INLINE]
    files: tuple[ChangedFile, ...]
    files_gone: tuple[str, ...] = ()


AGENT, USER = "agent", "user"


@dataclass(frozen=True)
class LineOrigin:
    """The author of lines of a file: an agent in `turn`, or the user, perhaps over lines of `turn`."""

    who: Annotated[str, Words(AGENT, USER)]
    turn: str | None = None


@dataclass(frozen=True)
class TurnOrigin:
    """The author of `turn`: the CLI `client` in the conversation `session`, from `start` on, in ms since the epoch.

    `models` are its known models, `plan` is the file with the last plan approved in the turn.
    """

    turn: str
    session: str
    client: str
    start: int
    models: tuple[str, ...] = ()
    plan: str | None = None


@dataclass(frozen=True)
class CliRewind:
    """A CLI or a daemon has rewound the conversation `session` itself, at `time`, in ms since the epoch.

    It works in `directory`.  The turns that began after `since` are no longer part of the conversation.
    """

    session: str
    directory: str
    since: int
    time: int


@dataclass(frozen=True)
class ChatWork:
    """The activity of an agent of `qwen serve` in the conversation `session`, as reported by the daemon.

    `directory` is its working directory, `client` the daemon's name for a person.  `turn` is the running turn, None for
    none, and `prompt` its prompt, at `start`, in ms since the epoch, None if unknown.  `tools` are the running calls:
    pairs of an id and the name of the tool.  `reads` are files that it has read since the last report, and `used` is
    the usage of each answer of its model since then.  While the connection to the daemon `is_lost`, the events of the
    turn are reported later.
    """

    session: str
    directory: str
    client: str
    turn: str | None
    prompt: str
    tools: tuple[tuple[str, str], ...] = ()
    reads: tuple[str, ...] = ()
    used: tuple[Usage, ...] = ()
    start: int | None = None
    is_lost: bool = False
