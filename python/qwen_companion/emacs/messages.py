# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything that crosses EPC, as types; `qwen-companion-backend.el` holds the other half.

A call in either direction is METHOD with two arguments, the secret and a property list.  In property lists nil is
none, false or the empty list; times are milliseconds since the epoch, lines and columns count from 1, columns in UTF-16
code units.  A text travels as `:text STRING`, or as `:text-file PATH` when it is larger than `INLINE_TEXT_BYTES`.  When
no file can be written, Emacs sends its parts with `text-part` and then `:text-parts ID`; we send it as `:text` all the
same, up to `UNSPOOLED_TEXT_BYTES`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar, cast

from sexpdata import (
    ExpectClosingBracket,
    ExpectNothing,
    ExpectSExp,
    Symbol,
    loads,
)

from qwen_companion.domain import (
    HIDE,
    SHOW,
    ChangedFile,
    CliState,
    Exclusion,
    KnownProposal,
    KnownSession,
    Peer,
    SessionState,
    Settings,
    Snapshot,
    Turn,
    VisitedFile,
)
from qwen_companion.emacs.spool import Spool
from qwen_companion.errors import HelloError, MessageError, SpoolError

PROTOCOL = 1
"""Number of this contract; the hello line names the one the Elisp was written for."""

INLINE_TEXT_BYTES = 64 * 1024
"""Largest text, in UTF-8 bytes, that goes inside a frame: both ends parse that without a noticeable pause."""

UNSPOOLED_TEXT_BYTES = 1024 * 1024
"""Largest text, in UTF-8 bytes, that goes inside a frame where it cannot go by file: Emacs pauses 0.1 to 0.3 s."""

Sexp = object
"""A parsed or to-be-printed expression: str, int, float, bool, None, `Symbol` or a sequence of these."""

# sexpdata has no error of its own for most bad input; these are what its parser lets through.
_UNREADABLE = (
    AssertionError,
    AttributeError,
    IndexError,
    RecursionError,
    TypeError,
    ValueError,
    ExpectClosingBracket,
    ExpectNothing,
    ExpectSExp,
)


def read_sexp(data: bytes) -> Sexp:
    """The one expression in DATA, UTF-8.  MessageError, which never quotes DATA, when there is none."""
    try:
        return loads(data.decode("utf-8"))
    except _UNREADABLE:
        raise MessageError("not one Lisp expression in UTF-8") from None


class Plist:
    """Typed reading of one property list.  Every accessor raises MessageError naming the key, never the value."""

    def __init__(self, sexp: Sexp) -> None:
        items = _sequence(sexp, "the payload")
        if len(items) % 2:
            raise MessageError("a property list has an odd number of elements")
        self._values: dict[str, Sexp] = {}
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, Symbol):
                raise MessageError("a property list has a key that is no symbol")
            self._values.setdefault(str(key), value)

    def string(self, key: str) -> str:
        """The string at KEY."""
        value = self._values.get(key)
        if not isinstance(value, str) or isinstance(value, Symbol):
            raise MessageError(f"{key} is not a string")
        return value

    def optional_string(self, key: str) -> str | None:
        """The string at KEY; None for nil or no such key."""
        return None if _is_nil(self._values.get(key)) else self.string(key)

    def symbol(self, key: str) -> str:
        """The name of the symbol at KEY."""
        value = self._values.get(key)
        if not isinstance(value, Symbol):
            raise MessageError(f"{key} is not a symbol")
        return str(value)

    def boolean(self, key: str) -> bool:
        """Whether there is anything but nil at KEY."""
        return not _is_nil(self._values.get(key))

    def optional_symbol(self, key: str) -> str | None:
        """The name of the symbol at KEY; None for nil or no such key."""
        return None if _is_nil(self._values.get(key)) else self.symbol(key)

    def integer(self, key: str) -> int:
        """The number at KEY, cut to an integer: Emacs may well compute a time as a float."""
        value = self._values.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise MessageError(f"{key} is not a number")
        return int(value)

    def optional_integer(self, key: str) -> int | None:
        """The number at KEY; None for nil or no such key."""
        return None if _is_nil(self._values.get(key)) else self.integer(key)

    def integers(self, key: str) -> tuple[int, ...]:
        """The list of whole numbers at KEY."""
        items = _sequence(self._values.get(key), key)
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            raise MessageError(f"{key} is not a list of whole numbers")
        return cast("tuple[int, ...]", tuple(items))

    def strings(self, key: str) -> tuple[str, ...]:
        """The list of strings at KEY."""
        items = _sequence(self._values.get(key), key)
        if not all(isinstance(item, str) and not isinstance(item, Symbol) for item in items):
            raise MessageError(f"{key} is not a list of strings")
        return cast("tuple[str, ...]", tuple(items))

    def plist(self, key: str) -> Plist:
        """The property list at KEY."""
        return Plist(self._values.get(key))

    def plists(self, key: str) -> list[Plist]:
        """The list of property lists at KEY."""
        return [Plist(item) for item in _sequence(self._values.get(key), key)]

    def text(self, spool: Spool) -> str | None:
        """The text of this message, from the frame or from the spool; None when it has none.  SpoolError."""
        parts = self.optional_integer(":text-parts")
        if parts is not None:
            return spool.take_parts(parts)
        path = self.optional_string(":text-file")
        return self.optional_string(":text") if path is None else spool.read(path)


def plist(**values: Sexp) -> list[Sexp]:
    """A property list for printing; `text_file=...` becomes `:text-file ...`."""
    result: list[Sexp] = []
    for key, value in values.items():
        result += [Symbol(":" + key.replace("_", "-")), value]
    return result


def text_plist(text: str, spool: Spool) -> list[Sexp]:
    """The keys that carry TEXT.  SpoolError when it has to go by file and cannot."""
    # A code point has at most four bytes, so most texts need no encoding to be known as small.
    if len(text) * 4 <= INLINE_TEXT_BYTES or (size := len(text.encode("utf-8"))) <= INLINE_TEXT_BYTES:
        return plist(text=text)
    try:
        return plist(text_file=spool.write(text))
    except SpoolError:
        if size > UNSPOOLED_TEXT_BYTES:
            raise
        return plist(text=text)


def numbers_plist(numbers: Sequence[int], spool: Spool) -> list[Sexp]:
    """The keys that carry NUMBERS, which may be many: a text of them in decimal, with blanks between.  SpoolError."""
    return text_plist(" ".join(map(str, numbers)), spool)


def _is_nil(value: Sexp) -> bool:
    return value is None or value is False or (isinstance(value, Sequence) and not isinstance(value, str) and not value)


def _sequence(value: Sexp, what: str) -> Sequence[Sexp]:
    if _is_nil(value):
        return ()
    if not isinstance(value, list | tuple):
        raise MessageError(f"{what} is not a list")
    return cast("Sequence[Sexp]", value)


# --- The hello line ---------------------------------------------------------------------------------------------------


def _parse_peer(values: Plist) -> Peer | None:
    """Read `(:pid :started :directory :family :ancestors)`; None when there is no :pid."""
    pid = values.optional_integer(":pid")
    if pid is None:
        return None
    return Peer(
        pid,
        values.string(":started"),
        values.optional_string(":directory"),
        values.optional_symbol(":family"),
        values.integers(":ancestors"),
    )


def _parse_session(values: Plist) -> KnownSession:
    """Read `(:id :protocol :client :version :no-reviews)` and what `_parse_peer` reads."""
    keys = (":id", ":protocol", ":client", ":version")
    return KnownSession(
        *(values.string(key) for key in keys),
        peer=_parse_peer(values),
        reviews=not values.boolean(":no-reviews"),
    )


def _session_plist(session: KnownSession) -> list[Sexp]:
    """Return what `_parse_session` reads."""
    head = plist(id=session.id, protocol=session.protocol, client=session.client, version=session.version)
    reviews = [] if session.reviews else plist(no_reviews=True)
    peer = session.peer
    if peer is None:
        return head + reviews
    family = None if peer.family is None else Symbol(peer.family)
    ancestors = list(peer.ancestors)
    place = plist(pid=peer.pid, started=peer.started, directory=peer.directory, family=family, ancestors=ancestors)
    return head + reviews + place


def _parse_proposal(values: Plist) -> KnownProposal:
    """Read `(:id :session :path :digest)`."""
    return KnownProposal(*(values.string(key) for key in (":id", ":session", ":path", ":digest")))


@dataclass(frozen=True)
class Hello:
    """What Emacs writes to standard input first.  PORT 0 and TOKEN "" mean: make one.

    RESERVE is the Unix socket that keeps the port between two processes, see `listening`; None when there is none.
    """

    secret: str
    emacs_pid: int
    port: int
    reserve: str | None
    token: str
    spool: str
    sessions: tuple[KnownSession, ...]
    proposals: tuple[KnownProposal, ...]

    @classmethod
    def parse(cls, line: bytes) -> Hello:
        """Read LINE; HelloError, whose text never quotes the line, when it is not a hello of this protocol."""
        try:
            values = Plist(read_sexp(line))
            protocol = values.integer(":protocol")
            if protocol != PROTOCOL:
                raise HelloError(
                    f"the Elisp speaks protocol {protocol}, this backend {PROTOCOL}: reinstall the package"
                )
            hello = cls(
                secret=values.string(":secret"),
                emacs_pid=values.integer(":emacs-pid"),
                port=values.integer(":port"),
                reserve=values.optional_string(":reserve"),
                token=values.optional_string(":token") or "",
                spool=values.string(":spool"),
                sessions=tuple(_parse_session(item) for item in values.plists(":sessions")),
                proposals=tuple(_parse_proposal(item) for item in values.plists(":proposals")),
            )
        except MessageError as error:
            raise HelloError(f"the hello line cannot be used: {error}") from None
        if not hello.secret or hello.emacs_pid <= 0 or not 0 <= hello.port <= 65535:
            raise HelloError("the hello line lacks a secret, a process id or a usable port")
        return hello


# --- Emacs to Python --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Roots:
    """`roots`: the open workspace roots, absolute, without trailing slash.

    IMITATE_VSCODE: terminals may be told that they are VS Code's, for the CLIs that want nothing else.
    """

    roots: tuple[str, ...]
    imitate_vscode: bool


@dataclass(frozen=True)
class Watch:
    """`watch`: the user has begun, or ceased, to look at what the CLIs are told."""

    on: bool


@dataclass(frozen=True)
class ReviewOutcome:
    """`outcome`: the user decided.  CONTENT is the accepted text, None for a rejection."""

    id: str
    content: str | None


@dataclass(frozen=True)
class Compare:
    """`compare`: asks for `Compared`, by ID.

    TEXTS are the old and the new one; None when one of them could not be handed over.
    """

    id: int
    texts: tuple[str, ...] | None

    def failed(self) -> Compared:
        """The answer when there is none."""
        return Compared(self.id, None)


@dataclass(frozen=True)
class Merge:
    """`merge`: asks for `Merged`, by ID.

    TEXTS are the base, "mine" and "theirs", or only the latter two: then mine is the base.  None when one of them could
    not be handed over.  LABELS are what the three are called in a conflict, in that order: mine, base, theirs.  None: a
    conflict is not marked, there is no result then; and changes are merged by characters instead of lines.
    """

    id: int
    texts: tuple[str, ...] | None
    labels: tuple[str, str, str] | None

    def failed(self) -> Merged:
        """The answer when there is none."""
        return Merged(self.id, None)


@dataclass(frozen=True)
class Stop:
    """`stop`: end, and leave nothing behind."""


@dataclass(frozen=True)
class Ping:
    """`ping`: asks whether the event loop is running, which answers it."""


@dataclass(frozen=True)
class JournalWatch:
    """`journal-watch`: the user has begun, or ceased, to look at what agents changed; asks for `TurnChanges`."""

    on: bool


@dataclass(frozen=True)
class ChangeScope:
    """Changes by agents below ROOT: those of TURN, or as SCOPE says.

    SCOPE is "turn", "since" for TURN and all later ones, "session" for those of SESSION, "look" for what the user has
    not marked as seen, "all", or "commit" for what differs from the last commit, whoever changed it.
    """

    root: str
    scope: str
    turn: str | None
    session: str | None


@dataclass(frozen=True)
class JournalFiles:
    """`journal-files`: asks for the files that were changed in SCOPE; the answer is a `JournalReply`."""

    id: int
    scope: ChangeScope


@dataclass(frozen=True)
class JournalTexts:
    """`journal-texts`: asks for the bytes of the file PATH before and after its changes in SCOPE: `JournalReply`."""

    id: int
    scope: ChangeScope
    path: str


@dataclass(frozen=True)
class JournalSpans:
    """`journal-spans`: asks which lines of the file PATH are an agent's; the answer is a `JournalReply`."""

    id: int
    path: str


@dataclass(frozen=True)
class JournalSeen:
    """`journal-seen`: the user has marked changes of TURN as SEEN, or as not seen.

    All files of the turn where PATH is None, all hunks of the file where HUNKS, keys of Emacs, are none.
    """

    turn: str
    path: str | None
    hunks: tuple[str, ...]
    seen: bool


@dataclass(frozen=True)
class JournalWrote:
    """`journal-wrote`: Emacs itself has just written, renamed or deleted PATHS.

    UNDO_OF is the turn that this undid, and LABEL what was undone in words; None where it is the user's own work.
    """

    paths: tuple[str, ...]
    undo_of: str | None
    label: str | None


@dataclass(frozen=True)
class JournalBusy:
    """`journal-busy`: asks at which of PATHS an agent is at work; with WAIT, answered when at none, or late."""

    id: int
    paths: tuple[str, ...]
    wait: bool


@dataclass(frozen=True)
class JournalForget:
    """`journal-forget`: asks to remove what is recorded of ROOT, or with None of all roots; gets a `JournalReply`."""

    id: int
    root: str | None


JournalCall = (
    JournalWatch | JournalFiles | JournalTexts | JournalSpans | JournalSeen | JournalWrote | JournalBusy | JournalForget
)


@dataclass(frozen=True)
class DaemonCall:
    """`daemon-...`: something for the daemon client, which is imported with the first of these and reads VALUES.

    Among them there may be a secret, so they are in no `repr`.
    """

    method: str
    values: Plist = field(repr=False)


Incoming = (
    Roots | Settings | Snapshot | Watch | ReviewOutcome | Compare | Merge | Stop | Ping | JournalCall | DaemonCall
)

DAEMON_PREFIX = "daemon-"

TEXT_PART = "text-part"
"""`(:id N :text S)`: the next part of a text that Emacs could not put into a file."""


def _parse_roots(values: Plist, _spool: Spool) -> Roots:
    return Roots(values.strings(":roots"), values.boolean(":imitate-vscode"))


def _parse_context(values: Plist, spool: Spool) -> Snapshot:
    return Snapshot(
        files=tuple(
            VisitedFile(item.string(":path"), item.integer(":timestamp"), _parse_exposure(item))
            for item in values.plists(":files")
        ),
        active=values.optional_string(":active"),
        line=values.optional_integer(":line"),
        character=values.optional_integer(":character"),
        selection=values.text(spool),
    )


def _parse_exposure(values: Plist) -> str | None:
    exposure = values.optional_symbol(":exposure")
    if exposure not in (None, HIDE, SHOW):
        raise MessageError(":exposure is neither hide nor show")
    return exposure


def _parse_settings(values: Plist, _spool: Spool) -> Settings:
    return Settings(
        all_roots=values.boolean(":all-roots"),
        trust=True if values.boolean(":trusted") else values.strings(":trusted-directories") or None,
        patterns=values.strings(":patterns"),
        auth_sources=values.strings(":auth-sources"),
        reviews=not values.boolean(":no-reviews"),
        size_limit=values.optional_integer(":size-limit"),
        layer=values.boolean(":settings-layer"),
        review_edits=values.optional_symbol(":review-edits"),
        journal=values.boolean(":journal"),
        tell_undone=values.boolean(":tell-undone"),
    )


def _parse_watch(values: Plist, _spool: Spool) -> Watch:
    return Watch(values.boolean(":on"))


def _parse_outcome(values: Plist, spool: Spool) -> ReviewOutcome:
    identifier, outcome = values.string(":id"), values.symbol(":outcome")
    if outcome == "rejected":
        return ReviewOutcome(identifier, None)
    if outcome != "accepted":
        raise MessageError(":outcome is neither accepted nor rejected")
    content = values.text(spool)
    # Emacs prints the empty string as "", so a missing text is a mistake and not an emptied file.
    if content is None:
        raise MessageError("an accepted outcome has no text")
    return ReviewOutcome(identifier, content)


def _parse_compare(values: Plist, spool: Spool) -> Compare:
    return Compare(values.integer(":id"), _parse_texts(values, (":old", ":new"), spool))


def _parse_merge(values: Plist, spool: Spool) -> Merge:
    keys = (":base", ":mine", ":theirs") if values.boolean(":base") else (":mine", ":theirs")
    labels = values.strings(":labels") if values.boolean(":labels") else None
    if labels is not None and len(labels) != 3:
        raise MessageError(":labels are not three")
    return Merge(values.integer(":id"), _parse_texts(values, keys, spool), labels)


def _parse_texts(values: Plist, keys: Sequence[str], spool: Spool) -> tuple[str, ...] | None:
    """The texts at KEYS; None when one of them is lost or no UTF-8.  Takes all of them from the spool in any case."""
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


def _parse_stop(_values: Plist, _spool: Spool) -> Stop:
    return Stop()


def _parse_ping(_values: Plist, _spool: Spool) -> Ping:
    return Ping()


def _parse_journal_watch(values: Plist, _spool: Spool) -> JournalWatch:
    return JournalWatch(values.boolean(":on"))


_SCOPES = ("turn", "since", "session", "look", "all", "commit")


def _parse_scope(values: Plist) -> ChangeScope:
    scope = values.symbol(":scope")
    turn, session = values.optional_string(":turn"), values.optional_string(":session")
    needed = {"turn": turn, "since": turn, "session": session}
    if scope not in _SCOPES or needed.get(scope, "") is None:
        raise MessageError(":scope is unknown, or lacks its turn or session")
    return ChangeScope(values.string(":root"), scope, turn, session)


def _parse_journal_files(values: Plist, _spool: Spool) -> JournalFiles:
    return JournalFiles(values.integer(":id"), _parse_scope(values))


def _parse_journal_texts(values: Plist, _spool: Spool) -> JournalTexts:
    return JournalTexts(values.integer(":id"), _parse_scope(values), values.string(":path"))


def _parse_journal_spans(values: Plist, _spool: Spool) -> JournalSpans:
    return JournalSpans(values.integer(":id"), values.string(":path"))


def _parse_journal_seen(values: Plist, _spool: Spool) -> JournalSeen:
    hunks = values.strings(":hunks")
    return JournalSeen(values.string(":turn"), values.optional_string(":path"), hunks, values.boolean(":seen"))


def _parse_journal_wrote(values: Plist, _spool: Spool) -> JournalWrote:
    undone, label = values.optional_string(":undo-of"), values.optional_string(":label")
    return JournalWrote(values.strings(":paths"), undone, label)


def _parse_journal_busy(values: Plist, _spool: Spool) -> JournalBusy:
    return JournalBusy(values.integer(":id"), values.strings(":paths"), values.boolean(":wait"))


def _parse_journal_forget(values: Plist, _spool: Spool) -> JournalForget:
    return JournalForget(values.integer(":id"), values.optional_string(":root"))


_INCOMING = {
    "roots": _parse_roots,
    "settings": _parse_settings,
    "context": _parse_context,
    "watch": _parse_watch,
    "outcome": _parse_outcome,
    "compare": _parse_compare,
    "merge": _parse_merge,
    "journal-watch": _parse_journal_watch,
    "journal-files": _parse_journal_files,
    "journal-texts": _parse_journal_texts,
    "journal-spans": _parse_journal_spans,
    "journal-seen": _parse_journal_seen,
    "journal-wrote": _parse_journal_wrote,
    "journal-busy": _parse_journal_busy,
    "journal-forget": _parse_journal_forget,
    "stop": _parse_stop,
    "ping": _parse_ping,
}


def parse_incoming(method: str, payload: Sexp, spool: Spool) -> Incoming | None:
    """The message METHOD carries; None for a part of a text, which SPOOL keeps for the message that follows.

    MessageError for an unknown method or shape, SpoolError for a lost text.
    """
    if method.startswith(DAEMON_PREFIX):
        return DaemonCall(method, Plist(payload))
    if method == TEXT_PART:
        values = Plist(payload)
        spool.keep_part(values.integer(":id"), values.string(":text"))
        return None
    parse = _INCOMING.get(method)
    if parse is None:
        raise MessageError(f"no such method: {method}")
    return parse(Plist(payload), spool)


# --- Python to Emacs --------------------------------------------------------------------------------------------------

ReplyT = TypeVar("ReplyT")


class Outgoing(Generic[ReplyT]):
    """A call to Emacs whose answer is a ReplyT."""

    method: ClassVar[str]

    def payload(self, spool: Spool) -> Sexp:
        """The property list to send; a large text is put into SPOOL.  Runs outside the event loop."""
        raise NotImplementedError

    def parse_reply(self, reply: Sexp, spool: Spool) -> ReplyT:
        """The answer.  MessageError when it has not the agreed shape."""
        raise NotImplementedError


class Notification(Outgoing[None]):
    """A call whose answer says nothing."""

    def parse_reply(self, reply: Sexp, spool: Spool) -> None:
        """Whatever the handler happened to return is no answer."""


@dataclass(frozen=True)
class Published(Notification):
    """`published`: the discovery files are on disk and name ROOTS; ENVIRONMENT is for terminals, WARNINGS for the user.

    ROOTS are those of the `roots` call that is answered, also where one of them had to be left out; REACHABLE says
    whether any is left, since without one no CLI connects.
    """

    method = "published"
    roots: Sequence[str]
    reachable: bool
    port: int
    token: str
    environment: Mapping[str, str]
    warnings: Sequence[str]

    def payload(self, spool: Spool) -> Sexp:
        """`(:roots (S...) :reachable B :port N :token S :environment ((NAME VALUE)...) :warnings (S...))`."""
        return plist(
            roots=list(self.roots),
            reachable=self.reachable,
            port=self.port,
            token=self.token,
            environment=[[name, value] for name, value in self.environment.items()],
            warnings=list(self.warnings),
        )


@dataclass(frozen=True)
class FileList(Notification):
    """`files`: the names of all discovery files there are now.  Emacs removes them when this process cannot."""

    method = "files"
    files: Sequence[str]

    def payload(self, spool: Spool) -> Sexp:
        """`(:files (S...))`."""
        return plist(files=list(self.files))


@dataclass(frozen=True)
class Serving(Notification):
    """`serving`: MCP requests are being answered."""

    method = "serving"

    def payload(self, spool: Spool) -> Sexp:
        """No payload."""
        return None


@dataclass(frozen=True)
class SessionList(Notification):
    """`sessions`: all sessions after a change.  Emacs keeps them for the next process."""

    method = "sessions"
    sessions: tuple[SessionState, ...]

    def payload(self, spool: Spool) -> Sexp:
        """`(:sessions ((:id :protocol :client :version :pid :started :directory :family :ancestors :streaming)...))`.

        Without the keys from :pid to :ancestors where the process was not found.  With :state where its hooks have
        reported, `(:activity SYMBOL :since MS :prompt S :question S :mode S :model S :tokens N :context N
        :subagents N)`, each nil where not known; with :no-hooks and a text where they should have and do not.
        """
        return plist(
            sessions=[
                _session_plist(state.session)
                + plist(streaming=state.streaming)
                + ([] if state.state is None else plist(state=_cli_state_plist(state.state)))
                + ([] if state.no_hooks is None else plist(no_hooks=state.no_hooks))
                for state in self.sessions
            ]
        )


def _cli_state_plist(state: CliState) -> list[Sexp]:
    return plist(
        activity=None if state.activity is None else Symbol(state.activity),
        since=state.since,
        prompt=state.prompt,
        question=state.question,
        mode=state.mode,
        model=state.model,
        tokens=state.tokens,
        context=state.context,
        subagents=state.subagents,
    )


@dataclass(frozen=True)
class ContextSent(Notification):
    """`context-sent`: what the CLI of a session was told last, while the user is looking; TEXT is the exact JSON.

    ROOTS are those below which it hears of files, None for everywhere; SENT is when, in ms since the epoch.
    """

    method = "context-sent"
    session: str
    roots: tuple[str, ...] | None
    sent: int
    text: str

    def payload(self, spool: Spool) -> Sexp:
        """`(:session ID :everywhere B :roots (S...) :sent MS)` and the text."""
        head = plist(session=self.session, everywhere=self.roots is None, roots=list(self.roots or ()), sent=self.sent)
        return head + text_plist(self.text, spool)


@dataclass(frozen=True)
class ExclusionList(Notification):
    """`exclusions`: the open files of which a CLI does not hear, while the user is looking."""

    method = "exclusions"
    exclusions: tuple[Exclusion, ...]

    def payload(self, spool: Spool) -> Sexp:
        """`(:exclusions ((:path S :rule S :session ID-or-nil)...))`."""
        return plist(
            exclusions=[plist(path=item.path, rule=item.rule, session=item.session) for item in self.exclusions]
        )


@dataclass(frozen=True)
class ProposalOpen(Outgoing["str | None"]):
    """`proposal-open`: a CLI proposes TEXT for PATH.  The answer is why not, or None.

    CLIENT is the CLI's name for a person, with its version; "" when it is not known.  DIGEST is the SHA-256 of the text
    in UTF-8, in hexadecimal digits.  ENDS_LINES says that the CLI may end the last line of what it writes when the
    text does not.  HELD says that a request of a hook waits for the outcome, and ends with it; a CLI knows its other
    proposals by their file.  An ID that is known already means the same review, to be left as it is.
    """

    method = "proposal-open"
    id: str
    session: str
    client: str
    path: str
    digest: str
    text: str
    ends_lines: bool = False
    held: bool = False

    def payload(self, spool: Spool) -> Sexp:
        """`(:id :session :client :path :digest :ends-lines :held)` and the text."""
        head = plist(
            id=self.id,
            session=self.session,
            client=self.client,
            path=self.path,
            digest=self.digest,
            ends_lines=self.ends_lines,
            held=self.held,
        )
        return head + text_plist(self.text, spool)

    def parse_reply(self, reply: Sexp, spool: Spool) -> str | None:
        """nil, or the reason as a string."""
        if _is_nil(reply):
            return None
        if isinstance(reply, str) and not isinstance(reply, Symbol):
            return reply
        raise MessageError("the answer to proposal-open is neither nil nor a string")


@dataclass(frozen=True)
class FileVisited(Outgoing[bool]):
    """`file-visited`: asks whether a buffer visits the file PATH."""

    method = "file-visited"
    path: str

    def payload(self, spool: Spool) -> Sexp:
        """`(:path S)`."""
        return plist(path=self.path)

    def parse_reply(self, reply: Sexp, spool: Spool) -> bool:
        """nil, or anything else."""
        return not _is_nil(reply)


@dataclass(frozen=True)
class ProposalClose(Outgoing["str | None"]):
    """`proposal-close`: end the review of proposal ID, which was answered in the terminal, without an outcome.

    KEEPS_EDITS says that the CLI, if the answer was yes, writes the text as it is in Emacs now.  An outcome that Emacs
    has sent and nobody has confirmed came too late.  The answer is the text; None if there is none, or was rejected.
    """

    method = "proposal-close"
    id: str
    keeps_edits: bool

    def payload(self, spool: Spool) -> Sexp:
        """`(:id ID :keeps-edits B)`."""
        return plist(id=self.id, keeps_edits=self.keeps_edits)

    def parse_reply(self, reply: Sexp, spool: Spool) -> str | None:
        """nil, or a property list with the text."""
        return None if _is_nil(reply) else Plist(reply).text(spool)


@dataclass(frozen=True)
class ProposalOrphan(Notification):
    """`proposal-orphan`: the CLI that waits for proposal ID has gone."""

    method = "proposal-orphan"
    id: str

    def payload(self, spool: Spool) -> Sexp:
        """`(:id ID)`."""
        return plist(id=self.id)


@dataclass(frozen=True)
class Delivered(Notification):
    """`delivered`: the outcome of proposal ID has gone out to its CLI, or there is none to deliver any more."""

    method = "delivered"
    id: str

    def payload(self, spool: Spool) -> Sexp:
        """`(:id ID)`."""
        return plist(id=self.id)


@dataclass(frozen=True)
class Compared(Notification):
    """`compared`: the answer to `Compare` ID.

    HUNKS are four numbers for each: first line and count of lines in the old text, and the same in the new one.  Lines
    count from 1 and end in a line feed only; where the count is 0, the line is that before which the others go.  None:
    it could not be done.
    """

    method = "compared"
    id: int
    hunks: Sequence[int] | None

    def payload(self, spool: Spool) -> Sexp:
        """`(:id ID :hunks NUMBERS-or-nil)`."""
        return plist(id=self.id, hunks=None if self.hunks is None else numbers_plist(self.hunks, spool))


@dataclass(frozen=True)
class Merged(Notification):
    """`merged`: the answer to `Merge` ID.

    EDITS, which make the result of "mine", are four numbers for each: start and end in mine, start and end in the
    result, in characters from 0.  They are in order and do not overlap.  None: it could not be done.  RESULT is None
    where it is "theirs".  CONFLICTS tells how many are marked in it.
    """

    method = "merged"
    id: int
    edits: Sequence[int] | None
    result: str | None = None
    conflicts: int = 0

    def payload(self, spool: Spool) -> Sexp:
        """`(:id ID :edits NUMBERS-or-nil :result TEXT-or-nil :conflicts N)`."""
        return plist(
            id=self.id,
            edits=None if self.edits is None else numbers_plist(self.edits, spool),
            result=None if self.result is None else text_plist(self.result, spool),
            conflicts=self.conflicts,
        )


@dataclass(frozen=True)
class Notice(Notification):
    """`notice`: something the user should read."""

    method = "notice"
    level: str
    text: str

    def payload(self, spool: Spool) -> Sexp:
        """`(:level warning|error :text S)`."""
        return plist(level=Symbol(self.level), text=self.text)


@dataclass(frozen=True)
class TurnChange:
    """A turn and what has become another in it: its FILES with their changes, and those of GONE with none any more."""

    turn: Turn
    files: tuple[ChangedFile, ...]
    gone: tuple[str, ...] = ()


@dataclass(frozen=True)
class TurnChanges(Notification):
    """`journal-turns`: turns that are new or have become others since the last message, while the user is looking.

    RESET: these are all there are.  GONE are turns that are not recorded any more.
    """

    method = "journal-turns"
    turns: tuple[TurnChange, ...]
    gone: tuple[str, ...] = ()
    reset: bool = False

    def payload(self, spool: Spool) -> Sexp:
        """`(:reset B :turns (TURN...) :gone (ID...))`.

        A turn is `(:id S :root S :session S :client S :who agent|user :source SYMBOL :prompt S :start MS :end MS-or-nil
        :undone-of ID-or-nil :undone-by (ID...) :notes (S...) :files (FILE...) :files-gone (PATH...))`.
        """
        return plist(reset=self.reset, turns=[_turn_plist(turn) for turn in self.turns], gone=list(self.gone))


def _turn_plist(change: TurnChange) -> list[Sexp]:
    turn = change.turn
    return plist(
        id=turn.id,
        root=turn.root,
        session=turn.session,
        client=turn.client,
        who=Symbol("agent" if turn.undone is None else "user"),
        source=Symbol(turn.source),
        prompt=turn.prompt,
        start=turn.start,
        end=turn.end,
        undone_of=turn.undone,
        undone_by=list(turn.undone_by),
        notes=list(turn.notes),
        files=[_changed_file_plist(file) for file in change.files],
        files_gone=list(change.gone),
    )


def _changed_file_plist(file: ChangedFile) -> list[Sexp]:
    """Return `(:path :kind :from :binary :added :deleted :seen :seen-hunks :mixed :by ((TOOL AGENT)...))`."""
    return plist(
        path=file.path,
        kind=Symbol(file.kind),
        **{"from": file.previous},
        binary=file.binary,
        added=file.added,
        deleted=file.deleted,
        seen=file.seen,
        seen_hunks=list(file.seen_hunks),
        mixed=file.mixed,
        by=[[tool, agent or None] for tool, agent in file.writers],
    )


@dataclass(frozen=True)
class FileVersion:
    """The BYTES of a file and its MODE: "file", "executable", or "link", whose bytes are where it leads."""

    data: bytes
    mode: str


@dataclass(frozen=True)
class Texts:
    """A file before and after a change, None where it was not there; see `ChangedFile`.

    CURRENT: the disk has what was there afterwards.
    """

    before: FileVersion | None
    after: FileVersion | None
    previous: str | None
    mixed: bool
    current: bool


@dataclass(frozen=True)
class Span:
    """COUNT lines from LINE on that an agent wrote in TURN; for 0, lines before LINE were deleted."""

    line: int
    count: int
    turn: str
    seen: bool


@dataclass(frozen=True)
class JournalReply(Notification):
    """`journal-reply`: the answer to the request ID about the journal, or in ERROR why there is none.

    Only what was asked for is not None.  BUSY are triples of a path, a turn and a tool.
    """

    method = "journal-reply"
    id: int
    error: str | None = None
    files: Sequence[ChangedFile] | None = None
    texts: Texts | None = None
    spans: Sequence[Span] | None = None
    seen: Sequence[str] = ()
    busy: Sequence[tuple[str, str, str]] | None = None

    def payload(self, spool: Spool) -> Sexp:
        """`(:id ID :error S-or-nil)`, and the keys that belong to the request.

        `:files (FILE...)`; or `:spans ((LINE COUNT TURN SEEN)...) :seen (S...)`; or `:busy ((PATH TURN TOOL)...)`; or
        `:before-file S :before-mode SYMBOL :after-file S :after-mode SYMBOL :from S :mixed B :disk B`, each of the two
        files nil where there was none, and for Emacs to remove.
        """
        result = plist(id=self.id, error=self.error)
        if self.files is not None:
            result += plist(files=[_changed_file_plist(file) for file in self.files])
        if self.spans is not None:
            spans = [[span.line, span.count, span.turn, span.seen] for span in self.spans]
            result += plist(spans=spans, seen=list(self.seen))
        if self.busy is not None:
            result += plist(busy=[list(item) for item in self.busy])
        if self.texts is not None:
            result += _texts_plist(self.texts, spool)
        return result


def _texts_plist(texts: Texts, spool: Spool) -> list[Sexp]:
    result = plist(**{"from": texts.previous}, mixed=texts.mixed, disk=texts.current)
    for name, version in (("before", texts.before), ("after", texts.after)):
        file = None if version is None else spool.write_bytes(version.data)
        mode = None if version is None else Symbol(version.mode)
        result += plist(**{f"{name}_file": file, f"{name}_mode": mode})
    return result
