# SPDX-License-Identifier: GPL-3.0-or-later
"""The daemon client's messages over EPC, as dataclasses; see `emacs.messages` for the rules of all messages.

Emacs's calls may carry `:request S`; each is answered by exactly one `daemon-reply` with the same S, after all other
messages that it causes.  Ids of sessions, turns, tools, permissions, options and models are opaque strings, the same
for the same object after a reload or in another process.  All texts are sanitised; a text above its limit is cut, with
the number of missing characters as `...-more`, and `daemon-fetch` requests all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, get_args

from qwen_companion.base.errors import MessageError
from qwen_companion.daemon.sanitize import Capped
from qwen_companion.domain import AskedQuestion, Text, Words
from qwen_companion.wire.messages import DAEMON_PREFIX, DaemonCall, Notification, method_of
from qwen_companion.wire.plists import from_plist
from qwen_companion.wire.spool import Spool

SHARED = "shared"
"""The scope of a session that all clients of a workspace share."""

INPUT, OUTPUT, OLD, NEW, DIFF = "input", "output", "old", "new", "diff"
"""The texts of a tool: its input and output, and the sides of a diff."""

# --- Emacs to Python --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Connect:
    """`daemon-connect`: use the daemon at `url`, default from the environment, for the workspace `root`.

    Its token is looked up in the files `sources`, in netrc format; `token` is one that only Emacs could look up.
    """

    url: str | None = field(repr=False)
    token: str | None = field(repr=False)
    root: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Start:
    """`daemon-start`: start `program`, a command with arguments, as a daemon for the workspace `root`, and use it."""

    root: str
    program: tuple[str, ...]


@dataclass(frozen=True)
class Disconnect:
    """`daemon-disconnect`: leave all sessions, and stop a daemon that was started here."""


@dataclass(frozen=True)
class Open:
    """`daemon-open`: open a session, new or shared, for `root`, default the connection's."""

    root: str | None
    scope: Annotated[str, Words("new", SHARED)] = "new"


@dataclass(frozen=True)
class ListSessions:
    """`daemon-list`: list the workspace's sessions; answered by `daemon-sessions`."""


@dataclass(frozen=True)
class Load:
    """`daemon-load`: open `session`, even if closed or dead; if it is open, send all of it anew.

    `shown` are the unfinished and failed turns that Emacs shows; they are sent again where the daemon lacks them.
    """

    session: str
    shown: tuple[TextChange | ToolChange | PlanChange | UsageChange | EndChange | NoteChange, ...] = field(
        default=(), repr=False
    )


@dataclass(frozen=True)
class Close:
    """`daemon-close`: leave `session`; `end` ends it for all its clients."""

    session: str
    end: bool


@dataclass(frozen=True)
class TextPart:
    """A text that the user wrote."""

    kind: ClassVar[str] = "text"
    text: Text = field(repr=False)


@dataclass(frozen=True)
class ImagePart:
    """The image in the file `path` of this machine."""

    kind: ClassVar[str] = "image"
    path: str


@dataclass(frozen=True)
class LinkPart:
    """A reference to the file `path` of the daemon's machine."""

    kind: ClassVar[str] = "link"
    path: str


Part = TextPart | ImagePart | LinkPart


@dataclass(frozen=True)
class Prompt:
    """`daemon-prompt`: send these parts as a prompt."""

    session: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Cancel:
    """`daemon-cancel`: end the running turn.  The next prompt in the queue starts."""

    session: str


@dataclass(frozen=True)
class SetModel:
    """`daemon-model`: use `model`, an id of `daemon-choices`.  The daemon rewrites its user's settings."""

    session: str
    model: str


@dataclass(frozen=True)
class SetMode:
    """`daemon-mode`: use the approval mode `mode`, an id of `daemon-choices`."""

    session: str
    mode: str


@dataclass(frozen=True)
class Answer:
    """`daemon-answer`: choose `option` for `permission`, None to dismiss it.

    `answers` has for each question, in order, the chosen answers.  `revision` is the shown `ToolChange`'s; an option
    that allows another revision is refused.  `text` is the user's version of the tool's first change, which Emacs
    writes once the tool has written its own; the model is sent the difference.  For an approved plan it is the edited
    plan, with the user's `comments`; the model reads both.
    """

    session: str
    permission: str
    option: str | None
    revision: int | None
    answers: tuple[tuple[str, ...], ...] = field(repr=False)
    text: Text | None = field(default=None, repr=False)
    comments: TextPart | None = None


@dataclass(frozen=True)
class Fetch:
    """`daemon-fetch`: request a whole text of `tool`.  For the side of a diff, `index` is its diff's, from 0."""

    session: str
    tool: str
    part: Annotated[str, Words(INPUT, OUTPUT, OLD, NEW, DIFF)]
    index: int = 0


@dataclass(frozen=True)
class RemovePrompt:
    """`daemon-remove-prompt`: remove the prompt of `turn` from the queue."""

    session: str
    turn: str


@dataclass(frozen=True)
class Fork:
    """`daemon-fork`: fork `session` at its last turn; the reply names the new session, to be loaded next."""

    session: str


@dataclass(frozen=True)
class Rewind:
    """`daemon-rewind`: rewind `session` to before the prompt of `turn`; change no files.

    The reply names a copy of the session before the rewind, if there is one.
    """

    session: str
    turn: str


@dataclass(frozen=True)
class AskCommands:
    """`daemon-commands`: request the slash commands."""

    session: str


@dataclass(frozen=True)
class AskUsage:
    """`daemon-usage`: request the report on the context window."""

    session: str


SessionCall = (
    Load
    | Close
    | Prompt
    | Cancel
    | SetModel
    | SetMode
    | Answer
    | Fetch
    | RemovePrompt
    | Fork
    | Rewind
    | AskCommands
    | AskUsage
)
Call = Connect | Start | Disconnect | Open | ListSessions | SessionCall

_METHODS: Mapping[type[Call], str] = {
    ListSessions: "list",
    SetModel: "model",
    SetMode: "mode",
    AskCommands: "commands",
    AskUsage: "usage",
}
"""Methods of calls, without prefix, that `method_of` does not derive from the name."""

_CALLS: Mapping[str, type[Call]] = {
    DAEMON_PREFIX + (_METHODS.get(cls) or method_of(cls)): cls for cls in get_args(Call)
}


def parse_call(call: DaemonCall, spool: Spool) -> Call:
    """Return the message in `call`.

    :raises MessageError: for an unknown method or shape
    :raises SpoolError: for a lost text
    """
    cls = _CALLS.get(call.method)
    if cls is None:
        raise MessageError(f"no such method: {call.method}")
    return from_plist(cls, call.values, spool)


def request_of(call: DaemonCall) -> str | None:
    """Return the id under which Emacs expects the answer to `call`, or None."""
    return call.values.optional_string(":request")


# --- Changes of a conversation ----------------------------------------------------------------------------------------


By = Annotated[str, Words("me", "other", "nobody")]
"""The author of an act: the user of this Emacs, another client of the daemon, or nobody."""

Writes = Annotated[str, Words("project", "user", "unknown")]
"""Which settings on the daemon's machine are rewritten."""


@dataclass(frozen=True)
class Change:
    """One step of a conversation, in `turn` or, if None, outside of turns."""

    kind: ClassVar[str]
    turn: str | None

    @property
    def weight(self) -> int:
        """Return the approximate number of characters this takes in a frame."""
        return 100


@dataclass(frozen=True)
class TextChange(Change):
    """More text of `voice`, to be appended to its text in this turn.

    `by`, for a user, is None if unknown; `time` is the start of a prompt, in ms since the epoch.  `parent` is the tool
    of the subagent that speaks, None for the main conversation.  `background` marks a separate message of a background
    agent, which may come after the end of the turn.
    """

    kind = "text"
    voice: Annotated[str, Words("user", "answer", "thought")]
    text: Text
    by: By | None = None
    parent: str | None = None
    background: bool = False
    time: int | None = None

    def joins(self, other: Change) -> bool:
        """Return whether `other` continues this text."""
        return isinstance(other, TextChange) and replace(other, text=self.text) == self

    @property
    def weight(self) -> int:
        """Count the text, though a long one travels in a file."""
        return 100 + len(self.text)


@dataclass(frozen=True)
class DiffInfo:
    """A change of the file `path`, the diff `index` of its tool, from 0; sizes in characters.

    `old_size` is None for a file known to be new, and 0 for one that is either new or empty.
    """

    index: int
    path: str
    old_size: int | None
    new_size: int


@dataclass(frozen=True)
class FilePosition:
    """A position in a file; `line` counts from 1."""

    path: str
    line: int | None


@dataclass(frozen=True)
class ToolChange(Change):
    """The present state of a tool call, which replaces the previous one.

    `name` is the tool's name, `title` one line about this call, `type` the daemon's word for the sort of tool.
    `command` is the shell command, if any.  `started` and `ended` are in ms since the epoch; a call that needed a
    permission starts when it is allowed.  `revision` changes with the input or a text of the `diffs`, which outdates
    earlier views.  `diffs_more` and `places_more` count those left out (unreadable, or too many); None for 0.
    """

    kind = "tool"
    id: str
    status: Annotated[str, Words("preparing", "pending", "running", "done", "failed")]
    name: str | None = None
    title: str | None = None
    type: str | None = None
    parent: str | None = None
    command: Capped | None = None
    input: Capped | None = None
    output: Capped | None = None
    revision: int = 0
    diffs: tuple[DiffInfo, ...] = ()
    diffs_more: int | None = None
    places: tuple[FilePosition, ...] = ()
    places_more: int | None = None
    started: int | None = None
    ended: int | None = None

    @property
    def weight(self) -> int:
        """Count its texts, and an estimate for the rest."""
        texts = sum(len(text.text) for text in (self.command, self.input, self.output) if text is not None)
        return 500 + texts + 200 * (len(self.diffs) + len(self.places))


@dataclass(frozen=True)
class PlanStep:
    """One line of a plan."""

    text: str
    status: Annotated[str, Words("pending", "running", "done")]


@dataclass(frozen=True)
class PlanChange(Change):
    """The whole plan, which replaces the previous one."""

    kind = "plan"
    steps: tuple[PlanStep, ...]

    @property
    def weight(self) -> int:
        """Count its texts."""
        return 100 + sum(100 + len(step.text) for step in self.steps)


@dataclass(frozen=True)
class UsageChange(Change):
    """The cost of one model answer in tokens, None if unknown; `cached` is the part of `input` from a cache."""

    kind = "usage"
    input: int | None
    output: int | None
    cached: int | None = None


@dataclass(frozen=True)
class EndChange(Change):
    """The end of the turn.  `text` is the reason for `failed`.

    A `removed` turn was removed from the queue and never began; a `lost` one was queued when daemon or agent ended;
    both have the prompt in one line as `text`.  `other` has the daemon's word as `text`.
    """

    kind = "end"
    outcome: Annotated[str, Words("done", "cancelled", "failed", "removed", "lost", "other")]
    text: str | None = None


@dataclass(frozen=True)
class NoteChange(Change):
    """A remark between the texts.

    `text` is, for `unsupported`, the name of an event that cannot be shown; for `injected`, the text put into the
    running turn; for `suggestion`, a possible next prompt; for `setting`, the name of a setting rewritten on the
    daemon's machine; for `model-failed`, why the model was not changed; for `truncated`, the number of earlier events
    left out; for `rewound`, the number of turns that are still part of the session.
    """

    kind = "note"
    note: Annotated[
        str, Words("unsupported", "injected", "suggestion", "setting", "model-failed", "truncated", "rewound")
    ]
    text: str


# --- Python to Emacs --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DaemonState(Notification):
    """`daemon-state`: the connection to the daemon.

    `unreachable` is retried, `refused` is not, and `text` says what to do; while `connected`, `text` names the thing
    waited for.  `host` is host and port; `workspace` is a path there, and files, MCP servers, skills and credentials
    are those of that host (spec A6).  `local` means started from here; another daemon may be anywhere, as loopback can
    be a tunnel.
    """

    state: Annotated[str, Words("off", "starting", "connecting", "connected", "unreachable", "refused")]
    text: str | None = None
    host: str | None = None
    local: bool = False
    workspace: str | None = None


@dataclass(frozen=True)
class ListedSession:
    """A session of the workspace; `updated` is in ms since the epoch, `busy` while a turn is running."""

    id: str
    title: str
    updated: int | None
    clients: int
    busy: bool


@dataclass(frozen=True)
class DaemonSessions(Notification):
    """`daemon-sessions`: the sessions of the workspace, newest first."""

    sessions: tuple[ListedSession, ...]


@dataclass(frozen=True)
class Queued:
    """A queued prompt; `by` as for a `TextChange`."""

    turn: str
    text: str
    by: By | None


@dataclass(frozen=True)
class SessionInfo(Notification):
    """`daemon-session`: the state of an open session, after a change.

    `waiting`: a permission needs an answer; `disconnected`: the stream broke and will be resumed; `closed`: a client
    ended the session or this one left it; `dead`: its agent or the daemon is gone.  `daemon-load` revives the last two.
    `text` is the reason.  `turn` is the running one.  `used` of `size` tokens of the context window are in use.
    `model` is the name of the model, `mode` the id of the approval mode.
    """

    method = "daemon-session"
    session: str
    state: Annotated[str, Words("loading", "idle", "busy", "waiting", "cancelling", "disconnected", "closed", "dead")]
    text: str | None = None
    turn: str | None = None
    title: str | None = None
    model: str | None = None
    mode: str | None = None
    used: int | None = None
    size: int | None = None
    clients: int | None = None
    queue: tuple[Queued, ...] = ()


@dataclass(frozen=True)
class Choice:
    """One of the models, or one of the approval modes."""

    id: str
    name: str
    description: str | None


@dataclass(frozen=True)
class SessionChoices(Notification):
    """`daemon-choices`: the models and approval modes of a session.

    `model_writes` names the settings that a model change rewrites on the daemon's machine, as for an `Option`.
    """

    method = "daemon-choices"
    session: str
    models: tuple[Choice, ...]
    modes: tuple[Choice, ...]
    model_writes: Writes


@dataclass(frozen=True)
class Turns(Notification):
    """`daemon-turn`: the changes of a session since the previous message, in order."""

    method = "daemon-turn"
    session: str
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Reset(Notification):
    """`daemon-reset`: clear the chat: the next `batches` messages `daemon-turn` show the session anew.

    Clear permissions too; open ones follow again.  `text` is the reason, None if the user asked.
    """

    method = "daemon-reset"
    session: str
    batches: int
    text: str | None


@dataclass(frozen=True)
class Option:
    """A possible answer to a permission.

    If `allows`, the tool runs, or may.  `writes` is the setting that it changes on the daemon's machine: None for none,
    `project` for the workspace's settings, `user` for the user's, `unknown` for an unknown sort of option.  A `lasting`
    option applies to later calls too.  `mode` is the approval mode after a plan that it approves, if known; `before`
    is the one before the plan.
    """

    id: str
    label: str
    allows: bool
    lasting: bool
    writes: Writes | None
    mode: Annotated[str, Words("before", "auto-edit", "default")] | None = None


@dataclass(frozen=True)
class OfferedPlan:
    """A plan that needs approval, and the file `path` that an approved one is saved in."""

    path: str
    text: Text = field(repr=False)


@dataclass(frozen=True)
class Permission(Notification):
    """`daemon-permission`: a tool waits for the user, or no longer does.

    `held` means that the connection is lost; the permission will be `open` or `closed` again.  `by` is the author of
    the answer to a closed one, `nobody` if the turn ended first, None if unknown; `label` is the chosen option.
    `tool` is the waiting call, sent before; None if the daemon did not name it.  With `questions` it is a form, with a
    `plan` a plan to approve.  `message` is the daemon's warning or reason, beside the input of the tool.
    """

    method = "daemon-permission"
    session: str
    permission: str
    state: Annotated[str, Words("open", "held", "closed")]
    turn: str | None = None
    tool: str | None = None
    title: str | None = None
    options: tuple[Option, ...] = ()
    message: str | None = None
    questions: tuple[AskedQuestion, ...] = ()
    by: By | None = None
    label: str | None = None
    plan: OfferedPlan | None = None


@dataclass(frozen=True)
class ToolText(Notification):
    """`daemon-text`: a whole text of a tool; answers `daemon-fetch`."""

    method = "daemon-text"
    session: str
    tool: str
    part: Annotated[str, Words(INPUT, OUTPUT, OLD, NEW, DIFF)]
    index: int
    text: Text


@dataclass(frozen=True)
class SlashCommand:
    """A slash command, named without its slash; `hint` describes its argument."""

    name: str
    description: str
    hint: str


@dataclass(frozen=True)
class SlashCommands(Notification):
    """`daemon-commands`: the slash commands of a session, which replace earlier ones."""

    method = "daemon-commands"
    session: str
    commands: tuple[SlashCommand, ...]


@dataclass(frozen=True)
class ContextUsageReport(Notification):
    """`daemon-usage`: the context window's content, the daemon's own report in Markdown."""

    method = "daemon-usage"
    session: str
    text: Text


@dataclass(frozen=True)
class Reply(Notification):
    """`daemon-reply`: the call with `request` has been carried out, or `error` says why not.

    `problem` classifies the error.  `busy`: try again later; `gone`: the object of the call does not exist;
    `refused`: by the daemon or because of a setting; `unsure`: the connection broke, and the call may have been carried
    out (a prompt then appears in the chat).  `session` and `turn` are the results.
    """

    method = "daemon-reply"
    request: str
    error: str | None = None
    problem: (
        Annotated[str, Words("busy", "gone", "invalid", "refused", "unreachable", "unsure", "unsupported", "unknown")]
        | None
    ) = None
    session: str | None = None
    turn: str | None = None
