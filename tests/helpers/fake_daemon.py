# SPDX-License-Identifier: GPL-3.0-or-later
"""A daemon on a real loopback socket that answers as recorded from a real one, and fails when a test wants it to.

What it says is in recorded_daemon.json, which tests/e2e/record_serve.py records from the real one.  In a test:

    async with FakeDaemon() as daemon:
        session = daemon.add_session()
        session.script("write")                  # the next prompt plays this turn, up to its permission first
        daemon.refuse("/events", "queue_full")   # the next request for such a path is refused
        ... connect a client to daemon.url with TOKEN ...
        stream = await daemon.next_stream()
        session.emit(event("agent_message_chunk"))
        stream.cut()
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import re
import socket
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from support import TIMEOUT_S

Json = dict[str, Any]

RECORDED: Json = json.loads((Path(__file__).parent / "recorded_daemon.json").read_text(encoding="utf-8"))
TOKEN = "token-of-the-daemon"
ROOT: str = RECORDED["replies"]["capabilities"]["workspaceCwd"]

_EPOCH_HEADER = "x-qwen-event-epoch"
_ABOUT_THE_STREAM = ("replay_complete", "session_snapshot", "state_resync_required")
"""Events without an id."""


def reply(name: str) -> Json:
    """Return a recorded answer, to be changed at will."""
    return copy.deepcopy(RECORDED["replies"][name])


def turn(name: str) -> list[Json]:
    """Return recorded events, to be changed at will."""
    return copy.deepcopy(RECORDED["turns"][name])


def event(kind: str) -> Json:
    """Return the first recorded event of `kind`, a type of event or of session update."""
    for recorded in itertools.chain.from_iterable(RECORDED["turns"].values()):
        if kind in (recorded["type"], recorded["data"].get("update", {}).get("sessionUpdate")):
            return copy.deepcopy(recorded)
    raise KeyError(kind)


def chunk(text: str) -> Json:
    """Return a piece of the model's answer."""
    found = event("agent_message_chunk")
    found["data"]["update"]["content"]["text"] = text
    return found


def frame(found: Json) -> bytes:
    """Return an event as it goes over the wire; as with the real daemon, only JSON's own escapes are in it."""
    head = f"id: {found['id']}\n" if "id" in found else ""
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    # JavaScript escapes lone surrogates, Python does not.
    text = re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)
    return f"{head}event: {found['type']}\ndata: {text}\n\n".encode()


@dataclass(frozen=True)
class Asked:
    """A request that came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


class FakeStream:
    """One open event stream."""

    def __init__(self, headers: Mapping[str, str], query: str) -> None:
        self.headers = headers
        self.query = query
        self._pieces: asyncio.Queue[bytes | None | type[ConnectionError]] = asyncio.Queue()

    def send(self, data: bytes) -> None:
        """Send these very bytes."""
        self._pieces.put_nowait(data)

    def end(self) -> None:
        """End the answer as HTTP has it."""
        self._pieces.put_nowait(None)

    def cut(self) -> None:
        """Close the connection in the middle of the answer, as the daemon does with a slow reader."""
        self._pieces.put_nowait(ConnectionError)

    async def serve(self, receive: Receive, send: Send, epoch: str) -> None:
        """Stream the queued events until the end, or until the client has gone."""
        headers = [(b"content-type", b"text/event-stream"), (_EPOCH_HEADER.encode(), epoch.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        gone = asyncio.create_task(_gone(receive))
        try:
            while True:
                piece = asyncio.create_task(self._pieces.get())
                await asyncio.wait([gone, piece], return_when=asyncio.FIRST_COMPLETED)
                if not piece.done():
                    piece.cancel()
                    return
                data = piece.result()
                if not isinstance(data, bytes):
                    break
                await send({"type": "http.response.body", "body": data, "more_body": True})
            if data is None:
                await send({"type": "http.response.body", "body": b""})
            # Else the answer is not finished, and uvicorn closes the connection.
        finally:
            gone.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class FakeSession:
    """A session: its events, its clients and its running turn."""

    def __init__(self, daemon: FakeDaemon, identifier: str) -> None:
        self.id = identifier
        self.epoch = f"epoch-{identifier}-1"
        self.alive = True
        self.members: Counter[str] = Counter()
        self.ring: list[Json] = []
        """Events that can be replayed, with their ids."""
        self.history: list[Json] = []
        """All events, as they are on disk."""
        self.streams: list[FakeStream] = []
        self.prompts: list[str] = []
        """Ids of the prompts that run or wait."""
        self.permission: Json | None = None
        """The event of the permission that waits."""
        self.messages: dict[str, str] = {}
        """Texts that the model gets with the next result of a tool, by their ids."""
        self.points: list[Json] = []
        """The points to which it can be rewound, the oldest first."""
        self._daemon = daemon
        self._last = 0
        self._scripts: deque[list[Json]] = deque()
        self._rest: list[Json] = []

    # --- What a test does

    def script(self, *names: str) -> None:
        """Play these recorded turns for the next prompts."""
        self._scripts.extend(turn(name) for name in names)

    def emit(self, *events: Json) -> list[Json]:
        """Send `events`, with ids of this session, to all who listen; returns them as sent."""
        sent: list[Json] = []
        for found in copy.deepcopy(events):
            found.pop("id", None)
            if found["type"] not in _ABOUT_THE_STREAM:
                self._last += 1
                found["id"] = self._last
                self.ring.append(found)
                self.history.append(found)
            if "sessionId" in found["data"]:
                found["data"]["sessionId"] = self.id
            for stream in self.streams:
                stream.send(frame(found))
            self._notice(found)
            sent.append(found)
        return sent

    def forget(self, up_to: int) -> None:
        """Lose the events up to this id, as a ring does."""
        self.ring = [found for found in self.ring if found["id"] > up_to]

    def miss(self, *events: Json) -> None:
        """Send `events` while nobody listens and forget them, so that only a load tells them; cut the streams."""
        streams, self.streams = self.streams, []
        self.emit(*events)
        self.streams = streams
        self.forget(self.ring[-1]["id"])
        for stream in streams:
            stream.cut()

    def die(self, last: Json | None = None) -> None:
        """End with the event `last`, if any; only a load revives it, in a new epoch."""
        if last is not None:
            self.emit(last)
        for stream in self.streams:
            stream.end()
        self.alive = False
        self.ring.clear()
        self.members.clear()
        self.prompts.clear()
        self.permission = None

    def revive(self) -> None:
        """Bring a session back to life that is only on disk, as a load does."""
        if not self.alive:
            self.alive = True
            self._last = 0
            name, _, number = self.epoch.rpartition("-")
            self.epoch = f"{name}-{int(number) + 1}"

    # --- What requests do

    def prompt(self, identifier: str, client: str, blocks: Sequence[Json]) -> None:
        """Take a prompt, and play its turn, if one is scripted, up to its permission."""
        self.prompts.append(identifier)
        if self._scripts:
            self._play([_of_prompt(found, identifier, client, blocks) for found in self._scripts.popleft()])

    def vote(self, outcome: Json, client: str) -> None:
        """Settle the permission that waits, and play the rest of the turn."""
        assert self.permission is not None
        resolved = event("permission_resolved")
        resolved["promptId"] = self.permission.get("promptId")
        resolved["data"] |= {"requestId": self.permission["data"]["requestId"], "outcome": outcome}
        resolved["data"]["voterClientId"] = client
        rest = [found for found in self._rest if found["type"] != "permission_resolved"]
        self._play([resolved, *rest])

    def cancel(self) -> None:
        """Cancel the running prompt."""
        cancelled = event("prompt_cancelled")
        cancelled.pop("promptId", None)
        if self.prompts:
            cancelled["promptId"] = self.prompts[0]
        self.emit(cancelled)
        if self.permission is not None:
            resolved = event("permission_resolved")
            resolved["data"] = {"requestId": self.permission["data"]["requestId"], "outcome": {"outcome": "cancelled"}}
            self.emit(resolved)
        self._rest = []
        if self.prompts:
            ended = event("turn_complete")
            ended["promptId"] = self.prompts[0]
            ended["data"] |= {"promptId": self.prompts[0], "stopReason": "cancelled"}
            self.emit(ended)

    def _play(self, events: list[Json]) -> None:
        kinds = [found["type"] for found in events]
        stop = kinds.index("permission_request") + 1 if "permission_request" in kinds else len(events)
        self._rest = events[stop:]
        self.emit(*events[:stop])

    def _notice(self, found: Json) -> None:
        kind, data = found["type"], found["data"]
        if kind == "permission_request":
            self.permission = found
        elif kind == "permission_resolved" and self.permission is not None:
            self.permission = None
        elif kind in ("turn_complete", "turn_error") and data.get("promptId") in self.prompts:
            self.prompts.remove(data["promptId"])

    # --- What it answers

    def membership(self, request: Request) -> Json:
        """Take the sender in, under the id from before if it has one."""
        client = request.headers.get("x-qwen-client-id", "")
        if client not in self.members:
            client = f"client-{next(self._daemon.numbers)}"
        self.members[client] += 1
        return {
            "sessionId": self.id,
            "workspaceCwd": ROOT,
            "clientId": client,
            "hasActivePrompt": bool(self.prompts),
        }

    def loaded(self, request: Request) -> Json:
        """Return the answer to a load."""
        ends = [
            index for index, found in enumerate(self.history) if found.get("type") in ("turn_complete", "turn_error")
        ]
        live = (ends[-1] + 1 if ends else 0) if self.prompts else len(self.history)
        return {
            **reply("load"),
            **self.membership(request),
            "attached": True,
            "compactedReplay": self.history[:live],
            "liveJournal": self.history[live:],
            "lastEventId": self._last,
            "eventEpoch": self.epoch,
            "promptTerminals": [],
        }

    def status(self) -> Json:
        """Return the answer to a question for the status."""
        pending: list[Json] = []
        if self.permission is not None:
            data = self.permission["data"]
            call = data["toolCall"]
            interaction: Json = {
                "requestId": data["requestId"],
                "kind": "permission",
                "options": [
                    {"optionId": option["optionId"], "label": option["name"], "kind": option["kind"]}
                    for option in data["options"]
                ],
            }
            if questions := call["_meta"].get("qwenQuestions"):
                keyed = [{**question, "answerKey": str(index)} for index, question in enumerate(questions)]
                interaction |= {"kind": "user_question", "title": call["title"], "questions": keyed}
            else:
                interaction["action"] = {
                    "type": call["kind"],
                    "title": call["title"],
                    "content": call["content"],
                    "locations": call["locations"],
                    "input": call["rawInput"],
                }
            pending.append(interaction)
        return {
            **reply("status"),
            "sessionId": self.id,
            "clientCount": len(self.members),
            "hasActivePrompt": bool(self.prompts),
            "pendingInteractionCount": len(pending),
            "pendingInteractions": pending,
        }

    def open(self, stream: FakeStream) -> None:
        """Begin a stream: first the missed events, then new ones as they happen."""
        stream.send(b"retry: 3000\n\n")
        last, epoch = stream.headers.get("last-event-id"), stream.headers.get(_EPOCH_HEADER)
        if last is not None:
            cursor = int(last)
            earliest = self.ring[0]["id"] if self.ring else self._last + 1
            lost = cursor > self._last or (epoch and epoch != self.epoch)
            if lost or cursor + 1 < earliest:
                resync = event("state_resync_required")
                resync["data"] |= {"reason": "epoch_reset" if lost else "ring_evicted", "lastDeliveredId": cursor}
                stream.send(frame(resync))
                cursor = 0
            for found in self.ring:
                if found["id"] > cursor:
                    stream.send(frame(found))
            stream.send(frame(event("replay_complete")))
        if "snapshot=1" in stream.query:
            stream.send(frame(event("session_snapshot")))
        self.streams.append(stream)


_Answerer = Callable[[FakeSession, Request, Any], Response]
"""A function from a session, a request and its JSON body to the response."""


def _of_prompt(found: Json, identifier: str, client: str, blocks: Sequence[Json]) -> Json:
    """Return the recorded event `found` as one of this prompt."""
    if "promptId" in found:
        found["promptId"] = identifier
    if "promptId" in found["data"]:
        found["data"]["promptId"] = identifier
    if "originatorClientId" in found:
        found["originatorClientId"] = client
    update = found["data"].get("update", {})
    if update.get("sessionUpdate") == "user_message_chunk":
        update["content"] = blocks[0]
    return found


class FakeDaemon:
    """The daemon.  Usable while its context lasts; `stop` and `start` interrupt it in between."""

    def __init__(self, token: str | None = TOKEN) -> None:
        self.token = token
        self.capabilities = reply("capabilities")
        self.providers: list[Json] = []
        """The list of `/workspace/providers`."""
        self.sessions: dict[str, FakeSession] = {}
        self.asked: list[Asked] = []
        self.numbers = itertools.count(1)
        self._refusals: deque[tuple[str, Json]] = deque()
        self._opened: asyncio.Queue[FakeStream] = asyncio.Queue()
        self._port = 0
        self._server: uvicorn.Server
        self._serving: asyncio.Task[None] | None = None
        of_session: Sequence[tuple[str, str, _Answerer]] = (
            ("DELETE", "", _close),
            ("POST", "/detach", _detach),
            ("POST", "/branch", self._branch),
            ("POST", "/prompt", self._prompt),
            ("POST", "/cancel", _cancel),
            ("POST", "/model", _model),
            ("POST", "/approval-mode", _mode),
            ("POST", "/permission/{request}", _vote),
            ("GET", "/status", _status),
            ("GET", "/context", _recorded("context")),
            ("GET", "/context-usage", _recorded("context_usage")),
            ("GET", "/supported-commands", _recorded("supported_commands")),
            ("GET", "/rewind/snapshots", _points),
            ("POST", "/rewind", _rewind),
            ("DELETE", "/pending-prompts/{prompt}", _remove),
            ("POST", "/mid-turn-message", _take_message),
            ("DELETE", "/mid-turn-messages/{message}", _give_message_back),
        )
        self._application = Starlette(
            routes=[
                Route("/capabilities", self._capabilities),
                Route("/workspace/providers", self._providers),
                Route("/session", self._create, methods=["POST"]),
                Route("/workspace/{cwd:path}/sessions", self._list),
                Route("/session/{session}/load", self._load, methods=["POST"]),
                *(
                    Route("/session/{session}" + path, self._in_session(answer), methods=[method])
                    for method, path, answer in of_session
                ),
            ],
            exception_handlers={404: _no_route},
        )

    # --- Life

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> FakeDaemon:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, at the same place as before if it has listened before."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        listener.listen()
        self._port = listener.getsockname()[1]
        config = uvicorn.Config(
            self._serve, interface="asgi3", lifespan="off", log_config=None, ws="none", timeout_keep_alive=3600
        )
        self._server = uvicorn.Server(config)
        # Not `serve`, which would take the signals of the process.
        self._serving = asyncio.create_task(self._server._serve([listener]))  # pyright: ignore[reportPrivateUsage]

    async def stop(self) -> None:
        """Close all connections and listen no more."""
        if self._serving is not None:
            self._server.should_exit = self._server.force_exit = True
            # Also a client that connects anew meanwhile: since Python 3.12 a server waits for all connections.
            while self._serving is not None:
                for session in self.sessions.values():
                    for stream in session.streams:
                        stream.cut()
                done, _ = await asyncio.wait([self._serving], timeout=0.1)
                if done:
                    await self._serving
                    self._serving = None

    # --- What a test does

    def add_session(self, identifier: str | None = None) -> FakeSession:
        """Add a live session without clients; the first one is shared by all."""
        found = FakeSession(self, identifier or f"session-{next(self.numbers)}")
        self.sessions[found.id] = found
        found.emit(turn("start")[1])
        return found

    def refuse(self, path: str, name: str, times: int = 1, **changes: object) -> None:
        """Refuse the next requests for a path ending with `path` as recorded under `name`, with `changes` to that."""
        self._refusals.extend([(path, {**RECORDED["refusals"][name], **changes})] * times)

    def break_off(self, path: str) -> None:
        """Take the next request for a path that ends with `path`, and close the connection in place of an answer."""
        self._refusals.append((path, {}))

    async def next_stream(self) -> FakeStream:
        """Return the next stream that a client opens."""
        return await asyncio.wait_for(self._opened.get(), TIMEOUT_S)

    def asked_for(self, path: str) -> list[Asked]:
        """All requests for a path that ends with `path`."""
        return [asked for asked in self.asked if asked.path.endswith(path)]

    # --- HTTP

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        data = await request.body()
        body: Any = None
        with suppress(ValueError):
            body = json.loads(data)
        self.asked.append(Asked(request.method, request.url.path, dict(request.headers), body))
        refusal = next((item for item in self._refusals if request.url.path.endswith(item[0])), None)
        if refusal is not None:
            self._refusals.remove(refusal)
            await (_answer(refusal[1]) if refusal[1] else _nothing)(scope, receive, send)
        elif self.token is not None and request.headers.get("authorization") != f"Bearer {self.token}":
            await _refusal("unauthorized")(scope, receive, send)
        elif request.url.path.endswith("/events"):
            await self._events(request, receive, send)
        else:
            await self._application(scope, _once(data), send)

    async def _events(self, request: Request, receive: Receive, send: Send) -> None:
        session = self.sessions.get(request.url.path.split("/")[2])
        if session is None or not session.alive:
            await _refusal("no_session")(request.scope, receive, send)
            return
        stream = FakeStream(dict(request.headers), request.url.query)
        session.open(stream)
        self._opened.put_nowait(stream)
        try:
            await stream.serve(receive, send, session.epoch)
        finally:
            session.streams.remove(stream)

    def _in_session(self, answer: _Answerer) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            session = self.sessions.get(request.path_params["session"])
            if session is None or not session.alive:
                return _refusal("no_session")
            client = request.headers.get("x-qwen-client-id")
            if client is not None and client not in session.members and not request.url.path.endswith("/detach"):
                return _refusal("no_client")
            data = await request.body()
            return answer(session, request, json.loads(data) if data else None)

        return endpoint

    async def _capabilities(self, request: Request) -> Response:
        return JSONResponse(self.capabilities)

    async def _providers(self, request: Request) -> Response:
        return JSONResponse({"v": 1, "providers": self.providers})

    async def _create(self, request: Request) -> Response:
        body: Json = await request.json()
        if body.get("cwd", ROOT) != ROOT:
            return _refusal("workspace_mismatch")
        shared = next((session for session in self.sessions.values() if session.alive), None)
        attached = shared is not None and body.get("sessionScope") != "thread"
        session = shared if attached and shared is not None else self.add_session()
        return JSONResponse({**session.membership(request), "attached": attached})

    async def _load(self, request: Request) -> Response:
        session = self.sessions.get(request.path_params["session"])
        if session is None:
            return _refusal("no_session")
        session.revive()
        # With escapes for lone surrogates, as Node.js writes them.
        return Response(json.dumps(session.loaded(request)), media_type="application/json")

    async def _list(self, request: Request) -> Response:
        row = reply("sessions")["sessions"][0]
        return JSONResponse({"sessions": [{**row, "sessionId": identifier} for identifier in self.sessions]})

    def _branch(self, session: FakeSession, request: Request, body: Any) -> Response:
        fork = self.add_session()
        fork.points = list(session.points)
        for past in session.ring:
            fork.emit({**past, "data": {**past["data"], "sessionId": fork.id}})
        return JSONResponse({**fork.membership(request), "attached": False}, status_code=201)

    def _prompt(self, session: FakeSession, request: Request, body: Any) -> Response:
        identifier = f"prompt-{next(self.numbers)}"
        before = session.ring[-1]["id"] if session.ring else 0
        session.prompt(identifier, request.headers.get("x-qwen-client-id", ""), body["prompt"])
        answer = {"promptId": identifier, "lastEventId": before, "eventEpoch": session.epoch}
        return JSONResponse(answer, status_code=202)


def _close(session: FakeSession, request: Request, body: Any) -> Response:
    session.die(event("session_closed"))
    return Response(status_code=204)


def _detach(session: FakeSession, request: Request, body: Any) -> Response:
    client = request.headers.get("x-qwen-client-id", "")
    session.members[client] -= 1
    session.members += Counter()
    if not session.members:
        session.die(event("session_closed"))
    return Response(status_code=204)


def _cancel(session: FakeSession, request: Request, body: Any) -> Response:
    session.cancel()
    return Response(status_code=204)


def _model(session: FakeSession, request: Request, body: Any) -> Response:
    known = [model["modelId"] for model in reply("context")["state"]["models"]["availableModels"]]
    if body["modelId"] not in known:
        session.emit(event("model_switch_failed"))
        return _refusal("bad_model")
    switched = {"type": "model_switched", "v": 1, "data": {"sessionId": session.id, "modelId": body["modelId"]}}
    session.emit(switched)
    secrets = {"baseUrl": "http://user:hidden@example.org", "apiKey": "sk-...hidden", "modelId": body["modelId"]}
    return JSONResponse({"_meta": {"qwenModelSwitch": secrets}})


def _mode(session: FakeSession, request: Request, body: Any) -> Response:
    if body["mode"] not in ("plan", "default", "auto-edit", "auto", "yolo"):
        return _refusal("bad_mode")
    changed = event("approval_mode_changed")
    changed["data"]["next"] = body["mode"]
    session.emit(changed)
    return JSONResponse({**reply("approval_mode"), "mode": body["mode"]})


def _vote(session: FakeSession, request: Request, body: Any) -> Response:
    waiting = session.permission
    if waiting is None or waiting["data"]["requestId"] != request.path_params["request"]:
        return _refusal("late_vote")
    outcome = body["outcome"]
    offered = [option["optionId"] for option in waiting["data"]["options"]]
    if outcome["outcome"] == "selected" and outcome["optionId"] not in offered:
        return _refusal("invalid_option")
    session.vote(outcome, request.headers.get("x-qwen-client-id", ""))
    return JSONResponse({})


def _remove(session: FakeSession, request: Request, body: Any) -> Response:
    identifier = request.path_params["prompt"]
    removed = identifier in session.prompts[1:]
    if removed:
        ended = event("turn_complete")
        ended["promptId"] = identifier
        ended["data"] |= {"promptId": identifier, "stopReason": "cancelled"}
        session.emit(ended)
    return JSONResponse({"removed": removed})


def _take_message(session: FakeSession, request: Request, body: Any) -> Response:
    if not session.prompts:
        return JSONResponse({"accepted": False, "reason": "session_idle"})
    identifier = f"message-{len(session.messages) + 1}"
    session.messages[identifier] = body["message"]
    return JSONResponse({**reply("injected"), "messageId": identifier})


def _give_message_back(session: FakeSession, request: Request, body: Any) -> Response:
    return JSONResponse({"removed": session.messages.pop(request.path_params["message"], None) is not None})


def _points(session: FakeSession, request: Request, body: Any) -> Response:
    return JSONResponse({"snapshots": session.points})


def _rewind(session: FakeSession, request: Request, body: Any) -> Response:
    if session.prompts:
        return JSONResponse({"error": "busy", "code": "session_busy"}, status_code=409)
    names = [point["promptId"] for point in session.points]
    if body["promptId"] not in names or body["rewindFiles"] is not False:
        return JSONResponse({"error": "no such point", "code": "invalid_rewind_target"}, status_code=400)
    kept = session.points[: names.index(body["promptId"])]
    session.points = kept
    data: Json = {"promptId": body["promptId"], "targetTurnIndex": len(kept), "filesChanged": [], "filesFailed": []}
    session.emit({"v": 1, "type": "session_rewound", "data": data})
    return JSONResponse({"rewound": True, **data})


def _status(session: FakeSession, request: Request, body: Any) -> Response:
    return JSONResponse(session.status())


def _recorded(name: str) -> _Answerer:
    def answer(session: FakeSession, request: Request, body: Any) -> Response:
        return JSONResponse(reply(name))

    return answer


async def _no_route(request: Request, error: Exception) -> Response:
    return _refusal("no_route")


def _refusal(name: str) -> Response:
    return _answer(RECORDED["refusals"][name])


def _answer(refusal: Json) -> Response:
    return Response(refusal["body"], refusal["status"], refusal["headers"])


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Promise an answer and not give it; uvicorn then closes the connection."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})


def _once(data: bytes) -> Receive:
    """Return a receiver of a body that was read already."""

    async def receive() -> Message:
        return {"type": "http.request", "body": data, "more_body": False}

    return receive
