# SPDX-License-Identifier: GPL-3.0-or-later
"""The EPC endpoint: one connection, one ordered reader, one writer, a secret in every call.

The reader and the writer are threads of their own, so neither a slow Emacs nor a large text ever holds up the event
loop: a handler hands its message over to the loop and answers at once, and a call is printed where it is sent.
python-epc's logging wrappers print every argument even when the log is off; the methods a payload passes through are
therefore overridden here without them.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import queue
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

import anyio
from epc.handler import CallerUnknown, EPCHandler
from epc.server import EPCServer
from sexpdata import Symbol, dumps

from qwen_companion.base.errors import (
    EmacsBusyError,
    EmacsGoneError,
    EmacsRefusedError,
    EmacsUnavailableError,
    MessageError,
    SpoolError,
)
from qwen_companion.base.sockets import connection_of, is_of_another_user
from qwen_companion.wire.messages import Incoming, Outgoing, Ping, parse_incoming
from qwen_companion.wire.plists import Sexp, read_sexp
from qwen_companion.wire.spool import Spool

MAX_FRAME_BYTES = 4 * 1024 * 1024
"""Largest frame in either direction.  Texts are sent by file long before; the wire format itself ends at 16 MiB."""

SILENCE_S = 3.0
"""Seconds without a ping, which come every 1.8 s, after which Emacs counts as frozen."""

CALL_TIMEOUT_S = 10.0
"""Seconds a call waits for its answer by default."""

_GREETING_LIMIT_BYTES = 256 * 1024
_GREETING_TIMEOUT_S = 5.0
_LAST_WORDS_S = 0.2
_MAX_STRANGERS = 64
_HEAD_BYTES = 6

_log = logging.getLogger(__name__)

ReplyT = TypeVar("ReplyT")


@dataclass(eq=False)
class _Call(Generic[ReplyT]):
    """A call to Emacs.  It ends on the event loop, with a `reply` or an `error`."""

    message: Outgoing[ReplyT]
    is_notification: bool
    """Whether no task waits for its end."""

    ended: anyio.Event = field(default_factory=anyio.Event)
    reply: ReplyT | None = None
    error: EmacsUnavailableError | None = None
    abandoned: bool = False
    """Whether the waiting task was cancelled; a call that is not sent yet is dropped then."""


@dataclass(frozen=True)
class _Reply:
    kind: str
    uid: Sexp
    value: Sexp


class Bridge:
    """Calls to and from the Emacs that started this process."""

    def __init__(self, listener: socket.socket, secret: str, spool: Spool) -> None:
        """Serve on `listener`, a listening loopback socket that the bridge takes over.

        Calls made before Emacs has connected wait for it.  Must be created on the event loop that it will serve.
        """
        self._secret = secret.encode("utf-8")
        self._spool = spool
        self._loop = asyncio.get_running_loop()
        self._unwritten: queue.SimpleQueue[_Call[Any] | _Reply | None] = queue.SimpleQueue()
        self._pending: set[_Call[Any]] = set()
        self._lock = threading.Lock()
        self._peer: _Handler | None = None
        self._writer: threading.Thread | None = None
        self._gone = False
        self._pinged: float | None = None
        """When the last `Ping` came, by the monotonic clock."""
        self._on_message: Callable[[Incoming], None] = lambda _message: None
        self._on_gone: Callable[[], None] = lambda: None
        self._server = _Server(listener, self)

    def start(self, on_message: Callable[[Incoming], None], on_gone: Callable[[], None]) -> None:
        """Begin to accept.  Both callbacks run on the event loop; `on_message` in the order Emacs called."""
        self._on_message = on_message
        self._on_gone = on_gone
        threading.Thread(target=self._server.accept, name="epc-accept", daemon=True).start()

    async def call(self, message: Outgoing[ReplyT], timeout: float | None = CALL_TIMEOUT_S) -> ReplyT:
        """Call Emacs and wait up to `timeout` seconds, or with None for as long as it takes.

        :raises EmacsBusyError: no answer in time.  Emacs gets the call all the same, as soon as it reads.
        :raises EmacsGoneError: the connection has ended
        :raises EmacsRefusedError: the handler failed, or the message could not be sent
        """
        call = self._enqueue(message, is_notification=False)
        try:
            with anyio.move_on_after(timeout):
                await call.ended.wait()
        except anyio.get_cancelled_exc_class():
            call.abandoned = True
            self._pending.discard(call)
            raise
        if not call.ended.is_set():
            raise EmacsBusyError(f"Emacs did not answer {message.method} within {timeout:g} s")
        if call.error is not None:
            raise call.error
        return cast("ReplyT", call.reply)

    def notify(self, message: Outgoing[Any]) -> None:
        """Call Emacs without waiting, in order with other calls; a failure is logged."""
        self._enqueue(message, is_notification=True)

    def close(self) -> None:
        """End the connection and the listener, for good.  Calls still open fail with `EmacsGoneError`.

        Unwritten messages, the answer to `stop` among them, are given a moment; blocks for as long.
        """
        self._server.stop()
        self._unwritten.put(None)
        with self._lock:
            peer, writer = self._peer, self._writer
        if peer is not None and writer is not None:
            writer.join(_LAST_WORDS_S)
            peer.hang_up()
        self._lost()

    def _enqueue(self, message: Outgoing[ReplyT], is_notification: bool) -> _Call[ReplyT]:
        call = _Call(message, is_notification)
        self._pending.add(call)
        if self._gone:
            self._end(call, EmacsGoneError("Emacs has closed the connection"))
        else:
            self._unwritten.put(call)
        return call

    def _end(self, call: _Call[Any], result: object) -> None:
        """End `call` with a reply or an error, unless it has ended or was abandoned.  Runs on the event loop."""
        if call not in self._pending:
            return
        self._pending.discard(call)
        if not isinstance(result, EmacsUnavailableError):
            call.reply = result
        elif not call.is_notification:
            call.error = result
        elif not isinstance(result, EmacsGoneError):
            _log.warning("%s: %s", call.message.method, result)
        call.ended.set()

    def _lost(self) -> None:
        """Fail the calls that wait for an answer.  Runs on the event loop."""
        if self._gone:
            return
        self._gone = True
        for call in list(self._pending):
            self._end(call, EmacsGoneError("Emacs has closed the connection"))
        self._on_gone()

    def _to_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # The loop has closed: the process is ending.
            self._loop.call_soon_threadsafe(callback, *arguments)

    # --- Called by the threads ---

    def knows(self, secret: Sexp) -> bool:
        """Return whether `secret` is ours, in constant time."""
        given = secret if isinstance(secret, str) and not isinstance(secret, Symbol) else ""
        return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self._secret)

    def adopt(self, handler: _Handler) -> bool:
        """Make `handler`, which has shown the secret, the connection.  False when there is one already."""
        with self._lock:
            if self._peer is not None:
                return self._peer is handler
            self._peer = handler
            self._writer = threading.Thread(target=self._write, args=(handler,), name="epc-write", daemon=True)
            self._writer.start()
        self._server.stop(adopted=handler.request)
        return True

    def adopted(self, handler: _Handler) -> bool:
        """Return whether `handler` is the connection."""
        return self._peer is handler

    def handle_call(self, uid: Sexp, method: str, payload: Sexp) -> None:
        """Pass a call by Emacs to the event loop and answer it with nil, or with an error.

        A `Ping` is answered by the event loop and not passed on.
        """
        try:
            message = parse_incoming(method, payload, self._spool)
        except (MessageError, SpoolError) as error:
            self._unwritten.put(_Reply("return-error", uid, f"{method}: {error}"))
            return
        if isinstance(message, Ping):
            self._pinged = time.monotonic()
            self._to_loop(self._unwritten.put, _Reply("return", uid, None))
            return
        # In this order: the message may end the connection.
        self._unwritten.put(_Reply("return", uid, None))
        if message is not None:
            self._to_loop(self._on_message, message)

    async def silence(self) -> None:
        """Wait until Emacs has sent no ping for `SILENCE_S`, after it has sent some."""
        while (left := SILENCE_S - (0.0 if self._pinged is None else time.monotonic() - self._pinged)) > 0:
            await anyio.sleep(left)

    def disconnected(self, handler: _Handler) -> None:
        """Handle the end of the socket of `handler`."""
        if self.adopted(handler):
            self._unwritten.put(None)
            self._to_loop(self._lost)

    def _write(self, handler: _Handler) -> None:
        """Run the writer thread: the only one that writes to the connection."""
        with suppress(OSError):  # The reader sees the end of the connection too, and reports it.
            while self._write_next(handler):
                pass

    def _write_next(self, handler: _Handler) -> bool:
        """Wait for something to write and write it; return False for the end."""
        # A local of this call, not of the thread: while there is nothing to write, no text stays in memory.
        item = self._unwritten.get()
        if isinstance(item, _Reply):
            handler.send_message(item.kind, item.uid, item.value)
        elif item is not None and not item.abandoned:
            self._write_call(handler, item)
        return item is not None

    def _write_call(self, handler: _Handler, call: _Call[Any]) -> None:
        method = call.message.method

        def returned(reply: Sexp) -> None:
            try:
                self._to_loop(self._end, call, call.message.parse_reply(reply, self._spool))
            except (MessageError, SpoolError) as error:
                self._to_loop(self._end, call, EmacsRefusedError(str(error)))

        def failed(error: Exception) -> None:
            detail = str(error.args[0]) if error.args else type(error).__name__
            self._to_loop(self._end, call, EmacsRefusedError(f"Emacs could not do {method}: {detail}"))

        try:
            payload = call.message.payload(self._spool)
            handler.call(method, [self._secret.decode("utf-8"), payload], callback=returned, errback=failed)
        except (MessageError, SpoolError, UnicodeEncodeError) as error:
            # The last is for half a surrogate pair, which ends this call alone, not the thread.
            self._to_loop(self._end, call, EmacsRefusedError(str(error)))


class _Handler(EPCHandler):
    """One connection.  Its thread is the reader; only the bridge's writer thread calls `send_message`."""

    server: _Server
    disable_nagle_algorithm = True

    def handle(self) -> None:
        """Read frames in order until the peer goes, misbehaves or lacks the secret."""
        bridge = self.server.bridge
        self.request.settimeout(_GREETING_TIMEOUT_S)
        limit = _GREETING_LIMIT_BYTES
        with suppress(OSError, MessageError):
            while (frame := self._read_frame(limit)) is not None:
                if not self._handle_frame(bridge, frame):
                    return
                limit = MAX_FRAME_BYTES

    def finish(self) -> None:
        """End the connection; socketserver calls this when `handle` has returned or failed."""
        with suppress(OSError):
            super().finish()
        self.server.bridge.disconnected(self)

    def hang_up(self) -> None:
        """Stop sending; this fails a write that waits for a slow Emacs.

        The reader continues until Emacs closes the connection too: closing it earlier would lose data that Emacs has
        not read.
        """
        with suppress(OSError):
            self.request.shutdown(socket.SHUT_WR)

    def send_message(self, kind: str, *parts: Sexp) -> None:
        """Write one frame.

        :raises MessageError: when it is too large
        :raises UnicodeEncodeError: when it holds half a surrogate pair
        :raises OSError: when the peer is gone
        """
        # python-epc would refuse names of files that are not UTF-8.
        body = dumps([Symbol(kind), *parts]).encode("utf-8", "surrogateescape") + b"\n"
        if len(body) > MAX_FRAME_BYTES:
            raise MessageError(f"a message of {len(body)} bytes is too large for EPC")
        self.request.sendall(b"%06x%b" % (len(body), body))

    def _send(self, *args: Any) -> None:
        # Called by python-epc to send; without its logging wrapper, see the top of this file.
        self.send_message(*args)

    def _read_frame(self, limit: int) -> bytes | None:
        head = self.rfile.read(_HEAD_BYTES)
        if not head:
            return None
        try:
            length = int(head, 16)
        except ValueError:
            raise MessageError("a frame has no length") from None
        if not 0 < length <= limit:
            raise MessageError("a frame is too large")
        body = self.rfile.read(length)
        if len(body) < length:
            return None
        return body

    def _handle_frame(self, bridge: Bridge, frame: bytes) -> bool:
        """Handle one frame; return False to end the connection."""
        message = read_sexp(frame)
        if not isinstance(message, list) or not message or not isinstance(message[0], Symbol):
            raise MessageError("not an EPC message")
        kind, *parts = cast("list[Sexp]", message)
        if str(kind) == "call":
            return self._handle_call(bridge, parts)
        if not bridge.adopted(self) or not parts:
            return False
        uid, reply = parts[0], parts[1] if len(parts) > 1 else None
        manager = self.callmanager
        settle = {
            "return": manager.handle_return,
            "return-error": manager.handle_return_error,
            "epc-error": manager.handle_epc_error,
        }.get(str(kind))
        if settle is not None:
            with suppress(CallerUnknown):
                settle(uid, reply)
        return settle is not None

    def _handle_call(self, bridge: Bridge, parts: Sequence[Sexp]) -> bool:
        uid = parts[0] if parts else None
        arguments = parts[2] if len(parts) == 3 else None
        arguments = cast("list[Sexp]", arguments) if isinstance(arguments, list) else []
        secret = arguments[0] if arguments else None
        if not bridge.knows(secret) or not bridge.adopt(self):
            # The connection of a stranger has no writer thread, so this thread may write to it.
            if not bridge.adopted(self):
                self.send_message("epc-error", uid, "refused")
            return False
        method = parts[1]
        if not isinstance(method, Symbol) or len(arguments) != 2:
            raise MessageError("a call has not two arguments")
        self.request.settimeout(None)
        bridge.handle_call(uid, str(method), arguments[1])
        return True


class _Server(socketserver.ThreadingMixIn, EPCServer):
    """Accepts connections until one has shown the secret; then closes all others.

    Each connection has a thread, so that a silent one cannot block Emacs; within a connection the order is kept
    (python-epc's own threading server starts a thread for each message).  Connections of another user are refused.  If
    too many of the user's own have not shown the secret, the oldest is closed.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, bridge: Bridge) -> None:
        EPCServer.__init__(self, listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.bridge = bridge
        self._lock = threading.Lock()
        self._stopped = False
        self._strangers: dict[socket.socket, None] = {}

    def accept(self) -> None:
        """Run the accepting thread."""
        self.serve_forever(poll_interval=0.05)
        self.server_close()

    def stop(self, adopted: socket.socket | None = None) -> None:
        """Stop accepting, and close all connections but `adopted`.  Does not wait."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            for stranger in self._strangers:
                if stranger is not adopted:
                    _hang_up(stranger)
            self._strangers.clear()
        threading.Thread(target=self.shutdown, name="epc-shutdown", daemon=True).start()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Refuse a connection of another user, and any once one is adopted."""
        with suppress(OSError):
            return not self._stopped and not is_of_another_user(connection_of(request))
        return False

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for one connection."""
        with self._lock:
            if not self._stopped:
                if len(self._strangers) >= _MAX_STRANGERS:
                    oldest = next(iter(self._strangers))
                    del self._strangers[oldest]
                    _hang_up(oldest)
                self._strangers[request] = None
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection in its own thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._strangers.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log that a connection failed unexpectedly, without its content."""
        _log.error("an EPC connection failed: %s", type(sys.exc_info()[1]).__name__)


def _hang_up(connection: socket.socket) -> None:
    """Make the thread that reads from `connection` find its end."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
