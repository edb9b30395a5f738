# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any

import pytest

from qwen_companion.ide.guard import Guard, Keys

pytestmark = pytest.mark.anyio

TOKEN = "0123456789abcdef"
DOOR_SECRET = "fedcba9876543210"
GOOD = [(b"host", b"127.0.0.1:4711"), (b"authorization", b"Bearer 0123456789abcdef")]


async def status(headers: list[tuple[bytes, bytes]], method: str = "POST", path: str = "/mcp") -> int:
    """Return the status a request with `headers` is answered with, 200 when it is let through."""
    sent: list[Any] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Any:
        raise AssertionError("the guard looks at no body")

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    await Guard(app, Keys(4711, TOKEN, {"/door": DOOR_SECRET}))(scope, receive, send)
    assert TOKEN.encode() not in b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"]


def changed(name: bytes, *values: bytes) -> list[tuple[bytes, bytes]]:
    """Return the good headers with others for `name`."""
    return [header for header in GOOD if header[0] != name] + [(name, value) for value in values]


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PUT", "OPTIONS"])
async def test_a_good_request_passes(method: str) -> None:
    assert await status(GOOD, method) == 200
    assert await status(GOOD[:1], method) == 401


@pytest.mark.parametrize("host", [b"localhost:4711", b"LOCALHOST:4711", b"host.docker.internal:4711"])
async def test_the_hosts_a_cli_dials_pass(host: bytes) -> None:
    assert await status(changed(b"host", host)) == 200


@pytest.mark.parametrize(
    "hosts",
    [
        (),
        (b"127.0.0.1",),
        (b"127.0.0.1:80",),
        (b"evil.example:4711",),
        (b"127.0.0.1:4711.evil.example",),
        (b"127.0.0.1:4711", b"127.0.0.1:4711"),
        (b"",),
    ],
)
async def test_any_other_host_is_refused(hosts: tuple[bytes, ...]) -> None:
    assert await status(changed(b"host", *hosts)) == 421


@pytest.mark.parametrize("origin", [b"http://127.0.0.1:4711", b"null", b"", b"https://evil.example"])
async def test_any_origin_is_refused(origin: bytes) -> None:
    assert await status([*GOOD, (b"origin", origin)]) == 403


@pytest.mark.parametrize(
    "values",
    [
        (),
        (b"",),
        (b"Bearer",),
        (b"Bearer ",),
        (b"0123456789abcdef",),
        (b"Basic 0123456789abcdef",),
        (b"Bearer 0123456789abcde",),
        (b"Bearer 0123456789abcdefg",),
        (b"Bearer 0123456789ABCDEF",),
        (b"Bearer \xff",),
        (b"Bearer 0123456789abcdef", b"Bearer 0123456789abcdef"),
    ],
)
async def test_any_other_token_is_refused(values: tuple[bytes, ...]) -> None:
    assert await status(changed(b"authorization", *values)) == 401


async def test_the_scheme_may_be_written_in_any_case() -> None:
    assert await status(changed(b"authorization", b"bearer  0123456789abcdef")) == 200


async def test_a_door_opens_with_its_own_secret_and_that_opens_nothing_else() -> None:
    door = changed(b"authorization", b"Bearer fedcba9876543210")
    assert await status(door, path="/door") == 200
    for path in ("/mcp", "/", "/door/", "/DOOR"):
        assert await status(door, path=path) == 401
    assert await status(GOOD, path="/door") == 401
    assert await status([*door, (b"origin", b"null")], path="/door") == 403


async def test_a_connection_of_a_place_needs_its_own_keys() -> None:
    """It names the port there; neither its token opens the server to one of this machine, nor ours to it."""
    place = Keys(815, "fedcba9876543210", {"/tools": "known to nobody"})
    answers: list[int] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answers.append(message["status"])

    async def receive() -> Any:
        raise AssertionError

    guard = Guard(app, Keys(4711, TOKEN, {}), lambda port: place if port == 5 else None)
    for client, port, token, path in (
        (5, 815, place.token, "/mcp"),
        (5, 4711, place.token, "/mcp"),
        (5, 815, TOKEN, "/mcp"),
        (5, 815, place.token, "/tools"),
        (6, 815, place.token, "/mcp"),
        (6, 4711, place.token, "/mcp"),
        (6, 4711, TOKEN, "/mcp"),
    ):
        headers = [(b"host", b"127.0.0.1:%d" % port), (b"authorization", b"Bearer " + token.encode())]
        scope = {"type": "http", "method": "GET", "path": path, "headers": headers, "client": ("127.0.0.1", client)}
        await guard(scope, receive, send)
    assert answers == [200, 421, 401, 401, 421, 401, 200]
