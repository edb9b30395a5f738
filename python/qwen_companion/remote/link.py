# SPDX-License-Identifier: GPL-3.0-or-later
"""The pipe to the relay at one place: its process, its frames, and requests to it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar, cast

import anyio
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from qwen_companion.base.errors import CompanionError, first_error
from qwen_companion.base.file_names import FileNameError, file_name
from qwen_companion.remote.channels import Channel, run_program
from qwen_companion.remote.commands import failure, is_lasting
from qwen_companion.remote.frames import (
    PART_BYTES,
    VERSION,
    Decoder,
    Frame,
    FrameError,
    Kind,
    deadline,
    read_message,
    read_object,
    write_message,
)
from qwen_companion.remote.streams import Streams

START_S = 30.0
"""Seconds that the relay may take to start."""

PING_S = 15.0
"""Seconds between signs of life that the relay must give; the pipe is broken after two of them were missed."""

BEGIN_S = 10.0
"""Seconds within which the relay must start a request; it drops later ones."""

REQUEST_S = 20.0
"""Seconds a request may take."""

_LATE = "late"

_END_S = 1.0
_QUIT_S = 3.0
"""Seconds the relay may take to end; one that is cut off before it is told stays and waits for Emacs."""

_EVENT_LIMIT = 1000
_LARGEST = 1 << 53
_BROKEN = (anyio.BrokenResourceError, anyio.ClosedResourceError)


class LinkError(CompanionError):
    """The pipe to a place could not be opened, or has broken.

    Retrying soon is useless if `lasting`.
    """

    def __init__(self, text: str, *, lasting: bool = False) -> None:
        super().__init__(text)
        self.lasting = lasting


class UncertainError(LinkError):
    """No reply has come: the relay may have carried out the request, or not."""


class RequestError(CompanionError):
    """The relay could not carry out the request; the text says why."""


FileName = Annotated[str, AfterValidator(file_name)]
"""An absolute name of a file."""


class Answer(BaseModel):
    """What a relay says, with no more than we know; it is untrusted."""

    model_config = ConfigDict(strict=True, frozen=True)


A = TypeVar("A", bound=Answer)
_Text = Annotated[str, Field(max_length=4095)]


class Greeting(Answer):
    """The relay's description of itself: its process, home directory, directory for our files, directory of Node.js.

    `layer` is a settings file that a CLI there would read instead of ours.  `curl` is that program, or "".
    """

    pid: int
    started: _Text
    home: _Text
    folder: _Text
    node: _Text
    layer: _Text
    curl: _Text


@dataclass(eq=False)
class _Request:
    done: anyio.Event = field(default_factory=anyio.Event)
    values: dict[str, Any] | None = None
    data: bytes = b""

    @property
    def is_late(self) -> bool:
        """Whether the relay dropped it because it came too late."""
        return self.values is not None and self.values.get("error") == _LATE


class Link:
    """One run of the relay at a place."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        source: bytes,
        streams: Streams,
        changed: Callable[[Sequence[str]], None],
    ) -> None:
        """Run the relay by `command`, with the variables `environ`, send it its `source`, and carry `streams`.

        `changed` is called with the watched paths that have changed.
        """
        self._command = command
        self._environ = environ
        self._source = source
        self._streams = streams
        self._changed = changed
        self._channel: Channel | None = None
        self._decoder = Decoder()
        self._writing = anyio.Lock()
        self._requests: dict[int, _Request] = {}
        self._last_request = 0
        self._greeted = anyio.Event()
        self._heard = 0.0
        self._ahead = -math.inf
        """Least lead of the relay's clock over ours, in seconds; neither is the time of day."""
        self._greeting: Greeting | None = None
        self.is_left = False
        """Whether the relay started, and its pipe broke before it could be told to end."""

    async def run(self, ready: Callable[[Greeting], None]) -> None:
        """Run the relay until cancelled; call `ready` when it has started.

        :raises LinkError: when it cannot be run, or ends
        """
        try:
            await self._run(ready)
        except BaseException as error:  # noqa: BLE001 - raised again
            found = first_error(error)
            if isinstance(found, FrameError):
                raise LinkError(str(found)) from None
            if isinstance(found, (OSError, *_BROKEN)):
                raise self._end() from None
            raise found from None
        finally:
            self._streams.detach()
            for request in self._requests.values():
                request.done.set()

    async def _run(self, ready: Callable[[Greeting], None]) -> None:
        try:
            channel = self._channel = await run_program(self._command, self._environ)
        except FileNotFoundError as error:
            raise LinkError(f"there is no program {error.filename}", lasting=True) from None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(channel.collect)
                tasks.start_soon(self._receive, channel)
                await self._write(self._source)
                ready(await self._wait_for_greeting())
                tasks.start_soon(self._ping)
                await self._wait_for_silence()
        except anyio.get_cancelled_exc_class():
            # Cancelled for good.  After a broken pipe the relay must go on: the next pipe finds it.
            with anyio.CancelScope(shield=True):
                await self._quit(channel)
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await channel.close()

    async def _wait_for_greeting(self) -> Greeting:
        with anyio.move_on_after(START_S):
            await self._greeted.wait()
        if self._greeting is None:
            raise self._end("it does not answer")
        return self._greeting

    async def _quit(self, channel: Channel) -> None:
        """Tell the relay to end; it removes the files it has written."""
        with suppress(OSError, *_BROKEN), anyio.move_on_after(_END_S):
            if self._greeting is not None:
                await self._send(Frame(0, Kind.REQUEST, write_message({"name": "quit"}) + deadline(math.inf)))
            await channel.end()
        self.is_left = False
        with anyio.move_on_after(_QUIT_S):
            self.is_left = not await channel.wait_ended()

    def _end(self, silent: str = "the connection has ended") -> LinkError:
        """Return why there is no relay, by its output, or `silent` without any."""
        printed = self._channel.printed if self._channel else ""
        return LinkError(failure(printed) if printed else silent, lasting=is_lasting(printed))

    async def _ping(self) -> None:
        while True:
            await self._send(Frame(0, Kind.PING))
            await anyio.sleep(PING_S)

    async def _wait_for_silence(self) -> None:
        # Works even while sending is blocked.
        self._heard = anyio.current_time()
        while (left := self._heard + 2 * PING_S - anyio.current_time()) > 0:
            await anyio.sleep(left)
        raise LinkError("it has not answered for half a minute")

    # --- Frames

    async def _send(self, frame: Frame) -> None:
        await self._write(frame.encode())

    async def _write(self, data: bytes) -> None:
        if self._channel is None:
            raise LinkError("the connection has ended")
        async with self._writing:
            await self._channel.send(data)

    async def _receive(self, channel: Channel) -> None:
        try:
            while True:
                data = await channel.receive()
                self._heard = anyio.current_time()
                for frame in self._decoder.feed(data):
                    self._handle(frame)
        except anyio.EndOfStream:
            # Its explanation may still be on its way.
            with anyio.move_on_after(_END_S):
                await channel.wait_ended()
                await anyio.sleep(0)
            raise self._end() from None

    async def _send_stream(self, frame: Frame) -> None:
        # Lost bytes are sent again over the next pipe.
        with suppress(LinkError, OSError, *_BROKEN):
            await self._send(frame)

    def _handle(self, frame: Frame) -> None:
        if (frame.kind is Kind.HELLO) is not (self._greeting is None):
            raise FrameError("the relay does not begin with its greeting")
        if frame.kind is Kind.HELLO:
            values = read_object(frame.payload)
            if values.get("version") != VERSION:
                raise FrameError("the relay is of another version than this Emacs: restart qwen-companion-mode")
            try:
                self._greeting = greeting = Greeting.model_validate(values)
            except ValidationError:
                raise FrameError("the relay's greeting is not understood") from None
            self._note_clock(values)
            self.is_left = True
            self._streams.attach(self._send_stream, (greeting.pid, greeting.started))
            self._greeted.set()
        elif frame.kind is Kind.REPLY:
            request = self._requests.get(frame.stream)
            if request is not None:
                request.values, request.data = read_message(frame.payload)
                self._note_clock(request.values)
                request.done.set()
        elif frame.kind is Kind.EVENT:
            self._changed(strings(read_object(frame.payload).get("changed"))[:_EVENT_LIMIT])
        else:
            self._streams.handle(frame)

    # --- Requests

    async def request(self, name: str, **values: Any) -> dict[str, Any]:
        """Send the request `name` with `values`, and return the answer.

        :raises RequestError: when the relay fails
        :raises LinkError: when the pipe is broken
        """
        return (await self.ask(name, **values))[0]

    async def fetch(self, answer: type[A], name: str, **values: Any) -> A:
        """Send a request as `request` does, and return its `answer`; one in another form is a failure too."""
        return read_answer(answer, await self.request(name, **values))

    async def read(self, path: str, limit: int) -> tuple[bytes, int]:
        """Return the bytes of the regular file `path` there, of at most `limit` bytes, and its time.

        The time is in ms by the clock there, 0 if unknown.

        :raises RequestError: when it cannot be read
        :raises LinkError: when the pipe is broken
        """
        data = bytearray()
        while True:
            values, piece = await self.ask("read", path=path, offset=len(data))
            data += piece
            if len(data) > limit:
                raise RequestError(f"it has more than {limit} bytes")
            if not piece or values.get("more") is not True:
                return bytes(data), int(number(values.get("time")))

    async def ask(self, name: str, data: bytes = b"", **values: Any) -> tuple[dict[str, Any], bytes]:
        """Send a request as `request` does, with the bytes `data`; return the answer and its bytes.

        :raises RequestError: when the relay fails
        :raises UncertainError: when no reply has come; the relay does not start it later
        :raises LinkError: when the pipe is broken
        """
        message = write_message({"name": name, **values}, data)
        request = await self._exchange(message)
        if request.is_late:
            # If this machine has slept since the relay last sent its clock, the answer has sent it again.
            request = await self._exchange(message)
        if request.values is None:
            raise UncertainError("it does not answer")
        if request.is_late:
            raise LinkError("the line was silent for too long")
        error = request.values.pop("error", None)
        if error is not None:
            raise RequestError(_words(error))
        return request.values, request.data

    async def _exchange(self, message: bytes) -> _Request:
        """Send the request `message`, and return it after its reply, or after `REQUEST_S` without one.

        :raises UncertainError: when the pipe breaks meanwhile
        """
        self._last_request += 1
        identifier, request = self._last_request, _Request()
        self._requests[identifier] = request
        try:
            last = len(message) - len(message) % PART_BYTES
            for start in range(0, last, PART_BYTES):
                await self._send(Frame(identifier, Kind.PART, message[start : start + PART_BYTES]))
            begin_by = deadline(1000 * (anyio.current_time() + self._ahead + BEGIN_S))
            await self._send(Frame(identifier, Kind.REQUEST, message[last:] + begin_by))
            with anyio.move_on_after(REQUEST_S):
                await request.done.wait()
        except (OSError, *_BROKEN):
            raise UncertainError("the connection has ended") from None
        finally:
            del self._requests[identifier]
        return request

    def _note_clock(self, values: dict[str, Any]) -> None:
        """Remove the relay's clock from `values`, just received, and record it."""
        self._ahead = max(self._ahead, number(values.pop("now", None)) / 1000 - anyio.current_time())


def strings(value: object) -> list[str]:
    """Return the strings in `value`, a list from the relay, that can be absolute file names."""
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [item for item in items if isinstance(item, str) and item.startswith("/") and "\0" not in item]


def objects(value: object) -> list[dict[str, Any]]:
    """Return the objects in `value`, a list from the relay."""
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", item if isinstance(item, dict) else {}) for item in items]


def number(value: object) -> float:
    """Return `value`, from the relay, if it is a number that a float holds exactly, else 0."""
    return float(value) if isinstance(value, int | float) and abs(value) <= _LARGEST else 0.0


class Look(Answer):
    """A path there: its names, the real one last; its `kind`, None if absent.

    `ignored` is git's answer for a file in a `repository`, None if git gave none.
    """

    spellings: Annotated[list[FileName], Field(min_length=1)]
    kind: Literal["file", "directory", "other"] | None = None
    repository: str | None = None
    ignored: bool | None = None
    error: None = None


def read_look(values: Mapping[str, Any]) -> Look | None:
    """Return the state of a path from a relay's `values`; None if the relay could not inspect it."""
    with suppress(RequestError):
        return read_answer(Look, values)
    return None


def read_answer(answer: type[A], values: Mapping[str, Any]) -> A:
    """Return `values` as an `answer`.

    :raises RequestError: when they are none
    """
    try:
        return answer.model_validate(values)
    except (ValidationError, FileNameError):
        raise RequestError("the relay's answer is not understood") from None


def _words(error: object) -> str:
    """Return the `error` of a relay as one line for the user; a system error code in words."""
    text = "".join(character for character in str(error)[:200] if character.isprintable())
    number = {"ENOSPC": 28, "EROFS": 30, "EACCES": 13, "EDQUOT": 122}.get(text)
    return os.strerror(number) if number else text
