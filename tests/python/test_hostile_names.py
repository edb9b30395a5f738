# SPDX-License-Identifier: GPL-3.0-or-later
"""Every string field of every door with text that names no file, or one that nobody may touch."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any, get_args

import pytest
from sexpdata import Symbol, dumps

from qwen_companion.doors import events
from qwen_companion.doors.layers import FILE_NAME
from support import TIMEOUT_S, Backend, Home

pytestmark = pytest.mark.long

LONG = "/a" * 2**19
"""1 MB, with as many directories as can be."""

OUTSIDE_TEXT = "of nobody's business\n"

EDITS = ("write_file", "notebook_edit")

COMMON = ("UserPromptSubmit", "PreToolUse", "PostToolUse")


def hostile_names(home: Home) -> list[str]:
    """Return one text of each kind; the file outside of the project and a pipe in it are there."""
    outside = home.home / "outside.txt"
    outside.write_text(OUTSIDE_TEXT)
    pipe = home.work / "pipe"
    os.mkfifo(pipe)
    return [
        *(f"{home.work}/a\0b", "\0", f"{home.work}\0", f"{home.work}/\ud800", "\udcff", "", "a", "~", "~/a", "~\0"),
        *("..", "../home/outside.txt", f"{home.work}/../home/outside.txt", str(outside), "/proc/self/root/etc/passwd"),
        *(f"/proc/self/root{outside}", "/dev/zero", "/dev/full", str(pipe), f"{pipe}/a", "/", "/" + "x" * 300),
        *("/a" * 3000, LONG),
    ]


def hook_calls(home: Home, name: str) -> Iterator[dict[str, Any]]:
    """Yield the events that differ from what a CLI sends in one field, which is `name`."""
    kinds = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, events.Event)]
    for kind in filter(lambda kind: kind.name, kinds):
        usual = {"hook_event_name": kind.name, "session_id": "s", "cwd": str(home.work), "permission_mode": "auto"}
        usual |= {"prompt": "x", "tool_name": "write_file", "tool_input": {"file_path": "a", "content": "x"}}
        texts = [key for key, field in kind.model_fields.items() if str in (field.annotation, *args_of(field))]
        # The listeners look at the directory of each in the same way, and into no other text that is no name.
        of_all = name.endswith("/a\0b")
        yield from ({**usual, key: name} for key in texts if of_all or (key == "cwd" and kind.name in COMMON))
        if issubclass(kind, events.ToolEvent) and (of_all or kind.name in COMMON):
            given = {"file_path": name, "notebook_path": name, "content": "x"}
            yield from ({**usual, "tool_name": tool, "tool_input": given} for tool in EDITS[: 2 if of_all else 1])


def is_unicode(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def args_of(field: Any) -> tuple[Any, ...]:
    return get_args(field.annotation)


JOURNAL = ("journal-files", "journal-texts", "journal-spans", "journal-busy")


def emacs_calls(home: Home, name: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the calls of Emacs about the file or directory `name`."""
    scope: dict[str, object] = {"root": str(home.work), "scope": Symbol("all")}
    yield "context", {"files": [{"path": name, "timestamp": 1}], "active": name}
    yield "context", {"files": [{"path": name, "timestamp": 1, "exposure": Symbol("hide")}]}
    yield "journal-files", {"id": 1, **scope, "root": name}
    yield "journal-files", {"id": 1, **scope, "scope": Symbol("turn"), "turn": name}
    yield "journal-texts", {"id": 1, **scope, "files": [{"path": name, "previous": name}]}
    yield "journal-spans", {"id": 1, "path": name}
    yield "journal-seen", {"turn": name, "path": name, "hunks": [name], "seen": True}
    yield "journal-wrote", {"paths": [name]}
    yield "journal-wrote", {"paths": [name], "turn": name, "label": name}
    yield "journal-busy", {"id": 1, "paths": [name]}
    yield "list-recorded", {"id": 1, "directory": name}
    yield "prompt", {"file": name, "text": "x"}
    yield "outcome", {"id": name, "outcome": Symbol("rejected")}
    # Each of these has the discovery files written.
    if name.endswith("/a\0b"):
        yield "settings", {**SETTINGS, "trust": [name], "patterns": [name], "auth-sources": [name]}
        yield "settings", SETTINGS
        yield "roots", {"roots": [name, str(home.work)]}


SETTINGS: dict[str, object] = {
    "settings-layer": True,
    "review-edits": Symbol("all"),
    "journal": True,
}
LOOK = [
    *(Symbol(":name"), "look", Symbol(":description"), "Look.", Symbol(":unasked"), True, Symbol(":arguments")),
    [[Symbol(":name"), "path", Symbol(":kind"), Symbol("path"), Symbol(":description"), "A file."]],
]


class Site:
    """A backend, whose Emacs refuses every review, and what this process has to know to be its CLI."""

    def __init__(self, backend: Backend, home: Home) -> None:
        self.backend, self.emacs = backend, backend.connect()
        self.emacs.handlers["proposal-open"] = lambda _values: "no"
        self.emacs.handlers["tool-call"] = self.answer_tool
        self.emacs.call("settings", dumps(SETTINGS))
        self.emacs.call("tools", dumps({"tools": [LOOK], "after-edits": True, "with-prompts": True}))
        self.emacs.call("roots", dumps({"roots": [str(home.work)]}))
        published = self.emacs.wait_for("published")
        backend.port, backend.token = published["port"], published["token"]
        self.emacs.wait_for("serving")
        self.layer = json.loads((home.spool / FILE_NAME).read_text())

    def answer_tool(self, values: dict[str, Any]) -> object:
        self.emacs.send(f"(call {10**6 + values['id']} tool-answer ({dumps(self.emacs.secret)} (:id {values['id']})))")
        return None

    def post(self, connection: http.client.HTTPConnection, entry: dict[str, Any], body: object) -> tuple[int, bytes]:
        """Send `body` to the door that `entry` of the layer names; return status and answer."""
        path = "/" + (entry.get("url") or entry["httpUrl"]).split("/", 3)[3]
        data = json.dumps(body).encode("ascii")
        connection.request("POST", path, data, {**entry["headers"], "Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()

    def check_end(self) -> None:
        """Check that the process has gone on until it is told to end, and has nothing to say then."""
        assert self.backend.process.poll() is None, self.backend.error_text()
        self.emacs.send(f"(call 999999999 stop ({dumps(self.emacs.secret)} nil))")
        assert self.backend.exit_code() == 0
        assert self.backend.error_text() == ""


@pytest.fixture
def site(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.chdir(home.work)
    with Backend(home) as backend:
        yield Site(backend, home)


def check_untouched(home: Home) -> None:
    """Nothing outside of the project was written, nor was any of it recorded."""
    assert (home.home / "outside.txt").read_text() == OUTSIDE_TEXT
    state = home.home / ".local/state"
    recorded = b"".join(path.read_bytes() for path in state.rglob("*") if path.is_file())
    assert OUTSIDE_TEXT.encode() not in recorded


def test_no_text_at_a_door_ends_the_process_or_goes_unanswered(home: Home, site: Site) -> None:
    names = hostile_names(home)
    try_hooks(home, site, names)
    try_emacs(home, site, names)
    try_tools(site, names)
    check_untouched(home)
    site.check_end()


def try_hooks(home: Home, site: Site, names: list[str]) -> None:
    entry = site.layer["hooks"]["PreToolUse"][0]["hooks"][0]
    with closing(http.client.HTTPConnection("127.0.0.1", site.backend.port, timeout=TIMEOUT_S)) as connection:
        for name in names:
            for event in hook_calls(home, name):
                status, answer = site.post(connection, entry, event)
                what = (event["hook_event_name"], event.get("tool_name"), name[:40], answer[:200])
                assert status == 200, what
                assert isinstance(json.loads(answer), dict), what


def try_tools(site: Site, names: list[str]) -> None:
    entry = site.layer["mcpServers"]["emacs"]
    cli = site.backend.cli()
    with closing(http.client.HTTPConnection("127.0.0.1", site.backend.port, timeout=TIMEOUT_S)) as connection:
        for name in names:
            for call in ({"name": "look", "arguments": {"path": name}}, {"name": name}):
                message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
                status, answer = site.post(connection, entry, message)
                # Half a character is refused as no message, and 1 MB as too large for one.
                assert status == (413 if name == LONG else 200 if is_unicode(name) else 400), (name[:40], answer[:200])
            for tool, more in (("openDiff", {"newContent": "x"}), ("closeDiff", {})):
                assert cli.tool(tool, filePath=name, **more)["content"]


def try_emacs(home: Home, site: Site, names: list[str]) -> None:
    site.emacs.call("journal-watch", dumps({"on": True}))
    (home.work / "a").write_text("x")
    entry = site.layer["hooks"]["PreToolUse"][0]["hooks"][0]
    with closing(http.client.HTTPConnection("127.0.0.1", site.backend.port, timeout=TIMEOUT_S)) as connection:
        prompt = {"hook_event_name": "UserPromptSubmit", "session_id": "s", "cwd": str(home.work), "prompt": "x"}
        assert site.post(connection, entry, prompt)[0] == 200
    # Emacs sends UTF-8.
    for name in filter(is_unicode, names):
        for method, values in emacs_calls(home, name):
            if name not in (names[0], "") and method not in JOURNAL:
                continue
            assert site.emacs.call(method, dumps(values))[0].startswith("return"), (method, name[:40])
            if method in JOURNAL:
                site.emacs.wait_for("journal-reply")
            if method == "list-recorded":
                site.emacs.wait_for("recorded-sessions")
