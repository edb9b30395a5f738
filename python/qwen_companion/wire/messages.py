# SPDX-License-Identifier: GPL-3.0-or-later
"""The messages that cross EPC, as dataclasses; `qwen-companion-backend.el` holds the other half.

A call in either direction is METHOD with two arguments, the secret and a property list.  In property lists nil is
none, false or the empty list; times are milliseconds since the epoch, lines and columns count from 1, columns in UTF-16
code units.  A text travels as `:text STRING`, or as `:text-file PATH` when it is larger than `INLINE_TEXT_BYTES`.  When
no file can be written, Emacs sends its parts with `text-part` and then `:text-parts ID`; this process sends it as
`:text` all the same, up to `UNSPOOLED_TEXT_BYTES`.  With `:crlf t`, the lines of a text of Emacs that end in LF are
meant to end in CR LF.

The fields of a message are the keys of its property list, see `plists`; a message that differs has code of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ClassVar, Generic, TypeVar, get_args

from sexpdata import Symbol

from qwen_companion import domain
from qwen_companion.base.errors import HelloError, MessageError, SpoolError
from qwen_companion.base.file_names import FileNameError, file_name
from qwen_companion.wire.plists import (
    Nested,
    Numbers,
    Plist,
    Sexp,
    from_plist,
    is_nil,
    plist,
    read_sexp,
    to_plist,
)
from qwen_companion.wire.spool import Spool

PROTOCOL = 1
"""Number of this contract; the hello line names the one the Elisp was written for."""


def method_of(cls: type[Any]) -> str:
    """Return the name of the message class `cls` as Lisp would write it, which is its method if it has no other."""
    return re.sub("(?<!^)(?=[A-Z])", "-", cls.__name__).lower()


# --- The hello line ---------------------------------------------------------------------------------------------------


def _parse_session(values: Plist) -> domain.KnownSession:
    """Read what `_session_plist` writes."""
    keys = (":id", ":protocol", ":client", ":version")
    return domain.KnownSession(
        *(values.string(key) for key in keys),
        peer=_parse_peer(values),
        reviews=not values.boolean(":no-reviews"),
    )


def _parse_peer(values: Plist) -> domain.Peer | None:
    if values.boolean(":pid"):
        return from_plist(domain.Peer, values)
    place, directory = values.optional_string(":place"), values.optional_string(":directory")
    if place is None:
        return None
    return domain.Peer(
        pid=values.integer(":number"),
        started="",
        directory=None if directory is None else directory.removeprefix(place),
        family=values.optional_symbol(":family"),
        ancestors=values.integers(":ancestors"),
        place=place,
        terminal=values.optional_integer(":terminal"),
        prompts=values.boolean(":prompts"),
    )


def _session_plist(session: domain.KnownSession, spool: Spool) -> list[Sexp]:
    """Return `(:id :protocol :client :version)`, with `:no-reviews t` if so, and the keys of its process if known.

    One at a place has `:number` for `:pid`, and its directory is the name that Emacs has for it: nobody takes them for
    those of this machine.
    """
    head = plist(id=session.id, protocol=session.protocol, client=session.client, version=session.version)
    reviews = [] if session.reviews else plist(no_reviews=True)
    peer = session.peer
    if peer is None or peer.place is None:
        return head + reviews + ([] if peer is None else to_plist(peer, spool))
    return (
        head
        + reviews
        + plist(
            number=peer.pid,
            place=peer.place,
            directory=None if peer.directory is None else domain.PlacedFile(peer.place, peer.directory).name,
            family=None if peer.family is None else Symbol(peer.family),
            ancestors=peer.ancestors,
            terminal=peer.terminal,
            prompts=peer.prompts,
        )
    )


def _parse_session_state(values: Plist) -> domain.SessionState:
    """Read what `SessionChanges` says of a session; its stream has ended with the process that said so."""
    return domain.SessionState(
        _parse_session(values),
        streaming=False,
        state=from_plist(domain.CliState, values.plist(":state")) if values.boolean(":state") else None,
        no_hooks=values.optional_string(":no-hooks"),
    )


@dataclass(frozen=True)
class Hello:
    """The first line that Emacs writes to standard input.  `port` 0 and `token` "" ask for a new one.

    `reserve` is the Unix socket that keeps the port between two processes, see `listening`; None if there is none.
    """

    secret: str
    emacs_pid: int
    port: int
    reserve: str | None
    token: str
    spool: str
    sessions: tuple[domain.SessionState, ...]
    proposals: tuple[domain.KnownProposal, ...]

    @classmethod
    def parse(cls, line: bytes) -> Hello:
        """Return the hello in `line`.

        :raises HelloError: when it is not a hello of this protocol; its text never quotes the line
        """
        try:
            values = Plist(read_sexp(line))
            protocol = values.integer(":protocol")
            if protocol != PROTOCOL:
                raise HelloError(
                    f"the Elisp files speak protocol {protocol}, the Python process {PROTOCOL}: they are of different "
                    "versions of the package; reinstall it"
                )
            hello = cls(
                secret=values.string(":secret"),
                emacs_pid=values.integer(":emacs-pid"),
                port=values.integer(":port"),
                reserve=values.optional_string(":reserve"),
                token=values.optional_string(":token") or "",
                spool=values.string(":spool"),
                sessions=tuple(_parse_session_state(item) for item in values.plists(":sessions")),
                proposals=tuple(from_plist(domain.KnownProposal, item) for item in values.plists(":proposals")),
            )
        except MessageError as error:
            raise HelloError(f"the first line on standard input is not from qwen-companion: {error}") from None
        if not hello.secret or hello.emacs_pid <= 0 or not 0 <= hello.port <= 65535:
            raise HelloError("the first line on standard input lacks a secret, a process id or a valid port")
        return hello


# --- Emacs to Python --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Roots:
    """`roots`: the open workspace roots, absolute, without trailing slash."""

    roots: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check the names of the roots.

        :raises MessageError: for one that cannot be used
        """
        for root in self.roots:
            try:
                file_name(root)
            except FileNameError as error:
                raise MessageError(f":roots has a name that cannot be used: {error}") from None


@dataclass(frozen=True)
class Watch:
    """`watch`: the user has opened or closed the list of what the CLIs are told."""

    on: bool


@dataclass(frozen=True)
class ReviewOutcome:
    """`outcome`: the user decided on a proposal.

    `content` is the accepted text, None for a rejection; that of a plan or of questions may have a `reason`.  `mode` is
    the approval mode to work in after a plan, "auto-edit" or "default", None for the one before it.
    """

    id: str
    content: str | None
    reason: str | None = None
    mode: str | None = None


@dataclass(frozen=True)
class ReviewRelease:
    """`release`: the user wants to answer the plan or the questions `id` in the terminal, which waits for Emacs."""

    id: str


@dataclass(frozen=True)
class Compare:
    """`compare`: compare two texts; answered by `compared` with the same id.

    `texts` are the old and the new one; None when one of them was lost on the way.
    """

    id: int
    texts: tuple[str, ...] | None

    def failed(self) -> Compared:
        """Return the answer that says that the texts cannot be compared."""
        return Compared(self.id, None)


@dataclass(frozen=True)
class Merge:
    """`merge`: merge texts; answered by `merged` with the same id.

    `texts` are the base, "mine" and "theirs", or only the latter two, with mine as the base.  None when one of them was
    lost on the way.  `labels` are the names of mine, base and theirs in the marks of a conflict.  Without them a
    conflict is not marked and there is no result, and changes are merged by characters instead of lines.
    """

    id: int
    texts: tuple[str, ...] | None
    labels: tuple[str, str, str] | None

    def failed(self) -> Merged:
        """Return the answer that says that the texts cannot be merged."""
        return Merged(self.id, None)


@dataclass(frozen=True)
class Stop:
    """`stop`: end, and leave nothing behind."""


@dataclass(frozen=True)
class Ping:
    """`ping`: check that the event loop is running; it answers."""


@dataclass(frozen=True)
class JournalWatch:
    """`journal-watch`: the user has begun, or ceased, to look at what agents changed; asks for `TurnChanges`."""

    on: bool


OF_WORKTREES = ("tree", "begun", "merge")
"""Scopes of changes that are found by git, not in a record."""


@dataclass(frozen=True)
class ChangeScope:
    """Changes by agents below `root`: those of `turn`, or as `scope` says.

    `scope` is "turn", "since" (`turn` and all later ones), "session" (all turns of `session`), "look" (unseen changes)
    or "all".  "commit" means all differences from the last commit, by any author.  For a worktree `root`, "tree" means
    the differences from the worktree `other`, "begun" those from the commit it started from, and "merge" the changes
    that merging it would make in the main tree.
    """

    root: str
    scope: Annotated[str, domain.Words("turn", "since", "session", "look", "all", "commit", *OF_WORKTREES)]
    turn: str | None
    session: str | None
    other: str | None = None

    def __post_init__(self) -> None:
        """Check the scope.

        :raises MessageError: without the turn, session or worktree that `scope` needs
        """
        needed = {"turn": self.turn, "since": self.turn, "session": self.session, "tree": self.other}
        if needed.get(self.scope, "") is None:
            raise MessageError(f":scope {self.scope} lacks its turn, session or worktree")


@dataclass(frozen=True)
class JournalFiles:
    """`journal-files`: asks for the files that were changed in `scope`; the answer is a `JournalReply`."""

    id: int
    scope: Annotated[ChangeScope, domain.INLINE]


@dataclass(frozen=True)
class WantedFile:
    """The file `path`, which was `previous` if Emacs was told that it was renamed."""

    path: str
    previous: str | None = None


@dataclass(frozen=True)
class JournalTexts:
    """`journal-texts`: asks for the bytes of `files` before and after their changes in `scope`.

    The answer is about as many of them, from the first on, as have a few megabytes.
    """

    id: int
    scope: Annotated[ChangeScope, domain.INLINE]
    files: tuple[WantedFile, ...]


@dataclass(frozen=True)
class JournalSpans:
    """`journal-spans`: asks which lines of the file `path` are an agent's; the answer is a `JournalReply`."""

    id: int
    path: str


@dataclass(frozen=True)
class JournalOrigins:
    """`journal-origins`: asks who wrote each line of the file `path`; the answer is a `JournalReply`.

    `text` is what would be saved now, or with `encoded` its bytes in base64; None for what is on the disk.
    """

    id: int
    path: str
    text: domain.Text | None = None
    encoded: bool = False


@dataclass(frozen=True)
class JournalPrompts:
    """`journal-prompts`: asks for the whole prompts of `turns`, and who worked in them; gets a `JournalReply`."""

    id: int
    turns: tuple[str, ...]


@dataclass(frozen=True)
class JournalSeen:
    """`journal-seen`: the user has marked changes of `turn` as `seen`, or as not seen.

    All files of the turn where `path` is None, all hunks of the file where `hunks`, keys of Emacs, are none.
    """

    turn: str
    path: str | None
    hunks: tuple[str, ...]
    seen: bool


@dataclass(frozen=True)
class JournalRewound:
    """`journal-rewound`: `conversation` goes on before its turn that began at `since`, in ms since the epoch.

    The name of a conversation is that of a session of the daemon, whether a chat or a CLI has recorded it.

    `copy` is how the conversation as it was before is called, None where there is none.  With `begins`, its rewind is
    only about to begin.
    """

    conversation: str
    since: int
    copy: str | None
    begins: bool


@dataclass(frozen=True)
class RewindRecorded:
    """`rewind-recorded`: end the connected CLI `session`, and rewind its `conversation` to before a prompt.

    It works in `directory`.  With None for `session`, no CLI ends, and a copy of the conversation is made that ends
    with the turn of the prompt, for a CLI that works in `tree` where that is not None.  The prompt is the one of which
    a hook told at `start`, in ms since the epoch, and which begins with the words `prompt`.  `program` starts Qwen
    Code.  The answer is a `RecordedRewound`.
    """

    id: int
    program: tuple[str, ...]
    directory: str
    session: str | None
    tree: str | None
    conversation: str
    start: int
    prompt: str


@dataclass(frozen=True)
class JournalWrote:
    """`journal-wrote`: Emacs itself has just written, renamed or deleted `paths`.

    `action` is what was done with a part of `turn`: "undo", "bring-back" for what was undone, or "merge" for a turn in
    a worktree, or with None what has no turn there; `label` says it in words.  All three are None where it is the
    user's own work.  With the action "commit" Emacs has written no file, but the user has committed.
    """

    paths: tuple[str, ...]
    turn: str | None
    label: str | None
    action: Annotated[str, domain.Words("undo", "bring-back", "merge", "commit")] | None = None


@dataclass(frozen=True)
class JournalBusy:
    """`journal-busy`: asks at which of `paths` an agent is at work; with `wait`, answered when at none, or late."""

    id: int
    paths: tuple[str, ...]
    wait: bool


@dataclass(frozen=True)
class JournalPrune:
    """`journal-prune`: asks to forget those of `turns` of `root` that have ended; gets a `JournalReply`.

    That has the sizes of those that have ended and are left.
    """

    id: int
    root: str
    turns: tuple[str, ...]


@dataclass(frozen=True)
class JournalMerge:
    """`journal-merge`: asks where changes in the worktree `root` are merged to; the reply has that root.

    Its files are recorded as they are, so that what Emacs writes there next can be undone.
    """

    id: int
    root: str


@dataclass(frozen=True)
class JournalWorktrees:
    """`journal-worktrees`: asks which worktrees the repository of `root` has, or all there is to know of `tree`.

    The answer is a `JournalReply`.
    """

    id: int
    root: str
    tree: str | None


@dataclass(frozen=True)
class JournalFile:
    """`journal-file`: asks for the bytes of the file `path` at a place as they are now: those after in the one text."""

    id: int
    path: str


@dataclass(frozen=True)
class JournalPut:
    """`journal-put`: asks to write the file `path` at a place: the bytes that `text` has in base64, or to `delete` it.

    It must have the digest `expected` now, None for no file.  `mode` are its permission bits, of no use for a `link`.
    With a file that is deleted go empty directories made after `since`, in ms since the epoch.
    """

    id: int
    path: str
    expected: str | None
    text: domain.Text
    delete: bool
    mode: int
    link: bool
    since: int | None


@dataclass(frozen=True)
class ChosenChange:
    """The change of a file, see `WantedFile`: all of it, or what makes `text` of it, bytes in base64.

    With `text`, another mode does not come along.
    """

    path: str
    previous: str | None = None
    text: domain.Text | None = None


@dataclass(frozen=True)
class JournalStage:
    """`journal-stage`: asks to put changes in `scope` into the index of git, or for a patch of them.

    `action` is "stage" for an index that is that of the last commit, "add" for one with other changes, or "patch".  The
    answer, a `JournalReply`, has the number of files that are in the index now, or of others that are there already, or
    the patch as the bytes after the change of its one text.
    """

    id: int
    scope: Annotated[ChangeScope, domain.INLINE]
    action: Annotated[str, domain.Words("stage", "add", "patch")]
    files: tuple[ChosenChange, ...]


JournalRequest = (
    JournalFiles
    | JournalTexts
    | JournalSpans
    | JournalOrigins
    | JournalPrompts
    | JournalStage
    | JournalBusy
    | JournalPrune
    | JournalMerge
    | JournalWorktrees
    | JournalFile
    | JournalPut
)
"""What a `JournalReply` answers."""

JournalNote = JournalSeen | JournalWrote | JournalRewound

JournalCall = JournalWatch | JournalNote | JournalRequest


@dataclass(frozen=True)
class Prompt:
    """`prompt`: the CLI that watches `file`, which is in the spool directory, is to get the prompt `text`.

    Or, without a `file`, that of the `session` at a place, which watches one there.
    """

    text: domain.Text
    file: str | None = None
    session: str | None = None


@dataclass(frozen=True)
class RegistryLook:
    """`registry-look`: the user looks at the registered CLIs; asks how they are now, and their editors."""


@dataclass(frozen=True)
class RegistryPrompt:
    """`registry-prompt`: the conversation `session` of the registered CLI `cli` is to get the prompt `text`.

    Answered by `registry-receipt` with the same id.  With a `program`, the command that runs Qwen Code, the user has
    allowed to make a token for that if there is none.
    """

    id: int
    cli: str
    session: str
    text: domain.Text
    program: tuple[str, ...] = ()


@dataclass(frozen=True)
class RegistryEnd:
    """`registry-end`: the process of the registered CLI `cli` is to end; answered by `registry-ended`."""

    cli: str


RegistryCall = RegistryLook | RegistryPrompt | RegistryEnd


@dataclass(frozen=True)
class ListRecorded:
    """`list-recorded`: asks which conversations were recorded in `directory`; answered by `recorded-sessions`."""

    id: int
    directory: str


@dataclass(frozen=True)
class ListPlans:
    """`list-plans`: asks for the plans approved in `directory`, or those of `conversation`; answered by `plans`."""

    id: int
    directory: str
    conversation: str | None = None


QueuedCall = Compare | Merge | Prompt | ListRecorded | ListPlans


@dataclass(frozen=True)
class ToolsOffered:
    """`tools`: the tools that Emacs offers to models, and what it tells them by itself: after edits, with prompts."""

    tools: tuple[domain.ToolDefinition, ...]
    after_edits: bool = False
    with_prompts: bool = False


@dataclass(frozen=True)
class ToolAnswer:
    """`tool-answer`: the answer to `tool-call`: items, or an error that tells the model why there are none.

    `more` is how many items there are that were not sent, `hidden` how many are in files that the user hides.
    """

    id: int
    items: tuple[domain.ToolItem, ...] = ()
    more: int = 0
    hidden: int = 0
    error: str | None = None


@dataclass(frozen=True)
class WantedPlace:
    """A place whose CLIs are to be served: its `name`, as names of its files begin, and the `hops` that lead there.

    `control` is the path of a connection of ssh that may be shared, with %-escapes, None for none.  `directories` are
    those of open buffers there, by their names at the place: their projects are workspace roots.  `files` are those
    that buffers visit.  In `shared` directories the files of this machine are meant.  A relay that is started there
    goes on without a pipe for `keep_s`.
    """

    name: str
    hops: tuple[domain.Hop, ...]
    control: str | None
    keep_s: int
    directories: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    shared: tuple[domain.SharedDirectory, ...] = ()

    @property
    def names(self) -> domain.PlaceNames:
        """The names of its files."""
        return domain.PlaceNames(self.name, self.shared)

    def __post_init__(self) -> None:
        """Check the names of directories and files.

        :raises MessageError: for one that cannot be used
        """
        try:
            shared = (name for each in self.shared for name in (each.there, each.here))
            for name in (*self.directories, *self.files, *shared):
                file_name(name)
        except FileNameError as error:
            raise MessageError(f"a name of a place cannot be used: {error}") from None


@dataclass(frozen=True)
class PlacesWanted:
    """`places`: all places whose CLIs are to be served; those that are not among them any more are left."""

    places: tuple[WantedPlace, ...]


@dataclass(frozen=True)
class RunAt:
    """`run-at`: asks how to run `command` in a terminal at `place`, in `directory` or the `project` it belongs to.

    `terminal` is a number of the terminal, which the answer, `run-command`, has too.
    """

    terminal: int
    place: str
    directory: str
    project: bool
    command: tuple[str, ...]


@dataclass(frozen=True)
class ListPlaceFiles:
    """`list-place-files`: asks for the names of the files below `directory` at `place`, by its name there."""

    place: str
    directory: str


@dataclass(frozen=True)
class CheckPlace:
    """`check-place`: asks what `program`, a CLI, lacks at `place`; answered by `place-checks`."""

    id: int
    place: str
    program: str


PlaceCall = RunAt | ListPlaceFiles | CheckPlace
"""What is asked of a place."""


@dataclass(frozen=True)
class DaemonCall:
    """`daemon-...`: a call for the client of the daemon, which is imported with the first of these.

    `values` may hold a secret, so no `repr` shows them.
    """

    method: str
    values: Plist = field(repr=False)


Incoming = (
    Roots
    | domain.Settings
    | domain.Snapshot
    | Watch
    | ReviewOutcome
    | ReviewRelease
    | QueuedCall
    | RegistryCall
    | RewindRecorded
    | ToolsOffered
    | ToolAnswer
    | PlacesWanted
    | PlaceCall
    | Stop
    | Ping
    | JournalCall
    | DaemonCall
)

DAEMON_PREFIX = "daemon-"

TEXT_PART = "text-part"
"""`(:id N :text S)`: the next part of a text that Emacs could not put into a file."""


def _parse_outcome(values: Plist, spool: Spool) -> ReviewOutcome:
    identifier, outcome = values.string(":id"), values.symbol(":outcome")
    reason = values.get(":reason")
    reason = None if reason is None else Plist(reason).text(spool)
    if outcome == "rejected":
        return ReviewOutcome(identifier, None, reason)
    if outcome != "accepted":
        raise MessageError(":outcome is neither accepted nor rejected")
    content = values.text(spool)
    # Emacs prints the empty string as "", so a missing text is a mistake and not an emptied file.
    if content is None:
        raise MessageError("an accepted outcome has no text")
    return ReviewOutcome(identifier, content, reason, values.optional_symbol(":mode"))


def _parse_compare(values: Plist, spool: Spool) -> Compare:
    return Compare(values.integer(":id"), _parse_texts(values, (":old", ":new"), spool))


def _parse_merge(values: Plist, spool: Spool) -> Merge:
    keys = (":base", ":mine", ":theirs") if values.boolean(":base") else (":mine", ":theirs")
    labels = values.strings(":labels") if values.boolean(":labels") else None
    if labels is not None and len(labels) != 3:
        raise MessageError(":labels are not three")
    return Merge(values.integer(":id"), _parse_texts(values, keys, spool), labels)


def _parse_texts(values: Plist, keys: Sequence[str], spool: Spool) -> tuple[str, ...] | None:
    """Return the texts at `keys`, or None if one is lost or not UTF-8.  Takes all from the spool in any case."""
    texts: list[str] = []
    for key in keys:
        try:
            text = values.plist(key).text(spool)
        except SpoolError:
            continue
        if text is None:
            raise MessageError(f"{key} has no text")
        texts.append(text)
    return tuple(texts) if len(texts) == len(keys) else None


_METHODS: Mapping[type[Incoming], str] = {
    domain.Snapshot: "context",
    ReviewOutcome: "outcome",
    ReviewRelease: "release",
    ToolsOffered: "tools",
    PlacesWanted: "places",
}
"""The methods of messages that `method_of` does not tell."""

_READERS: Mapping[type[Incoming], Callable[[Plist, Spool], Incoming]] = {
    ReviewOutcome: _parse_outcome,
    Compare: _parse_compare,
    Merge: _parse_merge,
}
"""What reads messages whose keys are not their fields."""

_INCOMING: Mapping[str, Callable[[Plist, Spool], Incoming]] = {
    _METHODS.get(cls) or method_of(cls): _READERS.get(cls) or partial(from_plist, cls)
    for cls in get_args(Incoming)
    if cls is not DaemonCall
}


def parse_incoming(method: str, payload: Sexp, spool: Spool) -> Incoming | None:
    """Return the message that `method` carries; None for a part of a text, which `spool` keeps for the next message.

    :raises MessageError: for an unknown method or shape
    :raises SpoolError: for a lost text
    """
    if method.startswith(DAEMON_PREFIX):
        return DaemonCall(method, Plist(payload))
    if method == TEXT_PART:
        values = Plist(payload)
        spool.add_part(values.integer(":id"), values.string(":text"))
        return None
    parse = _INCOMING.get(method)
    if parse is None:
        raise MessageError(f"no such method: {method}")
    return parse(Plist(payload), spool)


# --- Python to Emacs --------------------------------------------------------------------------------------------------

ReplyT = TypeVar("ReplyT")


class Outgoing(Generic[ReplyT]):
    """A call to Emacs, a dataclass, that is answered with a `ReplyT`."""

    method: ClassVar[str]

    def __init_subclass__(cls) -> None:
        """Name the method as the class, unless it has another name."""
        if "method" not in vars(cls):
            cls.method = method_of(cls)

    def payload(self, spool: Spool) -> Sexp:
        """Return the property list to send, by default the fields; a long text is put into `spool`.

        Runs outside the event loop.
        """
        return to_plist(self, spool)

    def parse_reply(self, reply: Sexp, spool: Spool) -> ReplyT:
        """Return the answer.

        :raises MessageError: when it has another shape
        """
        raise NotImplementedError


class Notification(Outgoing[None]):
    """A call whose answer has no meaning."""

    def parse_reply(self, reply: Sexp, spool: Spool) -> None:
        """Ignore what the handler happened to return."""


@dataclass(frozen=True)
class Published(Notification):
    """`published`: the discovery files are on disk, with the variables for terminals and warnings for the user.

    `roots` are those of the `roots` call that is answered, even if one of them was left out; `reachable` says whether
    any is left, since without one no CLI connects.  `guarded` says whether a CLI asks before an edit when this process
    does not answer.
    """

    roots: Sequence[str]
    reachable: bool
    port: int
    token: str
    environment: Mapping[str, str]
    warnings: Sequence[str]
    guarded: bool


@dataclass(frozen=True)
class FileList(Notification):
    """`files`: the names of all present discovery files.  Emacs removes them if this process cannot."""

    method = "files"
    files: Sequence[str]


@dataclass(frozen=True)
class Serving(Notification):
    """`serving`: MCP requests are being answered."""


@dataclass(frozen=True)
class SessionChanges(Notification):
    """`sessions`: sessions that are new or have changed since the last message, and the ids of those that have gone.

    Emacs keeps all for the next process.  To that one, the first message is about all of them.
    """

    method = "sessions"
    sessions: tuple[domain.SessionState, ...]
    gone: tuple[str, ...] = ()

    def payload(self, spool: Spool) -> Sexp:
        """`(:sessions (SESSION...) :gone (ID...))`.

        A session is `(:id :protocol :client :version :pid :started :directory :family :ancestors :streaming)`.
        Without the keys from :pid to :ancestors if the process was not found.  With :state, the fields of `CliState`,
        if its hooks have reported, and :no-hooks with the reason if they should have and have not.  With :usage, a list
        of the fields of `Usage`, if it is known.
        """
        return plist(
            sessions=[
                _session_plist(state.session, spool)
                + plist(streaming=state.streaming)
                + ([] if state.state is None else plist(state=to_plist(state.state, spool)))
                + ([] if state.no_hooks is None else plist(no_hooks=state.no_hooks))
                + (plist(usage=[to_plist(usage, spool) for usage in state.usage]) if state.usage else [])
                for state in self.sessions
            ],
            gone=list(self.gone),
        )


@dataclass(frozen=True)
class ContextSent(Notification):
    """`context-sent`: the last context of a session's CLI, while the user is looking; `text` is the exact JSON.

    The CLI is told of files below `roots`, or `everywhere`; `sent` is when, in ms since the epoch.
    """

    session: str
    everywhere: bool
    roots: Sequence[str]
    sent: int
    text: domain.Text
    context: domain.ToldContext


@dataclass(frozen=True)
class HookAnswers(Notification):
    """`hook-answers`: what the hooks of a session were answered, the newest first, while the user is looking."""

    session: str
    answers: tuple[domain.HookAnswer, ...]


@dataclass(frozen=True)
class ExclusionList(Notification):
    """`exclusions`: the open files that a CLI is not told of, while the user is looking."""

    method = "exclusions"
    exclusions: tuple[domain.Exclusion, ...]


@dataclass(frozen=True)
class PlaceState(Notification):
    """`place`: the state of the pipe to the place `name`: "connecting", "ready", "lost" or "failed".

    Of a pipe that is lost or has failed, `reason` is the reason, for a person.  A lost one is opened again by itself
    at `retry_at`, in ms since the epoch.  `roots` are the workspace roots there, and `home` the home directory, by
    their names at the place.  `environment` has the variables of terminals there.
    """

    method = "place"
    name: str
    state: domain.Word
    reason: str | None = None
    roots: tuple[str, ...] = ()
    home: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    retry_at: int | None = None


@dataclass(frozen=True)
class PlaceFile(Notification):
    """`place-file`: the visited file `name` at a place was written at `time`, in ms since the epoch.

    The file `copy` here has its bytes.  One without is not there any more.
    """

    name: str
    copy: str | None
    time: int


@dataclass(frozen=True)
class PlaceChecks(Notification):
    """`place-checks`: the answer to the request `id`, the lines of the doctor about a place; see `doctor`."""

    id: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class PlaceFiles(Notification):
    """`place-files`: the names of the files below `directory` at `place` that git does not ignore, relative to it.

    Of very many, it is the first ones.
    """

    place: str
    directory: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class RunCommand(Notification):
    """`run-command`: the `command` that runs a CLI at a place, or the `error` why there is none.

    It is for a terminal of this machine; at a place to which only TRAMP gets, for one that TRAMP has opened there.

    `terminal` is the number from `run-at`, `directory` where it runs, by its name in Emacs.
    """

    terminal: int
    directory: str | None
    command: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class ProposalOpen(Outgoing["str | None"]):
    """`proposal-open`: a CLI proposes a text for a file.  Emacs answers why it cannot be reviewed, or nil.

    `client` is the name of the CLI for a person, with its version, or "".  `digest` is the SHA-256 of the text in
    UTF-8, in hexadecimal digits.  `ends_lines` says that the CLI may add a newline at the end of what it writes.
    `held` says that a request of a hook waits for the outcome, and ends with it; a CLI knows its other proposals by
    their file.  A known `id` means the same review, which is left as it is.

    For a file at a place, `path` is a copy here that is kept current, `copy_of` the name that Emacs has for it.

    `kind` is "file", "plan" or "question".  A plan comes with the `path` where it is kept once it is approved, in the
    project `directory`.  Questions come with the `questions` and no text; the text that is accepted has the answers.
    """

    id: str
    session: str
    client: str
    path: str
    digest: str
    text: domain.Text
    ends_lines: bool = False
    held: bool = False
    copy_of: str | None = None
    kind: domain.Word = "file"
    directory: str | None = None
    questions: tuple[domain.AskedQuestion, ...] = ()

    def parse_reply(self, reply: Sexp, spool: Spool) -> str | None:
        """Return None, or the reason."""
        if is_nil(reply):
            return None
        if isinstance(reply, str) and not isinstance(reply, Symbol):
            return reply
        raise MessageError("the answer to proposal-open is neither nil nor a string")


class _Question(Outgoing[bool]):
    """A question that Emacs answers with t or nil."""

    def parse_reply(self, reply: Sexp, spool: Spool) -> bool:
        """Return the answer."""
        return not is_nil(reply)


@dataclass(frozen=True)
class FileVisited(_Question):
    """`file-visited`: asks whether a buffer visits the file `path`."""

    path: str


@dataclass(frozen=True)
class EditBegins(_Question):
    """`edit-begins`: an agent is about to change the file `path`; asks whether a buffer that is checked visits it."""

    path: str


@dataclass(frozen=True)
class ProposalClose(Outgoing["str | None"]):
    """`proposal-close`: end the review of a proposal, which was answered in the terminal, without an outcome.

    `keeps_edits` says that the CLI, if the answer was yes, writes the text as it is in Emacs now.  An outcome that
    Emacs has sent and nobody has confirmed came too late.  Emacs answers with the text, or nil if there is none or it
    was rejected.
    """

    id: str
    keeps_edits: bool

    def parse_reply(self, reply: Sexp, spool: Spool) -> str | None:
        """Return the text of the answer, a property list, or None for nil."""
        return None if is_nil(reply) else Plist(reply).text(spool)


@dataclass(frozen=True)
class ProposalOrphan(Notification):
    """`proposal-orphan`: the CLI that waits for a proposal has gone, or no longer waits for the `reason`."""

    id: str
    reason: str | None = None


@dataclass(frozen=True)
class ProposalReleased(Notification):
    """`proposal-released`: the terminal asks about a plan or questions now, for the `reason`.

    They can still be answered in Emacs if `answerable`.
    """

    id: str
    reason: str
    answerable: bool


@dataclass(frozen=True)
class ProposalWritten(Notification):
    """`proposal-written`: the CLI has written the file of an accepted proposal, `exactly` as accepted or otherwise."""

    id: str
    exactly: bool


@dataclass(frozen=True)
class TypeKey(_Question):
    """`type-key`: asks to type `key` into the terminal of the CLI of the plan `id`; Emacs answers whether it has.

    The `prompt` goes there once the turn is over.
    """

    id: str
    key: str
    prompt: str | None = None


@dataclass(frozen=True)
class Delivered(Notification):
    """`delivered`: the outcome of a proposal has gone out to its CLI, or there is nobody left to send it to."""

    id: str


@dataclass(frozen=True)
class Compared(Notification):
    """`compared`: the answer to `compare`.

    `hunks` are four numbers for each: first line and count of lines in the old text, and the same in the new one.
    Lines count from 1 and end in a line feed only; with a count of 0, the line is the one before which lines are added.
    None: the texts could not be compared.
    """

    id: int
    hunks: Numbers | None


@dataclass(frozen=True)
class Merged(Notification):
    """`merged`: the answer to `merge`.

    `edits`, which turn "mine" into the result, are four numbers for each: start and end in mine, start and end in the
    result, in characters from 0.  They are in order and do not overlap.  None: the texts could not be merged.  `result`
    is None if it equals "theirs".  `conflicts` is the number of conflicts marked in it.
    """

    id: int
    edits: Numbers | None
    result: Nested | None = None
    conflicts: int = 0


@dataclass(frozen=True)
class ToolCall(Notification):
    """`tool-call`: a model calls a tool; answered by `tool-answer` with the same id.

    `arguments` are those of its definition that were given.  The CLI may be told of files below `roots`, or
    `everywhere`.  After `deadline`, in ms since the epoch, nobody waits for the answer.
    """

    id: int
    name: str
    arguments: Mapping[str, str | int | bool]
    everywhere: bool
    roots: Sequence[str]
    deadline: int


@dataclass(frozen=True)
class ToolCalled(Notification):
    """`tool-called`: a tool call that is over, while the user is looking; `text` is the whole answer.

    `client` names the CLI for a person, `request` is the call in one line, `size` that of the answer in bytes.  `ms` is
    how long it took, `called` when it came, in ms since the epoch.
    """

    client: str
    request: str
    size: int
    ms: int
    called: int
    failed: bool
    text: domain.Text


@dataclass(frozen=True)
class Notice(Notification):
    """`notice`: show the user a warning or an error."""

    text: str


@dataclass(frozen=True)
class RecordedSessions(Notification):
    """`recorded-sessions`: the answer to the request `id`, the newest conversation first."""

    id: int
    sessions: Sequence[domain.RecordedSession]


@dataclass(frozen=True)
class Plans(Notification):
    """`plans`: the answer to the request `id`, the newest plan first."""

    id: int
    plans: Sequence[domain.KeptPlan]


@dataclass(frozen=True)
class RegisteredClis(Notification):
    """`registered`: the registered CLIs that are new or have changed, and the ids of those that have gone.

    The first message is about all of them.  `controller` is "none" where no token was made by which CLIs take prompts
    from Emacs, "revoked" where the user has taken it back, else "valid".  Without `told` the system tells of no
    changes: these messages then answer `registry-look` only.
    """

    method = "registered"
    clis: Sequence[domain.RegisteredCli]
    gone: Sequence[str]
    controller: domain.Word
    told: bool


@dataclass(frozen=True)
class RegistryEnded(Notification):
    """`registry-ended`: the process of the CLI `cli` has `ended`, or did not in time."""

    cli: str
    ended: bool


@dataclass(frozen=True)
class RegistryReceipt(Notification):
    """`registry-receipt`: what became of the prompt of the request `id`; another one for it may come later.

    `status` is "sent" (no receipt yet), "model" (the model has it), "queued" (behind a turn or a question), "delivered"
    (one of both), or "held" (until the user allows it there).  The CLI answers "refused", "denied", "expired",
    "misaddressed" or "dropped".  Without its answer, `status` is "unanswered" (no receipt in 10 s; it may arrive
    later), "closed" (the CLI accepts no messages), "gone" (it has ended), "too-long", "no-token" (the token is gone),
    or "failed" for the `reason`, in words.
    """

    id: int
    status: domain.Word
    reason: str | None = None


@dataclass(frozen=True)
class RecordedRewound(Notification):
    """`recorded-rewound`: the answer to the request `id`: all of the prompt before which the conversation goes on.

    `copy` is the conversation as it was before, None for none.  With an `error`, the conversation is as it was.
    """

    id: int
    text: domain.Text = ""
    copy: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class TurnChanges(Notification):
    """`journal-turns`: new and changed turns since the last message, while the user is looking.

    `reset`: these are all there are.  `gone` are turns that are not recorded any more.
    """

    method = "journal-turns"
    turns: tuple[domain.TurnChange, ...]
    gone: tuple[str, ...] = ()
    reset: bool = False


@dataclass(frozen=True)
class RewindTook(Notification):
    """`rewind-took`: a CLI has rewound its conversation itself; `turn` has what that took of the user's edits."""

    turn: Annotated[domain.TurnChange, domain.INLINE]


@dataclass(frozen=True)
class Unrecorded(Notification):
    """`journal-unrecorded`: all roots that are not recorded, each with the reason.

    `crowded` are those whose turns need too much room, each with the bytes.
    """

    method = "journal-unrecorded"
    reasons: Mapping[str, str]
    crowded: Mapping[str, int]


@dataclass(frozen=True)
class FileVersion:
    """The bytes of a file and its `permissions`; None for a link, whose bytes are where it leads."""

    data: bytes
    permissions: int | None


@dataclass(frozen=True)
class Texts:
    """A file before and after a change, None where it was not there, or the `error`; see `ChangedFile`.

    `plain`: the file on the disk is known to have no extended attributes that Emacs does not keep.  `apart`: its other
    names on the disk are another file's.
    """

    path: str
    before: FileVersion | None = None
    after: FileVersion | None = None
    previous: str | None = None
    mixed: bool = False
    error: str | None = None
    plain: bool = False
    apart: bool = False


@dataclass(frozen=True)
class JournalReply(Notification):
    """`journal-reply`: the answer to the request `id` about the journal, or in `error` why there is none.

    Only what was asked for is not None.  `spans` are quadruples: `count` lines from `line` on that an agent wrote in a
    turn, and whether they are seen; for a count of 0, lines before `line` were deleted.  `runs` has three numbers for
    each run of lines: the first line, how many lines, and which of the `origins`, from 0.  `prompts` are those of
    `turns`, with a zero character between two.  `busy` are triples of a path, a turn and a tool.  `sizes` are pairs of
    a turn and the bytes that go when it is forgotten with all before it, the oldest first.
    """

    id: int
    error: str | None = None
    files: Sequence[domain.ChangedFile] | None = None
    texts: Sequence[Texts] | None = None
    spans: Sequence[tuple[int, int, str, bool]] | None = None
    origins: Sequence[domain.LineOrigin] | None = None
    runs: Numbers = ()
    turns: Sequence[domain.TurnOrigin] | None = None
    prompts: Nested = ""
    busy: Sequence[tuple[str, str, str]] | None = None
    sizes: Sequence[tuple[str, int]] | None = None
    staged: int | None = None
    others: int | None = None
    root: str | None = None
    worktrees: Sequence[domain.Worktree] | None = None

    def payload(self, spool: Spool) -> Sexp:
        """Return the fields; for texts, `(:id N :texts (TEXTS...) :texts-file S)`.

        Each of TEXTS is `(:path S :error S-or-nil :before (FROM TO) :before-mode N-or-link :after (FROM TO) :after-mode
        N-or-link :from S :mixed B :plain B :apart B)`: where the bytes are in the file, which is for Emacs to remove,
        both nil where there was none; modes are the permission bits.
        """
        if self.texts is None:
            return to_plist(self, spool)
        data = bytearray()
        texts = [_texts_plist(texts, data) for texts in self.texts]
        return plist(id=self.id, texts=texts, texts_file=spool.write_pieces([data]))


def _texts_plist(texts: Texts, data: bytearray) -> list[Sexp]:
    """Return `texts` as Emacs gets them; add the bytes to `data`."""
    result = plist(path=texts.path, error=texts.error, **{"from": texts.previous}, mixed=texts.mixed)
    result += plist(plain=texts.plain, apart=texts.apart)
    for name, version in (("before", texts.before), ("after", texts.after)):
        place, mode = None, None
        if version is not None:
            start = len(data)
            data += version.data
            place = [start, len(data)]
            mode = Symbol("link") if version.permissions is None else version.permissions
        result += plist(**{name: place, f"{name}_mode": mode})
    return result
