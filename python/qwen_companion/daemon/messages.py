# SPDX-License-Identifier: GPL-3.0-or-later
"""What crosses EPC for the daemon client, as types; `emacs.messages` has the rules that hold for all of EPC.

Every call by Emacs may carry `:request S`; it is answered by exactly one `daemon-reply` with the same S, after all that
the call itself has to say.  Ids of sessions, turns, tools, permissions, options and models are opaque strings, the same
for the same thing also after a reload or in another process.  All texts are sanitised; what is larger than
a cap comes with the number of characters that are left out as `...-more`, and as a whole by `daemon-fetch`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from sexpdata import Symbol

from qwen_companion.daemon.sanitize import Capped
from qwen_companion.emacs.messages import DaemonCall, Notification, Plist, Sexp, plist, text_plist
from qwen_companion.emacs.spool import Spool
from qwen_companion.errors import MessageError

# --- Emacs to Python --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Connect:
    """`daemon-connect`: use the daemon at URL, None for that of the environment, for the workspace `root`."""

    url: str | None = field(repr=False)
    token: str | None = field(repr=False)
    root: str


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
    """`daemon-open`: a session for `root`, None for that of the connection; `shared`: the one all clients share."""

    root: str | None
    shared: bool


@dataclass(frozen=True)
class ListSessions:
    """`daemon-list`: tell all sessions of the workspace."""


@dataclass(frozen=True)
class Load:
    """`daemon-load`: open `session`, also a closed or dead one; tell it from its beginning if it is open."""

    session: str


@dataclass(frozen=True)
class Close:
    """`daemon-close`: leave `session`; `end` ends it for all its clients."""

    session: str
    end: bool


@dataclass(frozen=True)
class TextPart:
    """A text the user wrote."""

    text: str = field(repr=False)


@dataclass(frozen=True)
class ImagePart:
    """The image in the file `path` of this machine."""

    path: str


@dataclass(frozen=True)
class LinkPart:
    """A reference to the file `path` of the daemon's machine."""

    path: str


Part = TextPart | ImagePart | LinkPart


@dataclass(frozen=True)
class Prompt:
    """`daemon-prompt`: send `parts`."""

    session: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Cancel:
    """`daemon-cancel`: end the running turn.  What waits in the queue begins."""

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

    `answers` has for each question, in order, the answers to it.  `revision` is that of the tool that was shown, see
    `ToolChange`; another one cannot be allowed.
    """

    session: str
    permission: str
    option: str | None
    revision: int | None
    answers: tuple[tuple[str, ...], ...] = field(repr=False)


@dataclass(frozen=True)
class Fetch:
    """`daemon-fetch`: the whole of a text of `tool`.  `index`, from 0, is that of the diff whose text is meant."""

    session: str
    tool: str
    part: str
    index: int


@dataclass(frozen=True)
class RemovePrompt:
    """`daemon-remove-prompt`: take the prompt of `turn` out of the queue."""

    session: str
    turn: str


@dataclass(frozen=True)
class AskCommands:
    """`daemon-commands`: tell the slash commands."""

    session: str


@dataclass(frozen=True)
class AskUsage:
    """`daemon-usage`: tell what fills the context window."""

    session: str


SessionCall = (
    Load | Close | Prompt | Cancel | SetModel | SetMode | Answer | Fetch | RemovePrompt | AskCommands | AskUsage
)
Call = Connect | Start | Disconnect | Open | ListSessions | SessionCall

INPUT, OUTPUT, OLD, NEW = "input", "output", "old", "new"
"""Which text of a tool: what it was given, what it said, and the sides of a diff."""


def _parse_part(values: Plist, spool: Spool) -> Part:
    kind = values.symbol(":kind")
    if kind == "image":
        return ImagePart(values.string(":path"))
    if kind == "link":
        return LinkPart(values.string(":path"))
    text = values.text(spool)
    if kind != "text" or text is None:
        raise MessageError("a part is neither a text nor an image nor a link")
    return TextPart(text)


def _parse_scope(values: Plist) -> bool:
    scope = values.optional_symbol(":scope") or "new"
    if scope not in ("new", "shared"):
        raise MessageError(":scope is neither new nor shared")
    return scope == "shared"


def _parse_fetch(values: Plist, _spool: Spool) -> Fetch:
    part = values.symbol(":part")
    if part not in (INPUT, OUTPUT, OLD, NEW):
        raise MessageError(":part is none of input, output, old, new")
    index = values.optional_integer(":index") or 0
    return Fetch(values.string(":session"), values.string(":tool"), part, index)


def _parse_answer(values: Plist, _spool: Spool) -> Answer:
    return Answer(
        values.string(":session"),
        values.string(":permission"),
        values.optional_string(":option"),
        values.optional_integer(":revision"),
        tuple(item.strings(":choices") for item in values.plists(":answers")),
    )


_CALLS: Mapping[str, Callable[[Plist, Spool], Call]] = {
    "daemon-connect": lambda values, _: Connect(
        values.optional_string(":url"), values.optional_string(":token"), values.string(":root")
    ),
    "daemon-start": lambda values, _: Start(values.string(":root"), values.strings(":program")),
    "daemon-disconnect": lambda _values, _: Disconnect(),
    "daemon-open": lambda values, _: Open(values.optional_string(":root"), _parse_scope(values)),
    "daemon-list": lambda _values, _: ListSessions(),
    "daemon-load": lambda values, _: Load(values.string(":session")),
    "daemon-close": lambda values, _: Close(values.string(":session"), values.boolean(":end")),
    "daemon-prompt": lambda values, spool: Prompt(
        values.string(":session"), tuple(_parse_part(item, spool) for item in values.plists(":parts"))
    ),
    "daemon-cancel": lambda values, _: Cancel(values.string(":session")),
    "daemon-model": lambda values, _: SetModel(values.string(":session"), values.string(":model")),
    "daemon-mode": lambda values, _: SetMode(values.string(":session"), values.string(":mode")),
    "daemon-answer": _parse_answer,
    "daemon-fetch": _parse_fetch,
    "daemon-remove-prompt": lambda values, _: RemovePrompt(values.string(":session"), values.string(":turn")),
    "daemon-commands": lambda values, _: AskCommands(values.string(":session")),
    "daemon-usage": lambda values, _: AskUsage(values.string(":session")),
}


def parse_call(call: DaemonCall, spool: Spool) -> Call:
    """Return what Emacs wants.  MessageError for an unknown method or shape, SpoolError for a lost text."""
    parse = _CALLS.get(call.method)
    if parse is None:
        raise MessageError(f"no such method: {call.method}")
    return parse(call.values, spool)


def request_of(call: DaemonCall) -> str | None:
    """By what Emacs wants to know the answer to `call`, if it does."""
    return call.values.optional_string(":request")


# --- Changes of a conversation ----------------------------------------------------------------------------------------


def _symbol(name: str | None) -> Symbol | None:
    return None if name is None else Symbol(name)


def _capped(name: str, value: Capped | None) -> list[Sexp]:
    """`:NAME S :NAME-more N`, or nil for the N where all is there; nothing for None."""
    return plist(**{name: value.text, f"{name}_more": value.more or None}) if value is not None else []


@dataclass(frozen=True)
class Change:
    """One step of a conversation.  `turn` is the turn it belongs to, None for none; `time` in ms since the epoch."""

    kind: ClassVar[str]
    turn: str | None
    time: int | None

    def to_plist(self, spool: Spool) -> list[Sexp]:
        """`(:kind SYMBOL :turn ID-or-nil :time MS-or-nil)` and what `_details` says."""
        return plist(kind=Symbol(self.kind), turn=self.turn, time=self.time) + self._details(spool)

    def _details(self, spool: Spool) -> list[Sexp]:
        raise NotImplementedError

    @property
    def weight(self) -> int:
        """About how many characters this puts into a frame."""
        return 100


@dataclass(frozen=True)
class TextChange(Change):
    """More text, to be put after what `voice` said before in this turn.

    `voice`: `user`, `answer` or `thought`.  `by`, for a user: `me`, `other` (another client), None where it is not
    known.  `parent` is the tool of the agent that speaks, None for the main conversation.  `background`: a message on
    its own, by an agent in the background, that may come after the end of the turn.
    """

    kind = "text"
    voice: str
    text: str
    by: str | None = None
    parent: str | None = None
    background: bool = False

    def joins(self, other: Change) -> bool:
        """Return whether `other` goes on where this ends."""
        return isinstance(other, TextChange) and replace(other, text=self.text, time=self.time) == self

    def _details(self, spool: Spool) -> list[Sexp]:
        """`:voice user|answer|thought :by me|other|nil :parent ID-or-nil :background B` and the text."""
        head = plist(voice=Symbol(self.voice), by=_symbol(self.by), parent=self.parent, background=self.background)
        return head + text_plist(self.text, spool)

    @property
    def weight(self) -> int:
        """A long text goes by file."""
        return 100 + len(self.text)


@dataclass(frozen=True)
class DiffInfo:
    """A change of the file `path`: sizes in characters.

    `old_size` is None for a new file, where that is known; with 0 it is either new or empty.
    """

    path: str
    old_size: int | None
    new_size: int


@dataclass(frozen=True)
class FilePosition:
    """A place in a file; `line` counts from 1."""

    path: str
    line: int | None


@dataclass(frozen=True)
class ToolChange(Change):
    """All that is known of a tool call, in place of what was known before.

    `name` is the tool's own, `title` one line about this call, `type` the daemon's word for the sort of tool.
    `command` is the shell command where that is what it runs.  `started` and `ended` are in ms since the epoch; one
    that had to be allowed has started then.  `revision` is another number whenever what it is given or a text of its
    `diffs` is another one: what was shown of it before counts no more.  `diffs_more` and `places_more` are how many are
    not told, because they are too many or cannot be read.
    """

    kind = "tool"
    id: str
    status: str
    name: str | None = None
    title: str | None = None
    type: str | None = None
    parent: str | None = None
    command: Capped | None = None
    input: Capped | None = None
    output: Capped | None = None
    revision: int = 0
    diffs: tuple[DiffInfo, ...] = ()
    diffs_more: int = 0
    places: tuple[FilePosition, ...] = ()
    places_more: int = 0
    started: int | None = None
    ended: int | None = None

    def _details(self, spool: Spool) -> list[Sexp]:
        """`:id :status preparing|pending|running|done|failed :name :title :type :parent :started :ended`.

        Also `:revision N :diffs ((:index :path :old-size :new-size)...) :diffs-more N :places ((:path :line)...)
        :places-more N`, nil for 0, and where there are any `:command S :command-more N`, likewise `:input` and
        `:output`.
        """
        head = plist(
            id=self.id,
            status=Symbol(self.status),
            name=self.name,
            title=self.title,
            type=self.type,
            parent=self.parent,
            started=self.started,
            ended=self.ended,
            revision=self.revision,
            diffs=[
                plist(index=index, path=diff.path, old_size=diff.old_size, new_size=diff.new_size)
                for index, diff in enumerate(self.diffs)
            ],
            diffs_more=self.diffs_more or None,
            places=[plist(path=place.path, line=place.line) for place in self.places],
            places_more=self.places_more or None,
        )
        for name in ("command", "input", "output"):
            head += _capped(name, getattr(self, name))
        return head

    @property
    def weight(self) -> int:
        """That of its texts, and something for the rest."""
        texts = sum(len(text.text) for text in (self.command, self.input, self.output) if text is not None)
        return 500 + texts + 200 * (len(self.diffs) + len(self.places))


@dataclass(frozen=True)
class PlanStep:
    """One line of a plan."""

    text: str
    status: str
    priority: str | None


@dataclass(frozen=True)
class PlanChange(Change):
    """The whole plan, in place of the one before."""

    kind = "plan"
    steps: tuple[PlanStep, ...]

    def _details(self, spool: Spool) -> list[Sexp]:
        """`:steps ((:text S :status pending|running|done :priority S-or-nil)...)`."""
        return plist(
            steps=[plist(text=step.text, status=Symbol(step.status), priority=step.priority) for step in self.steps]
        )

    @property
    def weight(self) -> int:
        """That of its texts."""
        return 100 + sum(100 + len(step.text) for step in self.steps)


@dataclass(frozen=True)
class UsageChange(Change):
    """What one answer of the model cost: tokens, `duration` in ms, `retries` of the request."""

    kind = "usage"
    input: int | None
    output: int | None
    thought: int | None
    cached: int | None
    duration: int | None
    retries: int | None

    def _details(self, spool: Spool) -> list[Sexp]:
        """`:input N :output N :thought N :cached N :duration MS :retries N`, each nil where it is not known."""
        return plist(
            input=self.input,
            output=self.output,
            thought=self.thought,
            cached=self.cached,
            duration=self.duration,
            retries=self.retries,
        )


@dataclass(frozen=True)
class EndChange(Change):
    """The turn is over.  `text` says why when it failed.

    `outcome`: `done`, `cancelled`, `failed`, `removed` (from the queue, it never began; `text` is the prompt in one
    line), `other` (`text` is the daemon's word).
    """

    kind = "end"
    outcome: str
    text: str | None = None

    def _details(self, spool: Spool) -> list[Sexp]:
        """`:outcome SYMBOL :text S-or-nil`."""
        return plist(outcome=Symbol(self.outcome), text=self.text)


@dataclass(frozen=True)
class NoteChange(Change):
    """Something to be said in between.

    `note`: `unsupported` (`text` is the name of an event that cannot be shown), `injected` (`text` was put into the
    running turn), `suggestion` (`text` is a prompt that might come next), `setting` (`text` is the name of a setting
    that has been rewritten on the daemon's machine), `model-failed` (`text` says why the model was not changed),
    `truncated` (what came before is not told, `text` events), `rewound` (only the first `text` turns are part of the
    session any more).
    """

    kind = "note"
    note: str
    text: str

    def _details(self, spool: Spool) -> list[Sexp]:
        """`:note SYMBOL :text S`."""
        return plist(note=Symbol(self.note), text=self.text)


# --- Python to Emacs --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DaemonState(Notification):
    """`daemon-state`: the connection to the daemon.

    `state`: `off`, `starting`, `connecting`, `connected`, `unreachable` (it is tried again), `refused` (nothing is
    tried again; `text` says what to do).  `host` is host and port; `workspace` is a path on that host, and files, MCP
    servers, skills and credentials are those of that host (spec A6).  `local`: the daemon was started from here;
    another one may be anywhere, as loopback can be a tunnel.  `missing` are names of optional features.
    """

    method = "daemon-state"
    state: str
    text: str | None = None
    host: str | None = None
    local: bool = False
    workspace: str | None = None
    version: str | None = None
    missing: tuple[str, ...] = ()

    def payload(self, spool: Spool) -> Sexp:
        """`(:state SYMBOL :text S :host S :local B :workspace S :version S :missing (S...))`."""
        return plist(
            state=Symbol(self.state),
            text=self.text,
            host=self.host,
            local=self.local,
            workspace=self.workspace,
            version=self.version,
            missing=list(self.missing),
        )


@dataclass(frozen=True)
class ListedSession:
    """A session of the workspace; `updated` in ms since the epoch.

    `open`: in this Emacs; `busy`: a turn runs.
    """

    id: str
    title: str
    updated: int | None
    clients: int
    open: bool
    busy: bool


@dataclass(frozen=True)
class DaemonSessions(Notification):
    """`daemon-sessions`: the sessions of the workspace, newest first."""

    method = "daemon-sessions"
    sessions: tuple[ListedSession, ...]

    def payload(self, spool: Spool) -> Sexp:
        """`(:sessions ((:id :title :updated MS :clients N :open B :busy B)...))`."""
        return plist(
            sessions=[
                plist(
                    id=item.id,
                    title=item.title,
                    updated=item.updated,
                    clients=item.clients,
                    open=item.open,
                    busy=item.busy,
                )
                for item in self.sessions
            ]
        )


@dataclass(frozen=True)
class Queued:
    """A prompt that waits for its turn; `by` as for a `TextChange`."""

    turn: str
    text: str
    by: str | None


@dataclass(frozen=True)
class SessionInfo(Notification):
    """`daemon-session`: where an open session stands, when that has changed.

    `state`: `loading`, `idle`, `busy`, `waiting` (for an answer to a permission), `cancelling`, `disconnected` (the
    stream is cut and will be taken up again), `closed` (ended by a client, or left by this one), `dead` (its agent or
    the daemon is gone); from the last two `daemon-load` brings it back.  `text` says why.  `turn` is the running one.
    `used` of `size` tokens of the context window.  `model` is the name of the model, `mode` the id of the approval
    mode.
    """

    method = "daemon-session"
    session: str
    state: str
    text: str | None = None
    turn: str | None = None
    title: str | None = None
    model: str | None = None
    mode: str | None = None
    used: int | None = None
    size: int | None = None
    clients: int | None = None
    queue: tuple[Queued, ...] = ()

    def payload(self, spool: Spool) -> Sexp:
        """`(:session :state SYMBOL :text :turn :title :model :mode :used :size :clients :queue)`.

        `:queue` is `((:turn ID :text S :by me|other|nil)...)`.
        """
        return plist(
            session=self.session,
            state=Symbol(self.state),
            text=self.text,
            turn=self.turn,
            title=self.title,
            model=self.model,
            mode=self.mode,
            used=self.used,
            size=self.size,
            clients=self.clients,
            queue=[plist(turn=item.turn, text=item.text, by=_symbol(item.by)) for item in self.queue],
        )


@dataclass(frozen=True)
class Choice:
    """One of the models, or one of the approval modes."""

    id: str
    name: str
    description: str | None


@dataclass(frozen=True)
class SessionChoices(Notification):
    """`daemon-choices`: the models and approval modes of a session.

    `model_writes`: what a change of the model rewrites on the daemon's machine, as for an `Option`.
    """

    method = "daemon-choices"
    session: str
    models: tuple[Choice, ...]
    modes: tuple[Choice, ...]
    model_writes: str

    def payload(self, spool: Spool) -> Sexp:
        """`(:session :models ((:id :name :description)...) :modes (...) :model-writes SYMBOL)`."""

        def choices(items: tuple[Choice, ...]) -> list[Sexp]:
            return [plist(id=item.id, name=item.name, description=item.description) for item in items]

        return plist(
            session=self.session,
            models=choices(self.models),
            modes=choices(self.modes),
            model_writes=Symbol(self.model_writes),
        )


@dataclass(frozen=True)
class Turns(Notification):
    """`daemon-turn`: what was said and done in a session since the message before, in order."""

    method = "daemon-turn"
    session: str
    changes: tuple[Change, ...]

    def payload(self, spool: Spool) -> Sexp:
        """`(:session ID :changes (CHANGE...))`; see `Change` and its kinds."""
        return plist(session=self.session, changes=[change.to_plist(spool) for change in self.changes])


@dataclass(frozen=True)
class Reset(Notification):
    """`daemon-reset`: forget all that was shown of a session: the next `batches` of `daemon-turn` tell it anew.

    Permissions are forgotten too; those that are still open are told again.  `text` says why, None when the user asked.
    """

    method = "daemon-reset"
    session: str
    batches: int
    text: str | None

    def payload(self, spool: Spool) -> Sexp:
        """`(:session ID :batches N :text S-or-nil)`."""
        return plist(session=self.session, batches=self.batches, text=self.text)


@dataclass(frozen=True)
class Option:
    """A possible answer to a permission.

    `allows`: it lets the tool run, or may.  `writes`: what choosing it writes on the daemon's machine, so that it
    outlives the session: None for nothing, `project` (the workspace's settings), `user` (the user's settings),
    `unknown` (an option that is not known here, and is meant to last where it is `lasting`).
    """

    id: str
    label: str
    allows: bool
    lasting: bool
    writes: str | None


@dataclass(frozen=True)
class QuestionChoice:
    """One of the answers that are offered to a question."""

    label: str
    description: str | None


@dataclass(frozen=True)
class AskedQuestion:
    """One question of a form; `multiple`: more than one answer may be chosen."""

    text: str
    header: str | None
    multiple: bool
    choices: tuple[QuestionChoice, ...]


@dataclass(frozen=True)
class Permission(Notification):
    """`daemon-permission`: a tool waits for the user.

    `state`: `open`, `held` (the connection is lost; it will be `open` or `closed` again), `closed`.  A closed one says
    by whom: `me`, `other` (another client), `nobody` (the turn was over before), or None (not known here); `label` is
    the option that was chosen.  `tool` is the call it is about, told before; None where the daemon did not say.  With
    `questions` it is a form.  `message` is what the daemon says to the question beside what the tool is given: a
    warning, a reason.
    """

    method = "daemon-permission"
    session: str
    permission: str
    state: str
    turn: str | None = None
    tool: str | None = None
    title: str | None = None
    options: tuple[Option, ...] = ()
    message: str | None = None
    questions: tuple[AskedQuestion, ...] = ()
    by: str | None = None
    label: str | None = None

    def payload(self, spool: Spool) -> Sexp:
        """`(:session :permission ID :state SYMBOL :turn :tool :title :message :options :questions :by :label S)`.

        `:options` is `((:id :label S :allows B :lasting B :writes nil|project|user|unknown)...)`, `:by` is
        `me|other|nil`, `:questions` is
        `((:text S :header S :multiple B :choices ((:label S :description S)...))...)`.
        """
        return plist(
            session=self.session,
            permission=self.permission,
            state=Symbol(self.state),
            turn=self.turn,
            tool=self.tool,
            title=self.title,
            message=self.message,
            options=[
                plist(
                    id=option.id,
                    label=option.label,
                    allows=option.allows,
                    lasting=option.lasting,
                    writes=_symbol(option.writes),
                )
                for option in self.options
            ],
            questions=[
                plist(
                    text=question.text,
                    header=question.header,
                    multiple=question.multiple,
                    choices=[plist(label=choice.label, description=choice.description) for choice in question.choices],
                )
                for question in self.questions
            ],
            by=_symbol(self.by),
            label=self.label,
        )


@dataclass(frozen=True)
class ToolText(Notification):
    """`daemon-text`: the whole of a text of a tool, as `daemon-fetch` asked for it."""

    method = "daemon-text"
    session: str
    tool: str
    part: str
    index: int
    text: str

    def payload(self, spool: Spool) -> Sexp:
        """`(:session ID :tool ID :part SYMBOL :index N)` and the text."""
        head = plist(session=self.session, tool=self.tool, part=Symbol(self.part), index=self.index)
        return head + text_plist(self.text, spool)


@dataclass(frozen=True)
class SlashCommand:
    """A slash command, named without its slash; `hint` is about what may follow."""

    name: str
    description: str
    hint: str


@dataclass(frozen=True)
class SlashCommands(Notification):
    """`daemon-commands`: all slash commands of a session, in place of those before."""

    method = "daemon-commands"
    session: str
    commands: tuple[SlashCommand, ...]

    def payload(self, spool: Spool) -> Sexp:
        """`(:session ID :commands ((:name S :description S :hint S)...))`."""
        return plist(
            session=self.session,
            commands=[plist(name=item.name, description=item.description, hint=item.hint) for item in self.commands],
        )


@dataclass(frozen=True)
class ContextUsageReport(Notification):
    """`daemon-usage`: what fills the context window, as the daemon's own text in Markdown."""

    method = "daemon-usage"
    session: str
    text: str

    def payload(self, spool: Spool) -> Sexp:
        """`(:session ID)` and the text."""
        return plist(session=self.session) + text_plist(self.text, spool)


@dataclass(frozen=True)
class Reply(Notification):
    """`daemon-reply`: the call with `request` has been carried out, or `error` says why not.

    `problem` is a word for the sort of error, for a program: `busy` (later, perhaps), `gone` (what it is about is not
    there any more), `invalid`, `refused` (by a setting or the daemon), `unreachable`, `unsure` (the connection broke:
    it may have been carried out, and a prompt shows if it was), `unsupported`, `unknown`.  `session` and `turn` are
    those that came of it.
    """

    method = "daemon-reply"
    request: str
    error: str | None = None
    problem: str | None = None
    session: str | None = None
    turn: str | None = None

    def payload(self, spool: Spool) -> Sexp:
        """`(:request S :error S-or-nil :problem SYMBOL-or-nil :session ID-or-nil :turn ID-or-nil)`."""
        return plist(
            request=self.request,
            error=self.error,
            problem=_symbol(self.problem),
            session=self.session,
            turn=self.turn,
        )
