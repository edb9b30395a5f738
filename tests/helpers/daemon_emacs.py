# SPDX-License-Identifier: GPL-3.0-or-later
"""Emacs as the daemon client sees it, and a chat that shows only the reports it gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

from sexpdata import dumps, loads

from fake_daemon import ROOT, TOKEN, FakeDaemon, FakeSession
from qwen_companion.base.tasks import Tasks
from qwen_companion.daemon import messages
from qwen_companion.daemon.conversation import Fitting
from qwen_companion.daemon.dispatcher import CallDispatcher
from qwen_companion.domain import ChatWork
from qwen_companion.wire.bridge import MAX_FRAME_BYTES
from qwen_companion.wire.messages import DaemonCall, Notification
from qwen_companion.wire.plists import Plist
from qwen_companion.wire.spool import Spool
from support import TIMEOUT_S

M = TypeVar("M", bound=Notification)

News = Callable[[str, str, Sequence[str]], Awaitable[Fitting | None]]


class Chat:
    """The chat of one session, built from the reports it gets and nothing else."""

    def __init__(self) -> None:
        self.texts: dict[tuple[str | None, str], str] = {}
        self.tools: dict[str, messages.ToolChange] = {}
        self.ends: list[tuple[str | None, str]] = []
        self.state: messages.SessionInfo | None = None
        self.permissions: dict[str, messages.Permission] = {}
        self.resets: list[messages.Reset] = []

    def take(self, message: Notification) -> None:
        match message:
            case messages.Reset():
                self.resets.append(message)
                self.texts, self.tools, self.ends = {}, {}, []
            case messages.Turns():
                for change in message.changes:
                    if isinstance(change, messages.TextChange):
                        key = change.turn, change.voice
                        self.texts[key] = self.texts.get(key, "") + change.text
                    elif isinstance(change, messages.ToolChange):
                        self.tools[change.id] = change
                    elif isinstance(change, messages.EndChange):
                        self.ends.append((change.turn, change.outcome))
            case messages.SessionInfo():
                self.state = message
            case messages.Permission():
                self.permissions[message.permission] = message
            case _:
                pass

    def text(self, voice: str = "answer") -> str:
        return "".join(text for (_, whose), text in self.texts.items() if whose == voice)


class Emacs:
    """The other end of the dispatcher."""

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self.told: list[Notification] = []
        self.frames: list[str] = []
        """Everything that crossed, as it is printed."""
        self.chats: dict[str, Chat] = {}
        self.dispatcher: CallDispatcher
        self._news = asyncio.Condition()
        self._requests = 0
        self.texts_of_news: News | None = None
        """Returns the text about changed files that goes along with a prompt."""

    def prepare(self) -> dict[str, str]:
        return {}

    def worked(self, work: ChatWork) -> None:
        """Handle the activity of an agent."""

    async def news(self, session: str, directory: str, attached: Sequence[str]) -> Fitting | None:
        return None if self.texts_of_news is None else await self.texts_of_news(session, directory, attached)

    async def send(self, message: Notification) -> None:
        # As the bridge does, and as Emacs gets it.
        payload = message.payload(self.spool)
        frame = dumps([message.method, payload])
        assert len(frame.encode("utf-8")) <= MAX_FRAME_BYTES
        loads(frame)
        async with self._news:
            self.frames.append(frame)
            self.told.append(message)
            session = getattr(message, "session", None)
            if isinstance(session, str):
                self.chats.setdefault(session, Chat()).take(message)
            self._news.notify_all()

    async def until(self, good: Callable[[], object]) -> None:
        async with self._news:
            await asyncio.wait_for(self._news.wait_for(lambda: bool(good())), TIMEOUT_S)

    def ask(self, method: str, **values: object) -> str:
        """Call `method`; return the id of the request, which its reply will carry."""
        self._requests += 1
        request = f"request {self._requests}"
        payload = {key.replace("_", "-"): value for key, value in values.items()} | {"request": request}
        self.dispatcher.handle(DaemonCall(method, Plist(loads(dumps(payload)))))
        return request

    async def reply(self, request: str) -> messages.Reply:
        await self.until(lambda: self.all(messages.Reply, request=request))
        (reply,) = self.all(messages.Reply, request=request)
        return reply

    async def call(self, method: str, **values: object) -> messages.Reply:
        """Call `method`, which goes well."""
        reply = await self.reply(self.ask(method, **values))
        assert reply.error is None, reply
        return reply

    async def refused(self, method: str, **values: object) -> str | None:
        """Call `method`, which goes wrong; the sort of problem."""
        reply = await self.reply(self.ask(method, **values))
        assert reply.error
        return reply.problem

    def all(self, kind: type[M], **fields: object) -> list[M]:
        return [
            item
            for item in self.told
            if isinstance(item, kind) and all(getattr(item, name) == value for name, value in fields.items())
        ]

    def last(self, kind: type[M]) -> M:
        return self.all(kind)[-1]

    async def connect(self, daemon: FakeDaemon) -> None:
        await self.call("daemon-connect", url=daemon.url, token=TOKEN, root=ROOT)

    async def open(self) -> str:
        """Return a new session that is ready."""
        reply = await self.call("daemon-open")
        assert reply.session is not None
        await self.state(reply.session, "idle")
        return reply.session

    async def chat(self, daemon: FakeDaemon) -> Chatting:
        """Connect to `daemon`, and return a new session that is open."""
        await self.connect(daemon)
        session = await self.open()
        return session, list(daemon.sessions.values())[-1], self.chats[session]

    async def load(self, session: str, **values: object) -> None:
        """Load `session`, and wait until nothing runs there."""
        await self.call("daemon-load", session=session, **values)
        await self.state(session, "idle")

    async def turn(self, chatting: Chatting, script: str, text: str = "hello") -> messages.Reply:
        """Prompt the agent of `chatting` to run `script`, and wait for the end of the turn."""
        session, theirs, chat = chatting
        theirs.script(script)
        reply = await self.prompt(session, text)
        await self.until(lambda: chat.ends)
        return reply

    async def state(self, session: str, state: str) -> None:
        def reached() -> bool:
            told = self.chats[session].state
            return told is not None and told.state == state

        await self.until(reached)

    async def prompt(self, session: str, text: str = "hello") -> messages.Reply:
        return await self.call("daemon-prompt", session=session, parts=[text_part(text)])

    def answer(self, asked: messages.Permission, option: str | None) -> dict[str, object]:
        """Return the message that answers `asked` with `option`, with the tool as last reported."""
        tool = self.chats[asked.session].tools[str(asked.tool)]
        return {
            "session": asked.session,
            "permission": asked.permission,
            "option": option,
            "revision": tool.revision,
        }

    async def asks(self, chatting: Chatting, script: str) -> messages.Permission:
        """Prompt the agent of `chatting` to run `script`, and return the permission that it asks for."""
        session, theirs, _ = chatting
        theirs.script(script)
        await self.prompt(session)
        return await self.permission(session, "open")

    async def permission(self, session: str, state: str) -> messages.Permission:
        chat = self.chats[session]
        await self.until(lambda: any(item.state == state for item in chat.permissions.values()))
        return next(item for item in chat.permissions.values() if item.state == state)


def lisp(text: str) -> Any:
    """Return the value that `text` prints."""
    return cast("Any", loads(text))


def text_part(text: str) -> list[Any]:
    return part("text", text=text)


def part(kind: str, **values: str) -> list[Any]:
    """Return a part of a prompt."""
    return [*lisp(f"(:kind {kind})"), *lisp(dumps({key.replace("_", "-"): value for key, value in values.items()}))]


async def at_once(_seconds: float) -> None:
    await asyncio.sleep(0)


@asynccontextmanager
async def connected_emacs(
    spool: Spool,
    environment: dict[str, str] | None = None,
    sleep: Callable[[float], Awaitable[None]] = at_once,
    news: News | None = None,
) -> AsyncGenerator[Emacs]:
    emacs = Emacs(spool)
    emacs.texts_of_news = news
    emacs.dispatcher = CallDispatcher(emacs, spool, environment or {}, pause=at_once, sleep=sleep)
    async with Tasks() as tasks:
        tasks.start(emacs.dispatcher.run, TIMEOUT_S)
        yield emacs


Chatting = tuple[str, FakeSession, Chat]
"""An open session: its name in Emacs, the daemon's side of it, and the chat."""
