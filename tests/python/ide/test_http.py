# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP over real connections, for small applications."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from qwen_companion.ide.http import MAX_UNREAD_BYTES, HttpServer
from qwen_companion.ide.replies import reply
from support import soon

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yield a connection to a server of `app`, which is stopped at the end."""
    listener = socket.create_server(("127.0.0.1", 0))
    server, ready = HttpServer(app, listener), asyncio.Event()
    running = asyncio.create_task(server.serve(ready.set))
    await soon(ready.wait())
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    yield reader, writer
    writer.close()
    server.stop()
    await soon(running)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with method, path and size of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message["body"]), message["more_body"]
    await reply(send, 200, f"{scope['method']} {scope['path']} {size}".encode())


async def test_a_body_waits_until_the_client_is_told_to_send_it() -> None:
    async with served(echo) as (reader, writer):
        writer.write(b"POST /a%20b HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-Continue\r\n\r\n")
        assert await soon(reader.readuntil(b"\r\n\r\n")) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc")
        assert b"\r\n\r\nPOST /a b 3" in await soon(reader.readuntil(b" 3"))


async def test_requests_follow_each_other_on_a_connection() -> None:
    async with served(echo) as (reader, writer):
        for size in (0, 5, 3 * MAX_UNREAD_BYTES):
            writer.write(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
            assert b"connection" not in (await soon(reader.readuntil(b"\r\n\r\n"))).lower()
            await soon(reader.readuntil(b" %d" % size))


async def test_a_trailer_is_no_header() -> None:
    async def names(scope: Scope, _receive: Receive, send: Send) -> None:
        await reply(send, 200, b" ".join(name for name, _ in scope["headers"]) + b"!")

    async with served(names) as (reader, writer):
        head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head + b"0\r\nAuthorization: Bearer x\r\n\r\n")
        assert (await soon(reader.readuntil(b"!"))).endswith(b"\r\n\r\nhost transfer-encoding!")


@pytest.mark.parametrize("head", [b"POST / HTTP/1.0\r\n", b"POST / HTTP/1.1\r\nConnection: close\r\n"])
async def test_a_connection_ends_with_the_answer_if_the_client_wants_that(head: bytes) -> None:
    async with served(echo) as (reader, writer):
        writer.write(head + b"Content-Length: 0\r\n\r\n")
        answer = await soon(reader.read())
        assert b"connection: close" in answer
        assert answer.endswith(b"POST / 0")


async def test_an_answer_to_head_has_no_body() -> None:
    async with served(echo) as (reader, writer):
        for _ in range(2):
            writer.write(b"HEAD / HTTP/1.1\r\n\r\n")
            head = await soon(reader.readuntil(b"\r\n\r\n"))
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"content-length: 8\r\n" in head


async def test_what_fails_is_answered_and_ends_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_scope: Scope, _receive: Receive, send: Send) -> None:
        raise LookupError("a text that no log may have")

    async with served(fail) as (reader, writer):
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert b" 500 " in await soon(reader.readuntil(b"\r\n\r\n"))
            await soon(reader.readuntil(b"}}"))
    assert "LookupError" in caplog.text
    assert "no log may have" not in caplog.text


async def test_an_answer_that_is_not_finished_ends_with_its_connection() -> None:
    async def stop_early(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})

    async with served(stop_early) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert (await soon(reader.read())).endswith(b"half")


async def test_a_large_body_is_not_read_before_it_is_wanted() -> None:
    begun, wanted = asyncio.Event(), asyncio.Event()

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await wanted.wait()
        await echo(scope, receive, send)

    size = 64 * 1024 * 1024
    async with served(late) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size)
        await soon(begun.wait())
        writer.write(b"x" * size)
        sent = asyncio.create_task(writer.drain())
        # Room for a part of it is in the buffers of the system only.
        for _ in range(1000):
            await asyncio.sleep(0)
        assert not sent.done()
        wanted.set()
        await soon(sent)
        await soon(reader.readuntil(b" %d" % size))


@pytest.mark.parametrize("text", [b"no HTTP\r\n\r\n", b"GET http://[ HTTP/1.1\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n"])
async def test_what_is_not_http_is_refused(text: bytes) -> None:
    async with served(echo) as (reader, writer):
        writer.write(text)
        assert (await soon(reader.read())).startswith(b"HTTP/1.1 400 ")
