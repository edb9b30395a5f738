# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages to the sockets of CLIs, and their receipts on a socket of ours.

A CLI never replies on the connection of a message.  It connects to the socket named in the message, and presents the
secret from the message: no other program can forge a receipt.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import stat
import struct
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import anyio
from anyio.abc import Listener, SocketAttribute, SocketStream

from qwen_companion.base.json_objects import read_object
from qwen_companion.base.tasks import Tasks, contained
from qwen_companion.conversations.records import Record

SOON_S = 2.0
"""Seconds without a receipt before that is reported; most take 0.4, a CLI's first one up to 3."""

ANSWER_S = 10.0
"""Seconds to wait for a receipt."""

MAX_FRAME = 1024 * 1024
"""Longest message that a CLI accepts, in characters of its JSON."""

SENT, DELIVERED, HELD = "sent", "delivered", "held"
UNANSWERED, CLOSED, TOO_LONG = "unanswered", "closed", "too-long"
_STATUSES = frozenset((DELIVERED, HELD, "refused", "denied", "expired", "misaddressed", "dropped"))
"""Statuses of receipts; a later one may revoke a delivery or a hold."""

_RECEIPT_S = 5.0
_MAX_RECEIPT = 64 * 1024
_MOST = 1000
"""Most messages whose late receipts are still recognised."""


@dataclass(eq=False)
class _Sent:
    request: int
    secret: str
    status: str = UNANSWERED
    answered: anyio.Event = field(default_factory=anyio.Event)
    returned: bool = False


class Messenger:
    """Sends messages and receives their receipts.  Call its methods on the event loop."""

    def __init__(self, directory: str, tell: Callable[[int, str], None]) -> None:
        """Use a private `directory` for the socket.

        `tell` is called with the number of a request and each status that `send` does not return: `SENT` when a receipt
        is late, and statuses that come after `send` has returned.
        """
        self.address = os.path.join(directory, "receipts.sock")
        self.serving = False
        self._tell = tell
        self._sent: dict[str, _Sent] = {}

    async def open(self, tasks: Tasks) -> None:
        """Start receiving receipts, in one of `tasks`.

        :raises OSError: when the socket cannot be made
        """
        with suppress(FileNotFoundError):
            # An earlier process of this Emacs left it.
            os.unlink(self.address)
        listener = await anyio.create_unix_listener(self.address, mode=0o600)
        self.serving = True
        tasks.start(self._serve, listener)

    async def _serve(self, listener: Listener[SocketStream]) -> None:
        async with listener:
            await listener.serve(partial(contained, self._receive))

    async def send(self, request: int, record: Record, token: str, session: str, text: str) -> str:
        """Send `text` to the conversation `session` of the CLI of `record`; return the status.

        That is a receipt's, `UNANSWERED` if none comes in time, `CLOSED` if nobody listens, or `TOO_LONG`.
        """
        identifier = str(uuid.uuid4())
        sent = _Sent(request, secrets.token_hex(32))
        frame = json.dumps(
            {
                "msgV": 1,
                "msgId": identifier,
                "type": "user",
                "from": self.address,
                "replyToken": sent.secret,
                "fromName": "Emacs",
                "toSessionId": session,
                "message": {"role": "user", "content": text},
            },
            ensure_ascii=False,
        )
        if len(frame) > MAX_FRAME:
            return TOO_LONG
        self._sent[identifier] = sent
        if len(self._sent) > _MOST:
            del self._sent[next(iter(self._sent))]
        with anyio.move_on_after(ANSWER_S):
            try:
                auth = json.dumps({"msgV": 1, "type": "auth", "token": token})
                await _write(record, f"{auth}\n{frame}\n".encode("utf-8", "replace"))
            except (OSError, anyio.BrokenResourceError):
                return CLOSED
            with anyio.move_on_after(SOON_S):
                await sent.answered.wait()
            if not sent.answered.is_set():
                self._tell(request, SENT)
                await sent.answered.wait()
        sent.returned = True
        return sent.status

    def confirm(self, request: int) -> None:
        """Record that the message of `request` has arrived, even without a receipt."""
        for sent in self._sent.values():
            if sent.request == request and not sent.answered.is_set():
                sent.status = DELIVERED
                sent.answered.set()

    async def _receive(self, stream: SocketStream) -> None:
        """Handle the receipt on `stream`."""
        data = b""
        async with stream:
            with anyio.move_on_after(_RECEIPT_S), suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while len(data) < _MAX_RECEIPT:
                    data += await stream.receive()
        auth, _, rest = data.partition(b"\n")
        receipt = read_object(rest) or {}
        sent = self._sent.get(str(receipt.get("origMsgId")))
        shown = str((read_object(auth) or {}).get("token"))
        status = str(receipt.get("status"))
        # A CLI may merge receipts of several messages; those for ours come singly.
        if sent is None or status not in _STATUSES or not hmac.compare_digest(shown.encode(), sent.secret.encode()):
            return
        sent.status = status
        sent.answered.set()
        if sent.returned:
            self._tell(sent.request, sent.status)


async def _write(record: Record, data: bytes) -> None:
    """Write `data` to the socket of `record`, if its process is the listener.

    :raises OSError, anyio.BrokenResourceError: when that fails
    """
    found = os.lstat(record.socket)
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        raise ConnectionRefusedError
    async with await anyio.connect_unix(record.socket) as stream:
        credentials = getattr(socket, "SO_PEERCRED", None)
        if credentials is not None:
            size = struct.calcsize("3i")
            peer = stream.extra(SocketAttribute.raw_socket)  # noqa: S610 - not of Django
            raw = peer.getsockopt(socket.SOL_SOCKET, credentials, size)
            pid, user, _ = struct.unpack("3i", raw)
            # Only this process may get the token.
            if (pid, user) != (record.cli.pid, os.geteuid()):
                raise ConnectionRefusedError
        await stream.send(data)
        await stream.send_eof()
