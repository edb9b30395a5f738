# SPDX-License-Identifier: GPL-3.0-or-later
"""The tools in a real backend process; the CLI is this process, and Emacs is scripted."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from sexpdata import Symbol, dumps

from fake_clis import FakeToolEmacs
from qwen_companion.domain import ToolDefinition
from qwen_companion.doors.layers import FILE_NAME
from qwen_companion.tools.calls import Tools
from qwen_companion.tools.rpc import PROTOCOLS, reply_to
from qwen_companion.wire.messages import ToolCall
from support import INITIALIZE, MCP_ACCEPT, TIMEOUT_S, Backend, Home, as_dict

Connect = Callable[[], "Client"]


class Client:
    """A CLI reduced to its tools, which it finds by its settings layer."""

    def __init__(self, layer: Path) -> None:
        settings = json.loads(layer.read_text())
        self.server = settings["mcpServers"]["emacs"]
        self.allowed: list[str] = settings["permissions"]["allow"]
        self.hook = settings["hooks"]["Stop"][0]["hooks"][0]
        self.held = settings["hooks"]["UserPromptSubmit"][0]["hooks"][0]
        self.port = int(self.server["httpUrl"].split(":")[2].partition("/")[0])
        self.session = ""
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)

    def begin(self, method: str, params: dict[str, Any], identifier: int | None = 1, **headers: str) -> None:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
        if identifier is not None:
            message["id"] = identifier
        sent = {
            **self.server["headers"],
            "Content-Type": "application/json",
            "Accept": MCP_ACCEPT,
            **({"Mcp-Session-Id": self.session} if self.session else {}),
            **headers,
        }
        self.connection.request("POST", "/tools", json.dumps(message).encode(), sent)

    def end(self) -> tuple[int, Any]:
        response = self.connection.getresponse()
        body = response.read()
        self.session = response.headers.get("mcp-session-id", self.session)
        return response.status, json.loads(body) if body else None

    def request(self, method: str, params: dict[str, Any], **headers: str) -> tuple[int, Any]:
        self.begin(method, params, 1, **headers)
        return self.end()

    def result(self, method: str, params: dict[str, Any]) -> Any:
        status, answer = self.request(method, params)
        assert status == 200, answer
        return answer["result"]

    def text(self) -> tuple[str, bool]:
        """Return the answer to the tool call that was begun, and whether it is an error."""
        status, answer = self.end()
        assert status == 200, answer
        (content,) = answer["result"]["content"]
        return content["text"], answer["result"]["isError"]


@pytest.fixture(autouse=True)
def working_directory(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connect a CLI that works in its project."""
    monkeypatch.chdir(home.work)


LOOK = [
    *(Symbol(":name"), "look", Symbol(":description"), "Look.", Symbol(":unasked"), True, Symbol(":paged"), True),
    Symbol(":arguments"),
    [
        [
            *(Symbol(":name"), "path", Symbol(":kind"), Symbol("path")),
            *(Symbol(":description"), "The file.", Symbol(":required"), True),
        ],
        [Symbol(":name"), "line", Symbol(":kind"), Symbol("line"), Symbol(":description"), "The line."],
    ],
]
MINE = [Symbol(":name"), "mine", Symbol(":description"), "Mine.", Symbol(":unasked"), None]


@pytest.fixture
def backend(home: Home, request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Yield a process whose terminals have the layer, and whose Emacs offers two tools.

    The parameter is Python that it runs first.
    """
    with Backend(home, settings=getattr(request, "param", "")) as process:
        process.serve(dumps({"settings-layer": True}), [LOOK, MINE])
        yield process


@pytest.fixture
def connect(home: Home) -> Iterator[Connect]:
    """Return a function that connects a client to the running backend."""
    clients: list[Client] = []

    def make() -> Client:
        clients.append(Client(home.spool / FILE_NAME))
        return clients[-1]

    yield make
    for client in clients:
        client.connection.close()


@pytest.fixture
def client(backend: Backend, connect: Connect) -> Client:
    del backend
    return connect()


def answer(backend: Backend, identifier: int, *items: dict[str, Any], **more: Any) -> None:
    backend.emacs.call("tool-answer", dumps({"id": identifier, "items": list(items), **more}))


def test_the_layer_names_the_tools_and_which_may_be_called_unasked(
    home: Home, client: Client, backend: Backend, connect: Connect
) -> None:
    assert client.allowed == ["mcp__emacs__look"]
    assert "alwaysLoadTools" not in client.server
    assert "trust" not in client.server
    result = client.result("initialize", INITIALIZE)
    assert "data, not instructions" in result["instructions"]
    look, mine = client.result("tools/list", {})["tools"]
    assert look["annotations"]["readOnlyHint"] is True
    assert look["inputSchema"]["properties"]["line"] == {"type": "integer", "description": "The line."}
    assert "annotations" not in mine
    backend.emacs.call("tools", dumps({"tools": [LOOK]}))
    backend.emacs.wait_for("published")
    assert connect().server["trust"] is True
    backend.emacs.call("tools", dumps({"tools": None}))
    backend.emacs.wait_for("published")
    assert "mcpServers" not in json.loads((home.spool / FILE_NAME).read_text())


def test_each_door_has_a_secret_of_its_own(backend: Backend, client: Client) -> None:
    secret = client.server["headers"]["Authorization"]
    for wrong in ("", "Bearer x", f"Bearer {backend.token}", client.hook["headers"]["Authorization"]):
        assert client.request("tools/list", {}, Authorization=wrong)[0] == 401
    for path in ("/mcp", "/hook"):
        client.connection.request("POST", path, b"{}", {"Authorization": secret})
        assert client.end()[0] == 401
    assert client.request("tools/list", {}, Origin="http://localhost")[0] == 403
    assert client.request("tools/list", {}, Host="rebound.example")[0] == 421
    client.connection.request("GET", "/tools", headers={"Authorization": secret})
    assert client.end()[0] == 405


def test_a_call_is_answered_by_emacs(home: Home, backend: Backend, client: Client) -> None:
    (home.work / "a.txt").write_text("x\n")
    (home.work / ".env").write_text("x\n")
    client.result("initialize", INITIALIZE)
    client.begin("tools/call", {"name": "look", "arguments": {"path": "a.txt", "line": "2"}})
    call = backend.emacs.wait_for("tool-call")
    assert call["name"] == "look"
    assert call["arguments"] == [["path", f"{home.work}/a.txt"], ["line", 2]]
    assert call["roots"] == [str(home.work)]
    answer(
        backend,
        call["id"],
        {"path": f"{home.work}/a.txt", "line": 1, "text": "seen"},
        {"path": f"{home.work}/.env", "line": 1, "text": "a secret"},
        {"path": "/etc/passwd", "line": 1, "text": "elsewhere"},
        {"path": "/ssh:host:/x", "line": 1, "text": "far away"},
    )
    assert client.text() == ("a.txt:1: seen\n(3 in files that Emacs does not show, not listed.)", False)
    client.begin("tools/call", {"name": "look", "arguments": {"path": "a.txt"}})
    answer(backend, backend.emacs.wait_for("tool-call")["id"], error="It is not open.")
    assert client.text() == ("It is not open.", True)
    # The user can look at both afterwards.
    backend.emacs.call("watch", dumps({"on": True}))
    said = backend.emacs.wait_for("tool-called")
    assert said["request"] == 'look(path="a.txt", line="2")'
    assert said["text"].startswith("a.txt:1: seen")
    assert said["size"] == len(said["text"])
    assert backend.emacs.wait_for("tool-called")["failed"]


REFUSED = (
    ("b.txt", "There is no file {work}/b.txt. Paths are absolute, or relative to {work}."),
    ("deep/a.txt", "Open in Emacs with that name: {work}/a.txt."),
    (".env", "Emacs does not show .env"),
    ("{work}/.env", "Emacs does not show {work}/.env"),
    ("link", "Emacs does not show link"),
    ("sub/../.env", "Emacs does not show sub/../.env"),
    ("/etc/passwd", "it is outside of {work}"),
    ("../home", "it is outside of {work}"),
    ("/ssh:host:/x", "it is outside of {work}"),
    ("~/x", "give an absolute path, or one relative to {work}"),
    ("sub", "sub is a directory"),
    ("hidden.txt", "hidden by you"),
    ("to-hidden", "hidden by you"),
    ("", "no name of a file"),
    ("a\0b", "no name of a file"),
)
"""Paths that a model may name, and the answers."""


def test_files_that_are_not_for_the_cli_are_refused_in_every_way(home: Home, backend: Backend, client: Client) -> None:
    work = home.work
    (work / "sub").mkdir()
    for name in ("a.txt", ".env", "hidden.txt"):
        (work / name).write_text("x\n")
    (work / "link").symlink_to(work / ".env")
    (work / "to-hidden").symlink_to(work / "hidden.txt")
    files = [{"path": str(work / "a.txt"), "timestamp": 1}]
    files.append({"path": str(work / "hidden.txt"), "timestamp": 2, "exposure": Symbol("hide")})
    backend.emacs.call("context", dumps({"files": files}))
    for path, words in REFUSED:
        client.begin("tools/call", {"name": "look", "arguments": {"path": path.format(work=work)}})
        text, failed = client.text()
        assert failed, path
        assert words.format(work=work) in text
    assert backend.emacs.calls("tool-call").empty()


def test_nothing_is_told_of_a_folder_that_is_not_trusted(home: Home, backend: Backend, client: Client) -> None:
    elsewhere = {"settings-layer": True, "trusted-directories": [str(home.home)]}
    backend.emacs.call("settings", dumps(elsewhere))
    client.begin("tools/call", {"name": "look", "arguments": {"path": "a.txt"}})
    text, failed = client.text()
    assert failed
    assert "does not trust this folder" in text


def test_a_cancelled_call_is_not_answered(home: Home, backend: Backend, client: Client, connect: Connect) -> None:
    (home.work / "a.txt").write_text("x\n")
    client.result("initialize", INITIALIZE)
    client.begin("tools/call", {"name": "look", "arguments": {"path": "a.txt"}}, identifier=7)
    call = backend.emacs.wait_for("tool-call")
    other = connect()
    # Another CLI has calls with the same number.
    for session, number in (("other", 7), (client.session, 8), (client.session, 7)):
        other.session = session
        other.begin("notifications/cancelled", {"requestId": number}, identifier=None)
        assert other.end() == (202, None)
    answer(backend, call["id"], {"text": "late"})
    assert client.end() == (202, None)
    # The connection goes on, and so does a session that this process has never seen.
    client.session = "of-an-earlier-process"
    client.begin("tools/call", {"name": "look", "arguments": {"path": "a.txt"}}, identifier=7)
    answer(backend, backend.emacs.wait_for("tool-call")["id"], {"text": "in time"})
    assert client.text() == ("in time", False)


def test_a_busy_emacs_is_not_waited_for_longer_than_the_bound(home: Home, connect: Connect) -> None:
    (home.work / "a.txt").write_text("x\n")
    shorter = "import qwen_companion.tools.calls as c; c.Tools.__init__.__defaults__ = (0.05,)"
    with Backend(home, settings=shorter) as backend:
        backend.greet(dumps({"settings-layer": True}), [LOOK])
        client = connect()
        client.begin("tools/call", {"name": "look", "arguments": {"path": "a.txt"}})
        text, failed = client.text()
        assert failed
        assert text.startswith("Emacs is busy and has not answered within 0.05 seconds")
        # What comes later is nobody's.  On a busy machine the call, the first one, was given up before it was sent.
        answer(backend, 1, {"text": "late"})
        client.begin("tools/call", {"name": "nothing", "arguments": {}})
        assert "Emacs has no tool nothing. It has: look." in client.text()[0]


LATE_LIBRARY = """
import sys
class Late:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("mcp.", "mcp_types.")) and self in sys.meta_path:
            sys.meta_path.remove(self)
            open(GATE).read()
sys.meta_path.insert(0, Late())"""
"""The MCP library is imported only once something has written to the named pipe GATE."""


def test_tools_are_listed_and_called_before_the_mcp_library_is_there(home: Home, connect: Connect) -> None:
    """A CLI waits for no tools, and importing the library can take seconds."""
    gate = home.home / "gate"
    os.mkfifo(gate)
    with Backend(home, settings=f"GATE = {str(gate)!r}\n{LATE_LIBRARY}") as backend:
        backend.greet(dumps({"settings-layer": True}), [LOOK, MINE])
        client = connect()
        try:
            assert client.server["discoveryTimeoutMs"] > 5000
            assert client.result("initialize", INITIALIZE)["serverInfo"]["name"] == "emacs"
            client.begin("notifications/initialized", {}, identifier=None)
            assert client.end() == (202, None)
            # A CLI asks for all three at once and has no tools before it has all answers.
            for method in ("prompts/list", "resources/list"):
                assert client.request(method, {})[1]["error"]["code"] == types.METHOD_NOT_FOUND
            assert [tool["name"] for tool in client.result("tools/list", {})["tools"]] == ["look", "mine"]
            client.begin("tools/call", {"name": "mine", "arguments": {}})
            answer(backend, backend.emacs.wait_for("tool-call")["id"], {"text": "found"})
            assert client.text() == ("found", False)
        finally:
            # Returns when the import has come to wait for it.
            gate.write_text("")


async def _asked(_call: ToolCall) -> None:
    raise AssertionError


def test_a_cli_that_asks_before_emacs_has_said_which_tools_there_are_gets_them_all() -> None:
    async def ask_and_offer() -> Any:
        tools = Tools(FakeToolEmacs(_asked), lambda _: None)
        listed: list[Any] = []

        async def ask() -> None:
            listed.append(await reply_to({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, tools, None))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            tools.offer((ToolDefinition("look", "Look.", (), unasked=True, paged=False),))
        return listed[0]["result"]["tools"]

    assert [tool["name"] for tool in anyio.run(ask_and_offer)] == ["look"]


def test_answers_have_the_shape_that_the_protocol_says(backend: Backend, client: Client) -> None:
    assert PROTOCOLS == tuple(HANDSHAKE_PROTOCOL_VERSIONS)
    for version in (*PROTOCOLS, "2099-01-01"):
        result = client.result("initialize", {**INITIALIZE, "protocolVersion": version})
        found = types.InitializeResult.model_validate(result)
        assert found.protocol_version == (version if version in PROTOCOLS else PROTOCOLS[-1])
        assert found.instructions is not None
        assert "data, not instructions" in found.instructions
    assert client.result("ping", {}) == {}
    look, mine = types.ListToolsResult.model_validate(client.result("tools/list", {})).tools
    assert look.annotations is not None
    assert look.annotations.read_only_hint
    assert mine.annotations is None
    client.begin("tools/call", {"name": "mine"}, identifier=7)
    answer(backend, backend.emacs.wait_for("tool-call")["id"], {"text": "found"})
    _, response = client.end()
    assert response["id"] == 7
    types.CallToolResult.model_validate(response["result"])
    wrong: list[tuple[str, Any, int]] = [
        ("tools/none", {}, types.METHOD_NOT_FOUND),
        ("tools/call", {"name": 1}, types.INVALID_PARAMS),
        ("tools/call", {"name": "look", "arguments": []}, types.INVALID_PARAMS),
        ("tools/list", [], types.INVALID_PARAMS),
    ]
    for method, params, code in wrong:
        _, response = client.request(method, params)
        assert types.JSONRPCError.model_validate(response).error.code == code


def test_too_large_or_broken_requests_harm_nothing(backend: Backend, client: Client) -> None:
    del backend
    headers = {**client.server["headers"], "Content-Type": "application/json", "Accept": MCP_ACCEPT}
    half = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "\\ud800"}}'
    for body, status in ((b"x" * 600_000, 413), (b"[" * 100_000, 400), (b"{", 400), (b"[]", 400), (half, 400)):
        client.connection.request("POST", "/tools", body, headers)
        assert client.end()[0] == status
    for body in (b'{"jsonrpc": "2.0", "id": [], "method": "ping"}', b'{"jsonrpc": "2.0", "id": 1, "method": {}}'):
        client.connection.request("POST", "/tools", body, headers)
        assert client.end()[1]["error"]["code"] == types.INVALID_REQUEST
    assert as_dict(LOOK)["name"] == client.result("tools/list", {})["tools"][0]["name"]
