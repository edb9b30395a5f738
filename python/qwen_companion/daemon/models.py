# SPDX-License-Identifier: GPL-3.0-or-later
"""The names and shapes of the daemon's protocol that we use; as seen on 0.24.4 unless a docstring says otherwise.

A newer daemon must not break this: unknown members are ignored, and those it may omit are optional.

Times are milliseconds since the epoch.  Strings are as the daemon sent them, with control characters and lone
surrogates: use `sanitize` before display.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel, to_snake

from qwen_companion.daemon.errors import ProtocolViolationError

_log = logging.getLogger(__name__)

PROTOCOL = "v1"
"""The entry of `protocolVersions.supported` for this client."""

ENVELOPE_VERSION = 1
"""`v` of `/capabilities` and of every event."""

REQUIRED_FEATURES = frozenset(
    {
        "client_identity",
        "non_blocking_prompt",
        "session_events",
        "session_load",
        "session_permission_vote",
        "session_prompt",
        "session_scope_override",
        "session_set_model",
        "session_status",
    }
)
"""Features that a chat needs."""

SNAPSHOT_FEATURE = "slow_client_warning"
"""The feature that the event stream accepts the parameters `snapshot` and `maxQueued`."""

MID_TURN_FEATURE = "session_mid_turn_message_mutation"
"""The feature that a message can be sent to the model during its turn, and withdrawn before the model reads it."""

BRANCH_FEATURE = "session_branch"
"""The feature that a session can be forked."""

REWIND_FEATURE = "session_rewind"
"""The feature that a session can be rewound."""

KEPT_REWIND_POINTS = 100
"""With this many points or more, the daemon has forgotten the first ones and rewinds to a wrong turn (0.24.4)."""

PROVIDERS_FEATURE = "workspace_providers"
"""The feature that the daemon reports which models in its settings accept images."""

MID_TURN_CHARACTERS = 16 * 1024
"""Longest message to a running turn, in characters (0.24.4)."""

Json = dict[str, Any]


W = TypeVar("W", bound="Wire")


class Wire(BaseModel):
    """An object on the wire, where names are in camel case.

    Unknown members are ignored.  A member that is null, or optional and of an unknown shape, counts as absent, so that
    a newer daemon breaks as little as possible.
    """

    model_config = ConfigDict(
        extra="ignore", frozen=True, alias_generator=to_camel, validate_by_name=True, hide_input_in_errors=True
    )

    @model_validator(mode="wrap")
    @classmethod
    def _leniently(cls: type[W], value: object, validate: ModelWrapValidatorHandler[W]) -> W:
        if not isinstance(value, Mapping):
            return validate(value)
        members = {key: member for key, member in cast("Mapping[str, object]", value).items() if member is not None}
        try:
            return validate(members)
        except ValidationError as error:
            odd = {item["loc"][0] for item in error.errors(include_input=False) if item["loc"]}
            try:
                result = validate({key: member for key, member in members.items() if key not in odd})
            except ValidationError:
                raise error from None
            _log.debug("%s: omitted items of an unknown shape: %s", cls.__name__, _places(error))
            return result


# --- Parts of events and answers


class Usage(Wire):
    """Tokens of one model answer."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_read_tokens: int | None = None


class QuestionOption(Wire):
    """A choice for a question."""

    label: str
    description: str | None = None


class Question(Wire):
    """One question of `ask_user_question`; its answer goes into `answers` under `answer_key`, else under its index."""

    question: str
    header: str | None = None
    options: tuple[QuestionOption, ...] = ()
    multi_select: bool = False
    answer_key: str | None = None


class BackgroundTask(Wire):
    """An agent or a command that runs beside the turns."""

    task_id: str


class Meta(Wire):
    """The useful part of the `_meta` of an update; the rest must not leave this process."""

    source: str | None = None
    """`bridge-echo` for the echo of a prompt, `background_task_completed` and `background_notification...` for reports
    about background work, `mid_turn_message_injected` for a text put into a turn, in a session read from disk."""
    background_task: BackgroundTask | None = None
    prompt_id: str | None = None
    """The prompt this belongs to, in a session read from disk; in others the envelope has it."""
    timestamp: float | None = None
    """Its time in ms since the epoch, in a session read from disk."""
    qwen_discrete_message: bool = False
    """Whether it is a whole message outside of all turns."""
    parent_tool_call_id: str | None = None
    """The tool call of the agent that caused this; None for the main conversation."""
    tool_name: str | None = None
    phase: str | None = None
    """`preparing` while the model still writes the input of the tool."""
    usage: Usage | None = None
    qwen_interaction_kind: str | None = None
    """`user_question` for a permission that is a form to fill in."""
    qwen_questions: tuple[Question, ...] = ()
    """The questions of that form."""


class Content(Wire):
    """A piece of a message.  `text` is the text of `type` `text`, `uri` the target of `type` `resource_link`.

    Other types have members that are not read.
    """

    type: str = "text"
    text: str = ""
    uri: str = ""


class Location(Wire):
    """A place in a file of the daemon's host; `line` counts from 1."""

    path: str
    line: int | None = None


class ToolContent(Wire):
    """A piece of a tool's output: for `type` `diff` the texts of a file, for `content` a message."""

    type: str
    path: str | None = None
    old_text: str | None = None
    new_text: str | None = None
    content: Content | None = None


class ToolFields(Wire):
    """A report about a tool call, complete or partial.

    An update has only changed fields, maybe not even the status.  `model_fields_set` names them; the others keep their
    values.
    """

    tool_call_id: str
    title: str | None = None
    kind: str | None = None
    """`edit`, `execute`, `read`, `other` ...: the daemon's word."""
    status: str | None = None
    """`pending`, `in_progress`, `completed` or `failed`."""
    raw_input: Any = None
    raw_output: Any = None
    """A string, or an object whose members depend on the tool."""
    content: tuple[ToolContent, ...] | None = None
    locations: tuple[Location, ...] | None = None
    meta: Meta | None = Field(None, alias="_meta")


class PermissionOption(Wire):
    """A possible answer.  Ids differ from tool to tool and are opaque.

    The event calls the text `name`, `/status` calls it `label`.
    """

    option_id: str
    name: str | None = None
    label: str | None = None
    kind: str | None = None
    """`allow_once`, `allow_always`, `reject_once` or `reject_always`."""


class PermissionOutcome(Wire):
    """How a permission ended: `outcome` is `selected`, with the option, or `cancelled`."""

    outcome: str
    option_id: str | None = None


class CommandInput(Wire):
    """The argument of a slash command."""

    hint: str = ""


class CommandMeta(Wire):
    """The environments in which a slash command works; `acp` is the daemon."""

    supported_modes: tuple[str, ...] | None = None


class Command(Wire):
    """A slash command, named without its slash."""

    name: str
    description: str = ""
    input: CommandInput | None = None
    meta: CommandMeta | None = Field(default=None, alias="_meta")

    @property
    def works_here(self) -> bool:
        """Whether it works without a terminal; an older daemon does not say, and lists only such commands."""
        modes = None if self.meta is None else self.meta.supported_modes
        return modes is None or "acp" in modes


class PlanEntry(Wire):
    """One line of a plan; `status` is `pending`, `in_progress` or `completed`."""

    content: str
    status: str | None = None


# --- Payloads of events


class Payload(Wire):
    """The fields of one kind of event; `KIND` is its `type`, for `session_update` the kind of update."""

    KIND: ClassVar[str]

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        """Derive the kind from the class's name."""
        cls.KIND = to_snake(cls.__name__)


class Update(Payload):
    """The fields of one kind of session update."""


class _MessageChunk(Update):
    """A piece of a message, to be joined to the previous one."""

    content: Content
    meta: Meta | None = Field(None, alias="_meta")


class UserMessageChunk(_MessageChunk):
    """A prompt, echoed to all clients including its sender.  May come before the answer to the POST."""


class AgentMessageChunk(_MessageChunk):
    """Text of the model.  With an empty text it carries the answer's usage, in `meta`."""


class AgentThoughtChunk(_MessageChunk):
    """Thoughts of the model."""


class ToolCall(ToolFields, Update):
    """A tool call begins; its title and input come later."""


class ToolCallUpdate(ToolFields, Update):
    """More about a tool call."""


class Plan(Update):
    """The whole plan, which replaces the previous one."""

    entries: tuple[PlanEntry, ...]


class UsageUpdate(Update):
    """The context window: `used` of `size` tokens."""

    used: int
    size: int


class AvailableCommandsUpdate(Update):
    """All slash commands, which replace earlier ones."""

    available_commands: tuple[Command, ...]


class CurrentModeUpdate(Update):
    """The approval mode has changed."""

    current_mode_id: str


class SessionInfoUpdate(Update):
    """The title of the session has changed."""

    title: str | None = None


class PermissionRequest(Payload):
    """The daemon needs an answer; one at a time per session, even if tools run in parallel."""

    request_id: str
    tool_call: ToolFields
    options: tuple[PermissionOption, ...]


class PermissionResolved(Payload):
    """A permission has been answered, by the client `voter_client_id`, or cancelled."""

    request_id: str
    outcome: PermissionOutcome
    voter_client_id: str | None = None


class PermissionAlreadyResolved(Payload):
    """A client's answer came too late; `outcome` is the valid one."""

    request_id: str
    outcome: PermissionOutcome


class TurnComplete(Payload):
    """The turn of `prompt_id` has ended, whether it was running or was removed from the queue."""

    prompt_id: str | None = None
    stop_reason: str | None = None
    """`end_turn`, `cancelled`, ..."""


class TurnError(Payload):
    """The turn of `prompt_id` has failed."""

    prompt_id: str | None = None
    message: str = ""


class PromptCancelled(Payload):
    """A client cancelled.  Without a prompt in the envelope, nothing was running."""

    reason: str | None = None
    """`forward_failed` if no client cancelled: the turn fails, by itself or with its agent."""


class PendingPromptAdded(Payload):
    """A prompt waits in the queue."""

    prompt_id: str
    text: str = ""


class PendingPromptStarted(Payload):
    """A prompt has left the queue and runs."""

    prompt_id: str


class PendingPromptCompleted(Payload):
    """A queued prompt is done; `state` is `removed` for a withdrawn one."""

    prompt_id: str
    state: str | None = None


class MidTurnMessageInjected(Payload):
    """Messages were put into the running turn."""

    messages: tuple[str, ...] = ()
    message_ids: tuple[str, ...] = ()
    """Ids under which these messages were queued."""


class FollowupSuggestion(Payload):
    """A next prompt that the model proposes."""

    suggestion: str


class ModelSwitched(Payload):
    """The model has changed, for all clients."""

    model_id: str


class ModelSwitchFailed(Payload):
    """A change of the model has failed."""

    error: str = ""


class SettingsChanged(Payload):
    """A setting in the user's file was rewritten.  Its value may be private and is not read."""

    key: str


class ApprovalModeChanged(Payload):
    """The approval mode has changed, for all clients."""

    next: str


class SessionMetadataUpdated(Payload):
    """The session was renamed."""

    display_name: str | None = None


class SessionSnapshot(Payload):
    """The state of the session at the start of a stream.  Has no id."""

    current_model_id: str | None = None
    current_approval_mode: str | None = None


class ReplayComplete(Payload):
    """All missed events were sent; the next ones are live.  Has no id."""


class StateResyncRequired(Payload):
    """Missed events are lost.  Has no id; the stream continues.

    `reason` is `ring_evicted` or `epoch_reset`.
    """

    reason: str = ""


class HistoryTruncated(Payload):
    """A load lacks the start of the session: `truncated_events` above the daemon's limit are left out."""

    truncated_events: int = 0


class SessionRewound(Payload):
    """The session was rewound to its first `target_turn_index` turns, and its files to their contents then.

    A load still has all turns, and then this event.
    """

    target_turn_index: int


class SessionClosed(Payload):
    """The session has been closed; its stream ends."""


class SessionDied(Payload):
    """The agent behind the session is gone; `reason` is `channel_closed` or `daemon_shutdown`.  Its stream ends."""

    reason: str | None = None


class BackgroundNotificationTurnComplete(Payload):
    """A background agent has reported; ends no turn of ours."""


class Unknown(Payload):
    """An event with an unknown kind or shape.

    Its content is dropped; `DaemonSession` handles `kind` (spec A4, A5).
    """

    kind: str


_SESSION_UPDATE = "session_update"


def _kinds(base: type[Payload]) -> dict[str, type[Payload]]:
    """Return the classes of payloads that derive from `base` directly, by kind."""
    return {cls.KIND: cls for cls in base.__subclasses__() if cls is not Unknown and not cls.__subclasses__()}


_UPDATES = {**_kinds(Update), **_kinds(_MessageChunk)}
_EVENTS = _kinds(Payload)

SILENT = (ReplayComplete, StateResyncRequired, BackgroundNotificationTurnComplete)
"""Events that a chat does not show.  Two are about the stream; the text of the third has come in chunks."""

SHOWN = {**_UPDATES, **_EVENTS}.keys() - {cls.KIND for cls in SILENT}
"""The kinds of events that a chat shows.  A malformed one is reported by name once a turn; others are logged."""


class Envelope(Wire):
    """One event.  `id` increases within an epoch; an event about the stream itself has none."""

    v: Literal[1]
    type: str
    id: int | None = None
    prompt_id: str | None = None
    """The prompt this belongs to, if any."""
    originator_client_id: str | None = None
    server_timestamp: float | None = None
    payload: Payload

    @model_validator(mode="before")
    @classmethod
    def _with_payload(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        fields = cast("Mapping[str, object]", value)
        time = _object(fields.get("_meta")).get("serverTimestamp")
        return {**fields, "serverTimestamp": time, "payload": _read_payload(fields)}


def _read_payload(fields: Mapping[str, object]) -> Payload:
    """Return the parsed event `fields`.

    A session update is in `data.update`; in a transcript `data` is the update.
    """
    kind, data = fields.get("type"), _object(fields.get("data"))
    known = _EVENTS
    if kind == _SESSION_UPDATE:
        data = _object(data.get("update", data))
        kind, known = data.get("sessionUpdate"), _UPDATES
    payload = known.get(kind) if isinstance(kind, str) else None
    if payload is not None:
        try:
            return payload.model_validate(data)
        except ValidationError as error:
            _log.debug("%s in an unknown shape: %s", payload.KIND, _places(error))
    return Unknown(kind=f"{_SESSION_UPDATE}/{kind}" if known is _UPDATES else str(kind))


def _object(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def _places(error: ValidationError) -> str:
    """Return the positions and types of the problems in `error`, without the values."""
    return ", ".join(f"{'.'.join(map(str, item['loc']))}: {item['type']}" for item in error.errors(include_input=False))


def parse_frame(text: str) -> Envelope:
    """Return the event in the data `text` of one frame.

    :raises ProtocolViolationError: when it is invalid; the message never quotes `text`
    """
    # Not pydantic's own parser: it rejects lone surrogates, which the daemon sends.
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ProtocolViolationError("An event of the daemon is not JSON.") from None
    return parse(Envelope, value, "An event")


def parse(model: type[W], value: object, what: str) -> W:
    """Return `value`, parsed JSON, as a `model`.

    :raises ProtocolViolationError: naming `what` and the invalid members, never a value
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise ProtocolViolationError(f"{what} of the daemon has an unknown shape ({_places(error)}).") from None


def _read_events(value: object) -> object:
    """Return the readable events of the list `value`; omit the others, as in a stream."""
    events: list[Envelope] = []
    for item in cast("list[object]", value) if isinstance(value, list) else ():
        try:
            events.append(parse(Envelope, item, "An event"))
        except ProtocolViolationError as error:
            _log.warning("left out: %s", error)
    return tuple(events)


# --- Answers


@dataclass(frozen=True)
class Cursor:
    """The position in a stream: up to `event_id`, counted in `epoch`.

    Both are needed: after a restart of the daemon an id without its epoch silently replays from the wrong place.  A
    daemon without epochs has an empty `epoch`.
    """

    event_id: int
    epoch: str


class ProtocolVersions(Wire):
    """Versions of the wire that the daemon speaks."""

    supported: tuple[str, ...] = ()


class Workspace(Wire):
    """A directory the daemon works in, `cwd` on its host."""

    cwd: str


class Capabilities(Wire):
    """GET /capabilities."""

    v: int
    protocol_versions: ProtocolVersions = ProtocolVersions()
    features: frozenset[str] = frozenset()
    workspace_cwd: str | None = None
    workspaces: tuple[Workspace, ...] = ()
    """All of them; older daemons have `workspace_cwd` only."""


class SessionReply(Wire):
    """POST /session: a session that this client joined as `client_id`."""

    session_id: str
    client_id: str | None = None
    has_active_prompt: bool = False


class PromptTerminal(Wire):
    """How a turn ended: `terminal` is `completed` or another word of the daemon."""

    prompt_id: str
    terminal: str | None = None


Events = Annotated[tuple[Envelope, ...], BeforeValidator(_read_events)]


class LoadReply(SessionReply):
    """POST /session/:id/load: the whole session.

    First `compacted_replay`, with joined chunks and unordered ids, then `live_journal`, the running turn.
    """

    compacted_replay: Events = ()
    live_journal: Events = ()
    last_event_id: int
    event_epoch: str = ""
    prompt_terminals: tuple[PromptTerminal, ...] = ()

    @property
    def cursor(self) -> Cursor:
        """The position at which a stream neither misses nor repeats an event."""
        return Cursor(self.last_event_id, self.event_epoch)


class PromptReply(Wire):
    """POST /session/:id/prompt: the prompt was accepted; an event with `prompt_id` ends its turn."""

    prompt_id: str


class PendingAction(Wire):
    """The action for which a tool needs permission."""

    type: str | None = None
    title: str | None = None
    content: tuple[ToolContent, ...] = ()
    locations: tuple[Location, ...] = ()
    input: Any = None


class PendingInteraction(Wire):
    """A permission, or a form, that needs an answer."""

    request_id: str
    title: str | None = None
    action: PendingAction | None = None
    questions: tuple[Question, ...] = ()
    options: tuple[PermissionOption, ...] = ()


class StatusReply(Wire):
    """GET /session/:id/status."""

    client_count: int | None = None
    has_active_prompt: bool = False
    pending_interactions: tuple[PendingInteraction, ...] = ()


class SessionSummary(Wire):
    """One session of a workspace, live or only on disk; times are ISO 8601."""

    session_id: str
    display_name: str | None = None
    created_at: str | None = None
    updated_at: str | None = None
    client_count: int = 0
    has_active_prompt: bool = False
    is_archived: bool = False


class SessionsReply(Wire):
    """GET /workspace/:cwd/sessions."""

    sessions: tuple[SessionSummary, ...] = ()


class ModelInfo(Wire):
    """An available model."""

    model_id: str
    name: str | None = None
    description: str | None = None


class Models(Wire):
    """The model in use and the available ones."""

    current_model_id: str | None = None
    available_models: tuple[ModelInfo, ...] = ()


class Mode(Wire):
    """An approval mode."""

    id: str
    name: str | None = None
    description: str | None = None


class Modes(Wire):
    """The approval mode in use and the available ones."""

    current_mode_id: str | None = None
    available_modes: tuple[Mode, ...] = ()


class ContextState(Wire):
    """The choices for the settings of a session."""

    models: Models = Models()
    modes: Modes = Modes()


class ContextReply(Wire):
    """GET /session/:id/context."""

    state: ContextState = ContextState()


class Modalities(Wire):
    """The kinds of input besides text that a model accepts."""

    image: bool = False


class ProviderModel(Wire):
    """A model in the daemon's settings; `modalities` is None if unknown."""

    model_id: str
    name: str | None = None
    modalities: Modalities | None = None


class Provider(Wire):
    """A provider of models."""

    models: tuple[ProviderModel, ...] = ()


class ProvidersReply(Wire):
    """GET /workspace/providers.  Lacks a model set by the environment or only by name (0.24.4)."""

    providers: tuple[Provider, ...] = ()


class ContextUsageReply(Wire):
    """GET /session/:id/context-usage; `formatted_text` is the daemon's own Markdown report."""

    formatted_text: str = ""


class CommandsReply(Wire):
    """GET /session/:id/supported-commands."""

    available_commands: tuple[Command, ...] = ()


class RewindPoint(Wire):
    """A point to which a session can be rewound: before the prompt that began at `timestamp`, in ISO 8601."""

    prompt_id: str
    timestamp: str


class RewindPointsReply(Wire):
    """GET /session/:id/rewind/snapshots, oldest first; rewound turns have none."""

    snapshots: tuple[RewindPoint, ...] = ()


class RemovedReply(Wire):
    """DELETE /session/:id/pending-prompts/:promptId; not `removed` if it already runs or is not there."""

    removed: bool = False


class MidTurnReply(Wire):
    """POST /session/:id/mid-turn-message; not `accepted` when no turn runs."""

    accepted: bool = False
    message_id: str | None = None


# --- Prompts


@dataclass(frozen=True)
class TextBlock:
    """Text of a prompt."""

    text: str

    def to_wire(self) -> Json:
        """Return the content block."""
        return {"type": "text", "text": self.text}


@dataclass(frozen=True)
class ImageBlock:
    """An image of a prompt: `data` in Base64, of `mime_type`."""

    data: str
    mime_type: str

    def to_wire(self) -> Json:
        """Return the content block."""
        return {"type": "image", "data": self.data, "mimeType": self.mime_type}


FILE_SCHEME = "file://"
"""The prefix of a link to a file.  The daemon uses the rest literally, without decoding (0.24.4)."""


@dataclass(frozen=True)
class LinkBlock:
    """A link to a file that the daemon may read: `uri` as seen from its host."""

    uri: str
    name: str

    def to_wire(self) -> Json:
        """Return the content block."""
        return {"type": "resource_link", "uri": self.uri, "name": self.name}


PromptBlock = TextBlock | ImageBlock | LinkBlock
