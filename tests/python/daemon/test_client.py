# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests to a daemon that answers as a recorded one did, and the errors that its refusals raise."""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from fake_daemon import ROOT, TOKEN, FakeDaemon, FakeSession
from qwen_companion.daemon import client as client_module
from qwen_companion.daemon import errors
from qwen_companion.daemon import requests as requests_module
from qwen_companion.daemon.client import DaemonClient
from qwen_companion.daemon.models import Cursor, ImageBlock, LinkBlock, PromptBlock, TextBlock

pytestmark = pytest.mark.anyio

HELLO = (TextBlock("hello"),)


@pytest.fixture
async def client(daemon: FakeDaemon) -> AsyncIterator[DaemonClient]:
    async with DaemonClient(daemon.url, TOKEN) as connected:
        yield connected


@pytest.fixture
async def session(daemon: FakeDaemon, client: DaemonClient) -> FakeSession:
    """Return a session that the client has created."""
    return daemon.sessions[(await client.create_or_attach(ROOT, "thread")).session_id]


# --- Capabilities


@pytest.mark.parametrize("change", [{"v": 2}, {"protocolVersions": {"current": "v2", "supported": ["v2"]}}])
async def test_another_protocol_is_refused(daemon: FakeDaemon, client: DaemonClient, change: dict[str, object]) -> None:
    daemon.capabilities |= change
    with pytest.raises(errors.UnsupportedError, match="v1"):
        await client.capabilities()


async def test_workspace_mismatch(daemon: FakeDaemon, client: DaemonClient, tmp_path: Path) -> None:
    with pytest.raises(errors.WrongWorkspaceError, match=r"/home/user/other;"):
        await client.capabilities("/home/user/other")
    # The daemon takes no directory inside of its workspace either.
    with pytest.raises(errors.WrongWorkspaceError):
        await client.capabilities(f"{ROOT}/below")
    with pytest.raises(errors.WrongWorkspaceError) as caught:
        await client.create_or_attach("/home/user/other", "single")
    assert (caught.value.status, caught.value.code) == (400, "workspace_mismatch")

    (tmp_path / "link").symlink_to(tmp_path)
    daemon.capabilities["workspaces"] = [{"cwd": str(tmp_path), "id": "2"}]
    await client.capabilities(str(tmp_path / "link"))
    await client.capabilities(f"{ROOT}/")


# --- Refusals


async def test_401_says_whether_the_token_is_wrong_or_missing(daemon: FakeDaemon) -> None:
    for token, text in (("wrong", "does not accept the token"), (None, "wants a token")):
        async with DaemonClient(daemon.url, token) as client:
            with pytest.raises(errors.UnauthorizedError, match=text):
                await client.capabilities()


@pytest.mark.parametrize("refusal", ["host", "origin"])
async def test_host_403(daemon: FakeDaemon, client: DaemonClient, refusal: str) -> None:
    daemon.refuse("/capabilities", refusal)
    with pytest.raises(errors.HostRefusedError, match="does not answer to the name"):
        await client.capabilities()


async def test_html_404(client: DaemonClient, daemon: FakeDaemon) -> None:
    daemon.refuse("/capabilities", "no_route")
    with pytest.raises(errors.UnsupportedError, match="another version"):
        await client.capabilities()


async def test_a_session_that_is_not_there_is_not_an_older_daemon(client: DaemonClient) -> None:
    with pytest.raises(errors.NotFoundError) as caught:
        await client.status("gone")
    assert caught.value.code == "session_not_found"


async def test_an_agent_that_is_slow_to_start_is_waited_for_and_this_is_said(daemon: FakeDaemon) -> None:
    said: list[str | None] = []
    async with DaemonClient(daemon.url, TOKEN, progress=said.append) as client:
        daemon.refuse("/session", "no_route", times=2, status=504)
        assert (await client.create_or_attach(ROOT, "thread")).session_id in daemon.sessions
        assert len(daemon.asked_for("/session")) == 3
        assert [text and text[-9:] for text in said] == ["(2 of 5).", "(3 of 5).", None]
        said.clear()
        daemon.refuse("/session", "no_route", times=5, status=504)
        with pytest.raises(errors.ServerFailedError, match="504"):
            await client.create_or_attach(ROOT, "thread")
        assert len(daemon.asked_for("/session")) == 8
        assert said[-1] is None


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nx-long: ", b"HTTP/1.1 200 OK\r\n\r\n"], ids=["head", "body"])
async def test_an_answer_that_never_ends_is_given_up(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async def drip(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        with suppress(ConnectionError):
            while True:
                # One byte in each round of the event loop: no read takes long.
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0)

    monkeypatch.setattr(client_module, "LOAD_S", 0.3)
    monkeypatch.setattr(requests_module, "REQUEST_S", 0.3)
    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        port: int = server.sockets[0].getsockname()[1]
        async with DaemonClient(f"http://127.0.0.1:{port}", TOKEN) as client:
            with pytest.raises(errors.UnreachableError) as caught:
                await client.load("session")
            assert caught.value.maybe_done
            if head.endswith(b": "):
                with pytest.raises(errors.UnreachableError):
                    async with client.events("session", Cursor(0, ""), 60.0):
                        pass


async def test_queue_full_503(daemon: FakeDaemon, client: DaemonClient, session: FakeSession) -> None:
    daemon.refuse("/prompt", "queue_full")
    with pytest.raises(errors.BusyError, match="queue") as caught:
        await client.prompt(session.id, HELLO)
    assert (caught.value.status, caught.value.code, caught.value.retry_after_s) == (503, "prompt_queue_full", 5.0)
    assert len(daemon.asked_for("/prompt")) == 1


@pytest.mark.parametrize(
    ("headers", "body", "wait_s"),
    [
        ({"retry-after": "7"}, {"retryAfterMs": 1}, 7.0),
        ({}, {"retryAfterMs": 1500}, 1.5),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, {}, 0.0),
        ({"retry-after": "-1"}, {"retryAfterMs": "soon"}, 0.0),
    ],
)
async def test_rate_limited_429(
    daemon: FakeDaemon, client: DaemonClient, headers: dict[str, str], body: dict[str, object], wait_s: float
) -> None:
    text = json.dumps({"error": "Rate limit exceeded", "code": "rate_limit_exceeded", "tier": "read", **body})
    daemon.refuse("/capabilities", "subscriber_limit", headers=headers, body=text)
    with pytest.raises(errors.BusyError, match="fewer requests") as caught:
        await client.capabilities()
    assert caught.value.retry_after_s == wait_s


async def test_a_prompt_that_is_too_large_is_refused(
    daemon: FakeDaemon, client: DaemonClient, session: FakeSession
) -> None:
    daemon.refuse("/prompt", "too_large")
    with pytest.raises(errors.InvalidRequestError, match="larger than the daemon accepts"):
        await client.prompt(session.id, HELLO)


async def test_a_redirection_is_not_followed(daemon: FakeDaemon, client: DaemonClient) -> None:
    async with FakeDaemon() as other:
        daemon.refuse("/capabilities", "no_route", status=307, headers={"location": f"{other.url}/capabilities"})
        with pytest.raises(errors.ProtocolViolationError, match="307"):
            await client.capabilities()
        assert other.asked == []


@pytest.mark.parametrize("body", ["<html>", "[", "[]", '{"v": 1, "features": 5}'])
async def test_what_is_no_daemon_is_found_out(daemon: FakeDaemon, client: DaemonClient, body: str) -> None:
    daemon.refuse("/capabilities", "no_route", status=200, body=body)
    with pytest.raises((errors.ProtocolViolationError, errors.UnsupportedError)):
        await client.capabilities()


async def test_a_proxy_of_the_environment_is_not_asked(
    daemon: FakeDaemon, client: DaemonClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeDaemon() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        async with DaemonClient(daemon.url, TOKEN) as second:
            await second.capabilities()
        assert proxy.asked == []


async def test_an_unusable_url_or_token_is_refused_at_once() -> None:
    for url in ("http://me:hidden@192.0.2.1", "https://me:hidden@999.1.1.1", "nonsense"):
        with pytest.raises(errors.UnsafeUrlError) as caught:
            DaemonClient(url, TOKEN)
        assert "hidden" not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(errors.SettingsError):
        DaemonClient("http://127.0.0.1:1", "hidden\n")


# --- Who one is


async def test_one_identity_is_kept_per_session(daemon: FakeDaemon, client: DaemonClient) -> None:
    first = await client.create_or_attach(ROOT, "thread")
    second = await client.create_or_attach(ROOT, "thread")
    assert first.client_id != second.client_id
    assert (
        (await client.load(first.session_id)).client_id
        == first.client_id
        == client.memberships.client_id(first.session_id)
    )
    await client.context(second.session_id)
    assert daemon.asked[-1].headers["x-qwen-client-id"] == second.client_id


async def test_a_daemon_that_forgot_us_is_told_apart(
    daemon: FakeDaemon, client: DaemonClient, session: FakeSession
) -> None:
    before = client.memberships.client_id(session.id)
    session.die()
    with pytest.raises(errors.NotFoundError):
        await client.context(session.id)
    session.revive()
    with pytest.raises(errors.InvalidRequestError) as caught:
        await client.context(session.id)
    assert caught.value.code == "invalid_client_id"
    assert (await client.load(session.id)).client_id != before
    await client.context(session.id)


async def test_detaching_takes_back_every_load(client: DaemonClient, session: FakeSession) -> None:
    await client.load(session.id)
    await client.load(session.id)
    await client.detach(session.id)
    assert not session.alive
    assert client.memberships.client_id(session.id) is None


# --- Prompts


async def test_a_prompt_goes_out_as_the_daemon_wants_it(
    daemon: FakeDaemon, client: DaemonClient, session: FakeSession
) -> None:
    parts: tuple[PromptBlock, ...] = (
        TextBlock("look \ud800 \u2028 \N{GRINNING FACE}"),
        ImageBlock("aW1hZ2U=", "image/png"),
        LinkBlock("file:///home/user/project/a b", "a b"),
    )
    reply = await client.prompt(session.id, parts)
    assert reply.prompt_id == session.prompts[0]
    assert daemon.asked_for("/prompt")[0].body == {
        "prompt": [
            {"type": "text", "text": "look \ud800 \u2028 \N{GRINNING FACE}"},
            {"type": "image", "data": "aW1hZ2U=", "mimeType": "image/png"},
            {"type": "resource_link", "uri": "file:///home/user/project/a b", "name": "a b"},
        ]
    }


async def test_a_prompt_to_nobody_was_certainly_not_done(
    daemon: FakeDaemon, client: DaemonClient, session: FakeSession
) -> None:
    await daemon.stop()
    with pytest.raises(errors.UnreachableError, match="Nobody answers") as caught:
        await client.prompt(session.id, HELLO)
    assert not caught.value.maybe_done


# --- Secrets


async def test_nothing_secret_is_said_anywhere(
    daemon: FakeDaemon, session: FakeSession, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = TOKEN
    said: list[str] = []
    client = DaemonClient(daemon.url.replace("//", "//me:hidden@") + "?token=" + secret, secret)

    async def listen() -> None:
        async with client.events(session.id, Cursor(0, "another"), 45) as source:
            said.append(repr(source))

    requests: list[Callable[[], Awaitable[object]]] = [
        lambda: client.capabilities(),
        lambda: client.load(session.id),
        lambda: client.prompt(session.id, HELLO),
        lambda: client.status(session.id),
        listen,
    ]
    for refusal in (None, "unauthorized", "host", "no_session", "no_route", "queue_full", "bad_model", "no_client", ""):
        for request in requests:
            if refusal == "":
                daemon.break_off("")
            elif refusal is not None:
                daemon.refuse("", refusal)
            try:
                said.append(repr(await request()))
            except errors.DaemonError as error:
                said += [repr(error), *traceback.format_exception(error)]
    await daemon.stop()
    with pytest.raises(errors.UnreachableError) as caught:
        await client.capabilities()
    said += traceback.format_exception(caught.value)
    said += [repr(client), client.url, repr(vars(client)), caplog.text, *capsys.readouterr()]
    said += [asked.path + str(asked.body) for asked in daemon.asked]
    await client.aclose()
    text = "\n".join(said)
    assert len(text) > 10_000
    assert secret not in text
    assert "hidden" not in text
    assert {asked.headers["authorization"] for asked in daemon.asked if asked.path != "/session"} == {
        f"Bearer {secret}"
    }


async def test_an_answer_that_does_not_come_is_not_waited_for(
    daemon: FakeDaemon, client: DaemonClient, session: FakeSession
) -> None:
    with pytest.raises(errors.UnreachableError, match=r"has not answered for 0\.05 s") as caught:
        async with client.events(session.id, Cursor(0, ""), 0.05) as source:
            stream = await daemon.next_stream()
            assert stream.headers["x-qwen-client-id"] == client.memberships.client_id(session.id)
            async for _ in source.data:
                await asyncio.sleep(0)
    assert caught.value.maybe_done
