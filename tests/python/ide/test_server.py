# SPDX-License-Identifier: GPL-3.0-or-later
"""The MCP server over real connections, Emacs scripted."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Literal, TypeVar

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.extension import ClientExtension, NotificationBinding
from mcp.client.streamable_http import streamable_http_client
from mcp_types import TextContent
from pydantic import BaseModel, ConfigDict

from fake_clis import FakeCallers
from qwen_companion.base.sockets import Connection
from qwen_companion.domain import KnownSession, Peer, SessionState
from qwen_companion.ide import bodies
from qwen_companion.ide.peers import Caller, find_caller
from qwen_companion.ide.proposals import Decision, Proposals
from qwen_companion.ide.server import McpServer
from qwen_companion.ide.sessions import SessionListener, Sessions, Timing
from qwen_companion.ide.tools import DiffTools
from support import INITIALIZE, PYTHON_DIRECTORY, TIMEOUT_S, Cli, FakeEditor, soon

pytestmark = pytest.mark.anyio

TOKEN = "token-of-the-test"
NEVER = 1000.0
TIMING = Timing(keep_alive=0.05, give_up=NEVER, left=NEVER, hidden=NEVER, stall=NEVER)
RESTORED = KnownSession("restored", "2025-11-25", "streamable-http-client", "1")
T = TypeVar("T")


class Site(SessionListener):
    """A running server."""

    def __init__(self, timing: Timing) -> None:
        self.listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(128)
        self.port: int = self.listener.getsockname()[1]
        self.editor = FakeEditor()
        self.gone: asyncio.Queue[str] = asyncio.Queue()
        self.out: asyncio.Queue[str] = asyncio.Queue()
        self.states: asyncio.Queue[SessionState] = asyncio.Queue()
        self.find_caller: Callable[[Connection], Caller | None] = lambda connection: None
        self.sessions = Sessions((RESTORED,), FakeCallers(lambda connection: self.find_caller(connection)), timing)
        self.sessions.listeners = [self]
        self.tools = DiffTools(Proposals(), self.editor, self.sessions, roots_of=lambda _: None)
        self.server = McpServer(self.listener, TOKEN, self.sessions, self.tools)

    def session_changed(self, state: SessionState) -> None:
        self.states.put_nowait(state)

    def session_gone(self, session: str) -> None:
        self.gone.put_nowait(session)

    def went_out(self, key: str) -> None:
        self.out.put_nowait(key)

    def tell(self, context: bytes) -> None:
        """Make `context` that of every session."""
        for state in self.sessions.states():
            self.sessions.set_context(state.session.id, context)

    def cli(self, session: str = "") -> Cli:
        return Cli(self.port, TOKEN, session)

    async def until_streaming(self, streaming: bool) -> None:
        while (await soon(self.states.get())).streaming is not streaming:
            pass

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        yield reader, writer
        writer.close()
        await writer.wait_closed()

    async def connected(self) -> Cli:
        cli = self.cli()
        await away(cli.initialize)
        return cli


async def away(function: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Call something that waits, while the server runs on this loop."""
    return await asyncio.wait_for(asyncio.to_thread(function, *arguments, **named), TIMEOUT_S)


@pytest.fixture
def timing() -> Timing:
    return TIMING


@pytest.fixture
async def site(timing: Timing) -> AsyncIterator[Site]:
    site = Site(timing)
    ready = asyncio.Event()
    running = asyncio.create_task(site.server.serve(ready.set))
    await soon(ready.wait())
    yield site
    await site.server.stop(for_good=True)
    await soon(running)


@pytest.fixture
async def cli(site: Site) -> Cli:
    """Return a CLI that has said hello."""
    return await site.connected()


# --- The bytes a restart depends on ---


def get(cli: Cli, version: str = "HTTP/1.1") -> bytes:
    """Return the request with which `cli` opens its stream."""
    headers = [f"{name}: {value}" for name, value in {**cli.headers, "mcp-session-id": cli.session}.items()]
    return "\r\n".join([f"GET /mcp {version}", *headers, "", ""]).encode()


@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/1.0"])
async def test_a_stream_is_delimited_by_the_end_of_the_connection(site: Site, cli: Cli, version: str) -> None:
    async with site.connection() as (reader, writer):
        writer.write(get(cli, version))
        head = (await soon(reader.readuntil(b"\r\n\r\n"))).decode().lower()
        assert head.startswith("http/1.1 200 ok\r\n")
        assert "transfer-encoding" not in head
        assert "content-length" not in head
        assert "connection: close" in head
        assert "content-type: text/event-stream" in head
        # No chunk sizes in between, and no event id, which some CLIs cannot digest.
        assert await soon(reader.readexactly(13)) == b"retry: 1500\n\n"
        site.tell(b'{"a": 1}')
        wanted = b'event: message\ndata: {"a": 1}\n\n'
        assert wanted in await soon(reader.readuntil(wanted))
        await site.server.stop(for_good=True)
        assert b"\r\n0\r\n" not in await soon(reader.read())


@pytest.mark.parametrize("more", ["no HTTP", "another request"])
async def test_a_stream_ends_when_its_client_says_more(site: Site, cli: Cli, more: str) -> None:
    async with site.connection() as (reader, writer):
        writer.write(get(cli))
        await soon(reader.readuntil(b"retry: 1500\n\n"))
        await site.until_streaming(True)
        writer.write(get(cli) if more == "another request" else b"what is this\r\n\r\n")
        # An answer would be read as an event.
        assert b"HTTP/1.1" not in await soon(reader.read())
        await site.until_streaming(False)


async def test_of_two_requests_in_one_segment_the_first_is_answered(site: Site, cli: Cli) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "ping"}).encode()
    headers = {**cli.headers, "mcp-session-id": cli.session, "content-length": str(len(body))}
    head = "\r\n".join(["POST /mcp HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""])
    async with site.connection() as (reader, writer):
        writer.write((head.encode() + body) * 2)
        # The connection ends after it.
        answer = (await soon(reader.read())).decode().lower()
    assert answer.startswith("http/1.1 200 ok\r\n")
    assert answer.count('"id":7') == answer.count("http/1.1") == 1


async def test_a_stream_ends_whose_client_has_gone_before_it_begins(
    site: Site, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, gone = asyncio.Event(), asyncio.Event()
    library = site.server._library  # pyright: ignore[reportPrivateUsage]

    async def late() -> object:
        asked.set()
        await gone.wait()
        return await library()

    monkeypatch.setattr(site.server, "_library", late)
    _, writer = await asyncio.open_connection("127.0.0.1", site.port)
    # Whether this version is spoken, the library is asked.
    writer.write(get(cli)[:-2] + b"mcp-protocol-version: 2025-06-18\r\n\r\n")
    await soon(asked.wait())
    writer.transport.abort()
    # What the server is asked later it answers after that.
    async with site.connection() as (reader, other):
        other.write(get(cli).replace(b"/mcp", b"/other"))
        await soon(reader.readuntil(b" 404 "))
    gone.set()
    for streaming in (True, False):
        await site.until_streaming(streaming)


async def test_an_outcome_sent_to_a_client_that_has_just_gone_comes_on_the_next_stream(site: Site, cli: Cli) -> None:
    client = socket.create_connection(("127.0.0.1", site.port), TIMEOUT_S)
    client.sendall(get(cli))
    assert b"retry: 1500" in await away(client.recv, 65536)
    await site.until_streaming(True)
    # The server has not learnt of this when it sends, and the system takes what it sends.
    client.close()
    site.sessions.post(cli.session, [b'{"outcome": 1}'], "key")
    await site.until_streaming(False)
    assert site.out.empty()
    with await away(cli.stream) as stream:
        while 'data: {"outcome": 1}' not in await away(stream.block):
            pass
        assert await soon(site.out.get()) == "key"


async def test_a_silent_stream_is_kept_alive_with_comments(cli: Cli) -> None:
    with await away(cli.stream) as stream:
        assert await away(stream.block) == ["retry: 1500"]
        for _ in range(3):
            assert (await away(stream.block, keep_alives=True))[0].startswith(":")


async def test_answers_to_posts_have_a_length_and_keep_the_connection(site: Site) -> None:
    client = httpx2.AsyncClient(headers=site.cli().headers)
    async with client:
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}
        answer = await client.post(f"http://127.0.0.1:{site.port}/mcp", json=message)
        assert answer.headers["content-type"] == "application/json"
        assert int(answer.headers["content-length"]) == len(answer.content)
        assert "connection" not in answer.headers


# --- Sessions ---


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_every_handshake_is_answered_in_its_version(site: Site, version: str) -> None:
    cli = site.cli()
    status, headers, answer = await away(cli.request, "initialize", {**INITIALIZE, "protocolVersion": version})
    assert status == 200
    assert answer["result"]["protocolVersion"] == version
    assert answer["result"]["serverInfo"]["name"] == "qwen-companion"
    assert site.sessions.get(headers["mcp-session-id"]) == KnownSession(
        headers["mcp-session-id"], version, "test-client", "1.2"
    )


async def test_the_name_that_every_cli_gives_is_none(site: Site) -> None:
    info = {"name": "streamable-http-client", "version": "1"}
    _, headers, _ = await away(site.cli().request, "initialize", {**INITIALIZE, "clientInfo": info})
    assert site.sessions.get(headers["mcp-session-id"]) == KnownSession(
        headers["mcp-session-id"], str(INITIALIZE["protocolVersion"]), "", ""
    )


async def peer(site: Site) -> Peer:
    """Return the process of the first session, once it is told."""
    while True:
        state = await soon(site.states.get())
        if state.session.peer is not None:
            return state.session.peer


async def test_the_process_of_a_client_is_known_from_its_first_connection(site: Site) -> None:
    site.find_caller = lambda connection: find_caller(connection, os.getppid())
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}
    client = httpx2.AsyncClient(headers=site.cli().headers)
    async with client:
        await client.post(f"http://127.0.0.1:{site.port}/mcp", json=message)
        found = await peer(site)
    assert (found.pid, found.directory, found.ancestors) == (os.getpid(), os.getcwd(), (os.getpid(),))


@pytest.mark.parametrize("session", ["", "restored"])
async def test_the_process_of_a_client_is_looked_for_again_when_its_stream_opens(site: Site, session: str) -> None:
    cli = site.cli(session)
    if not session:
        await away(cli.initialize)
    site.find_caller = lambda connection: find_caller(connection, os.getppid())
    with await away(cli.stream):
        assert (await peer(site)).pid == os.getpid()


IMPORT = """
import sys
from qwen_companion.ide.server import import_rpc
{before}
handler = import_rpc()
print([name for name in ("mcp.client", "mcp.server.mcpserver", "httpx2", "cryptography") if name in sys.modules])
import mcp
print(handler.__name__, mcp.ClientSession.__name__, mcp.server.MCPServer.__name__)
"""
NEEDS_ALL = """
class Newer:
    def find_spec(self, name, path, target=None):
        if name == "mcp.server.context" and "mcp.client" not in sys.modules:
            raise ImportError
sys.meta_path.insert(0, Newer())
"""


@pytest.mark.parametrize(("before", "more"), [("", False), (NEEDS_ALL, True)], ids=["lean", "a library that needs all"])
def test_of_the_library_the_server_alone_is_imported(before: str, more: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT.format(before=before)],
        cwd=PYTHON_DIRECTORY,
        capture_output=True,
        text=True,
        check=True,
    )
    modules, names = done.stdout.splitlines()
    assert (modules != "[]") is more
    assert names == "RpcHandler ClientSession MCPServer"


async def test_without_reviews_the_tools_are_not_offered_to_those_that_come_later(site: Site) -> None:
    async def tools(cli: Cli) -> list[str]:
        _, _, answer = await away(cli.request, "tools/list", {})
        return [tool["name"] for tool in answer["result"]["tools"]]

    before = await site.connected()
    site.sessions.offers_reviews = False
    later = await site.connected()
    assert await tools(before) == ["openDiff", "closeDiff"]
    assert await tools(later) == []
    result = await away(later.tool, "openDiff", filePath="/a", newContent="x")
    assert result["isError"]
    assert "no reviews" in result["content"][0]["text"]
    assert not site.editor.opened
    site.sessions.offers_reviews = True
    assert await tools(await site.connected()) == ["openDiff", "closeDiff"]
    assert await tools(later) == []


async def test_each_initialize_makes_a_session_of_its_own(site: Site) -> None:
    one, two = await site.connected(), await site.connected()
    assert one.session != two.session


async def test_equal_requests_get_equal_answers_and_sessions_of_their_own(site: Site) -> None:
    def initialize(identifier: object, params: dict[str, Any], **headers: str) -> tuple[int, dict[str, str], Any]:
        cli = site.cli()
        cli.headers |= headers
        message = {"jsonrpc": "2.0", "id": identifier, "method": "initialize", "params": params}
        status, answered, body = cli.post(json.dumps(message).encode())
        return status, {name: answered.get(name, "") for name in ("content-type", "mcp-session-id")}, body

    status, headers, first = await away(initialize, 1, INITIALIZE)
    for identifier in (2, "a", '"', -7):
        again = await away(initialize, identifier, INITIALIZE)
        assert again[0] == status
        assert again[1]["content-type"] == headers["content-type"]
        assert again[2] == {**first, "id": identifier}
        session = site.sessions.get(again[1]["mcp-session-id"])
        assert session == KnownSession(again[1]["mcp-session-id"], "2025-11-25", "test-client", "1.2")
    assert (await away(initialize, 1, INITIALIZE, Accept="text/html"))[0] == 406
    assert (await away(initialize, 1.5, INITIALIZE))[0] == 400
    assert (await away(initialize, True, INITIALIZE))[0] == 400
    later = await away(initialize, 1, {**INITIALIZE, "protocolVersion": "2025-06-18"})
    assert later[2]["result"]["protocolVersion"] == "2025-06-18"


async def test_which_tools_there_are_depends_on_the_session_alone(site: Site) -> None:
    def tools(cli: Cli, identifier: object, **more: object) -> tuple[int, dict[str, str], Any]:
        message = {"jsonrpc": "2.0", "id": identifier, "method": "tools/list", **more}
        status, headers, body = cli.post(json.dumps(message).encode())
        return status, {name: headers.get(name, "") for name in ("content-type", "mcp-session-id")}, body

    one, two = await site.connected(), await site.connected()
    site.sessions.offers_reviews = False
    without_reviews = await site.connected()
    status, headers, first = await away(tools, one, 1)
    assert [tool["name"] for tool in first["result"]["tools"]] == ["openDiff", "closeDiff"]
    for cli, identifier in ((one, 2), (two, 1), (two, '"')):
        assert await away(tools, cli, identifier) == (status, headers, {**first, "id": identifier})
    for _ in range(2):
        assert (await away(tools, without_reviews, 1))[2]["result"]["tools"] == []
    assert (await away(tools, two, 1, params={"cursor": "x"}))[2] == first
    assert (await away(tools, site.cli(), 1))[0] == 400
    assert (await away(tools, two, 1, jsonrpc="1.0"))[0] == 400
    two.headers["Accept"] = "text/html"
    assert (await away(tools, two, 1))[0] == 406


async def test_the_stream_opens_for_a_session_of_an_earlier_process(site: Site) -> None:
    with await away(site.cli("restored").stream) as stream:
        assert await away(stream.block) == ["retry: 1500"]
        assert (await away(site.cli("restored").request, "tools/list", {}))[0] == 200


@pytest.mark.parametrize("method", ["tools/list", "ping", "resources/list", "server/discover"])
async def test_without_a_session_only_initialize_is_answered(site: Site, method: str) -> None:
    status, headers, _ = await away(site.cli().request, method, {})
    assert status == 400
    assert "mcp-session-id" not in headers
    assert site.states.empty()


async def test_a_notification_without_a_session_is_refused(site: Site) -> None:
    body = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode()
    assert (await away(site.cli().post, body))[0] == 400


@pytest.mark.parametrize("params", [{}, {"protocolVersion": 5}, {**INITIALIZE, "clientInfo": {}}])
async def test_a_broken_initialize_makes_no_session(site: Site, params: dict[str, Any]) -> None:
    status, headers, answer = await away(site.cli().request, "initialize", params)
    assert status == 400
    assert "error" in answer
    assert "mcp-session-id" not in headers
    assert site.states.empty()


async def test_an_unknown_session_is_not_found(site: Site) -> None:
    for method in ("POST", "GET", "DELETE"):
        assert (await away(site.cli("never-was").post, b"{}", method))[0] == 404


async def test_delete_ends_a_session(site: Site, cli: Cli) -> None:
    with await away(cli.stream) as stream:
        assert (await away(cli.post, b"", "DELETE"))[0] == 204
        assert await away(site.gone.get_nowait) == cli.session
        assert (await away(cli.request, "tools/list", {}))[0] == 404
        await away(stream.rest)


# --- What is refused ---


async def test_the_guard_stands_before_everything(site: Site, cli: Cli) -> None:
    for name, value, wanted in (
        ("Authorization", "Bearer wrong", 401),
        ("Host", "evil.example", 421),
        ("Origin", "http://localhost", 403),
    ):
        for method in ("POST", "GET", "DELETE"):
            stranger = site.cli(cli.session)
            stranger.headers[name] = value
            assert (await away(stranger.post, b"{}", method))[0] == wanted


async def test_other_paths_and_methods_are_refused(site: Site, cli: Cli) -> None:
    status, headers, _ = await away(cli.post, b"", "PUT")
    assert (status, headers["allow"]) == (405, "GET, POST, DELETE")
    client = httpx2.AsyncClient(headers=cli.headers)
    async with client:
        assert (await client.post(f"http://127.0.0.1:{site.port}/", json={})).status_code == 404


async def test_a_stream_nobody_could_read_is_refused(cli: Cli) -> None:
    cli.headers["Accept"] = "application/json"
    assert (await away(cli.post, b"", "GET"))[0] == 406
    cli.session = ""
    assert (await away(cli.post, b"", "GET"))[0] == 400


async def test_a_later_protocol_is_told_what_there_is(site: Site) -> None:
    cli = site.cli()
    cli.headers["mcp-protocol-version"] = "2026-07-28"
    status, _, answer = await away(cli.request, "tools/list", {})
    assert status == 400
    assert answer["error"]["code"] == -32022
    assert "2025-11-25" in answer["error"]["data"]["supported"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"5", b'{"jsonrpc":"2.0"}', b"\xff"])
async def test_a_body_that_is_no_message_is_a_bad_request(cli: Cli, body: bytes) -> None:
    assert (await away(cli.post, body))[0] == 400


async def test_a_body_that_is_too_large_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MAX_BODY_BYTES", 100_000)
    status, _, answer = await away(cli.request, "tools/call", {"name": "x", "arguments": {"a": "x" * 100_000}})
    assert status == 413
    assert "100000" in answer["error"]["message"]
    assert (await away(cli.request, "tools/list", {}))[0] == 200


# --- Tools ---


async def test_both_tools_are_listed_with_their_arguments(cli: Cli) -> None:
    _, _, answer = await away(cli.request, "tools/list", {})
    listed = {tool["name"]: tool["inputSchema"] for tool in answer["result"]["tools"]}
    assert listed["openDiff"]["required"] == ["filePath", "newContent"]
    assert listed["closeDiff"]["required"] == ["filePath"]


async def test_a_review_from_proposal_to_outcome(site: Site, cli: Cli) -> None:
    with await away(cli.stream) as stream:
        result = await away(cli.tool, "openDiff", filePath="/nowhere/a", newContent="new")
        assert result == {"content": [], "isError": False}
        proposal, client, text = site.editor.opened[0]
        assert (proposal.session, client, text) == (cli.session, "test-client 1.2", "new")
        site.tools.decide(proposal.id, Decision("edited é"))
        assert await away(stream.event) == {
            "jsonrpc": "2.0",
            "method": "ide/diffAccepted",
            "params": {"filePath": "/nowhere/a", "content": "edited é"},
        }
        assert await soon(site.out.get()) == proposal.id


@pytest.mark.parametrize(
    ("escaped", "damaged"),
    [
        (r"\ud83d\ude00", False),
        (r"\\ud83d", False),
        (r"\\\\ud83d \n", False),
        (r"\uDBFF\uDFFF", False),
        (r"\ud83d", True),
        (r"\\\ud83d", True),
        (r"\ude00\ud83d", True),
        (r"\ud83d\n", True),
        (r"\ud83d\ud83d\ude00", True),
        (r"\UD83D".replace("U", "u"), True),
    ],
)
async def test_half_a_surrogate_pair_is_an_error_of_the_tool(site: Site, cli: Cli, escaped: str, damaged: bool) -> None:
    body = (
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"openDiff","arguments":'
        f'{{"filePath":"/nowhere/a","newContent":"{escaped}"}}}}}}'
    )
    status, _, answer = await away(cli.post, body.encode())
    assert status == 200
    assert answer["result"]["isError"] is damaged
    if not damaged:
        assert site.editor.opened[0][2] == json.loads(f'"{escaped}"')


async def test_a_proposal_of_many_megabytes_arrives_whole(site: Site, cli: Cli) -> None:
    text = "é\n" * (8 * 1024 * 1024)
    assert (await away(cli.tool, "openDiff", filePath="/nowhere/a", newContent=text))["content"] == []
    assert site.editor.opened[0][2] == text


async def decide_at_length(site: Site, cli: Cli) -> tuple[str, str]:
    """Decide a proposal of `cli` with many megabytes; return these and the proposal's id."""
    await away(cli.tool, "openDiff", filePath="/nowhere/a", newContent="new")
    identifier, text = site.editor.opened[0][0].id, "x" * 20_000_000
    site.tools.decide(identifier, Decision(text))
    return text, identifier


async def test_a_large_outcome_is_out_only_when_it_has_been_taken(site: Site, cli: Cli) -> None:
    with await away(cli.stream) as stream:
        text, identifier = await decide_at_length(site, cli)
        # A request goes through while the stream is full, and shows that the loop has been round.
        assert (await away(cli.request, "tools/list", {}))[0] == 200
        assert site.out.empty()
        assert (await away(stream.event))["params"]["content"] == text
        assert await soon(site.out.get()) == identifier


async def test_an_outcome_a_broken_stream_swallowed_comes_on_the_next(site: Site, cli: Cli) -> None:
    first = await away(cli.stream)
    text, identifier = await decide_at_length(site, cli)
    first.reset()
    with await away(cli.stream) as second:
        assert (await away(second.event))["params"]["content"] == text
        assert await soon(site.out.get()) == identifier


async def test_an_outcome_the_client_has_received_does_not_come_again(site: Site, cli: Cli) -> None:
    site.sessions.post(cli.session, [b'{"outcome": 1}'], "key")
    site.sessions.post(cli.session, [b'{"outcome": 2}'])
    with await away(cli.stream, "key") as stream:
        assert await soon(site.out.get()) == "key"
        assert await away(stream.event) == {"outcome": 2}


@pytest.mark.parametrize("timing", [replace(TIMING, stall=2.0)], ids=["short"])
async def test_a_client_that_reads_nothing_is_cut_and_hears_again_when_it_returns(
    site: Site, cli: Cli, caplog: pytest.LogCaptureFixture
) -> None:
    other = await site.connected()
    deaf, listening = await away(cli.stream), await away(other.stream)
    assert await away(deaf.block) == ["retry: 1500"]
    site.tell(json.dumps({"x": "x" * 20_000_000}).encode())
    assert len((await away(listening.event))["x"]) == 20_000_000
    # Its stream was opened first, so only a cut can leave the other one alone.
    streaming: dict[str, bool] = {}
    while (streaming.get(cli.session), streaming.get(other.session)) != (False, True):
        state = await soon(site.states.get())
        streaming[state.session.id] = state.streaming
    # What the system had taken before can still be read, and then it looks like a stream that ended well.
    assert len(await away(deaf.rest)) < 20_000_000
    site.tell(b'{"now": 1}')
    again = await away(cli.stream)
    assert await away(again.event) == {"now": 1}
    assert caplog.text == ""
    for stream in (deaf, listening, again):
        stream.close()


# --- The official client ---


class ContextParams(BaseModel):
    model_config = ConfigDict(extra="allow")


class Listener(ClientExtension):
    identifier = "io.example/listener"

    def __init__(self) -> None:
        self.heard: asyncio.Queue[Any] = asyncio.Queue()

    def notifications(self) -> list[NotificationBinding[Any]]:
        async def heard(params: ContextParams) -> None:
            self.heard.put_nowait(params.model_dump())

        return [NotificationBinding(method="ide/contextUpdate", params_type=ContextParams, handler=heard)]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_official_client_is_served(site: Site, mode: Literal["legacy", "auto"]) -> None:
    listener = Listener()
    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=TIMEOUT_S)
    async with (
        http,
        Client(
            streamable_http_client(f"http://127.0.0.1:{site.port}/mcp", http_client=http),
            mode=mode,
            extensions=[listener],
        ) as client,
    ):
        assert [tool.name for tool in (await client.list_tools()).tools] == ["openDiff", "closeDiff"]
        opened = await client.call_tool("openDiff", {"filePath": "/nowhere/a", "newContent": "new"})
        assert (opened.content, opened.is_error) == ([], False)
        site.editor.text = "edited"
        closed = await client.call_tool("closeDiff", {"filePath": "/nowhere/a", "suppressNotification": True})
        assert closed.content == [TextContent(text='{"content": "edited"}')]
        site.tell(b'{"jsonrpc":"2.0","method":"ide/contextUpdate","params":{"workspaceState":{}}}')
        assert await soon(listener.heard.get()) == {"workspaceState": {}}
