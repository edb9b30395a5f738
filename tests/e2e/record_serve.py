# SPDX-License-Identifier: GPL-3.0-or-later
"""Record the answers of a real `qwen serve` for the fake daemon of the unit tests: `python tests/e2e/record_serve.py`.

Writes tests/helpers/recorded_daemon.json anew.  Names of the run (paths, ids, times, the token) are replaced by made-up
ones, in the order in which they come, and the long list of slash commands is cut; all else is what the daemon sent.
"""

from __future__ import annotations

import itertools
import json
import queue
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote

import httpx2
import psutil

from clis import QWEN_SETTINGS
from model_types import QUESTIONS, Answer, Call
from sandbox import CHECKOUT, Sandbox
from scripted_model import ScriptedModel
from serve import Serve
from terminal import PATIENCE

Json = dict[str, Any]

TARGET: Final = CHECKOUT / "tests/helpers/recorded_daemon.json"
COMMANDS: Final = 3
"""How many slash commands are kept."""

MARKDOWN: Final = "Two *things*:\n\n- one\n- `two`\n\n```python\nprint(1)\n```\n"
UNKNOWN: Final = "5b1b0b0e-0000-4000-8000-000000000000"
ALLOW: Final = "proceed_once"


class Stream:
    """The events of a session, collected by a thread."""

    def __init__(self, http: httpx2.Client, session: str, headers: Mapping[str, str] | None = None) -> None:
        self._events: queue.SimpleQueue[Json | None] = queue.SimpleQueue()
        opened = threading.Event()

        def read() -> None:
            with (
                suppress(httpx2.TransportError),
                http.sse(
                    f"/session/{session}/events",
                    params={"snapshot": 1, "maxQueued": 2048},
                    headers=headers,
                    max_event_size=None,
                ) as source,
            ):
                opened.set()
                for event in source:
                    if event.data:
                        self._events.put(json.loads(event.data))
            self._events.put(None)

        threading.Thread(target=read, daemon=True).start()
        assert opened.wait(PATIENCE)

    def until(self, last: Callable[[Json], bool]) -> list[Json]:
        """All events up to the first that is `last`."""
        found: list[Json] = []
        while True:
            event = self._events.get(timeout=PATIENCE)
            assert event is not None, "the stream has ended"
            found.append(event)
            if last(event):
                return found

    def rest(self) -> list[Json]:
        """All events up to the end of the stream."""
        return list(iter(lambda: self._events.get(timeout=PATIENCE), None))


def is_kind(*kinds: str) -> Callable[[Json], bool]:
    """Whether an event is of one of `kinds`, types of events or of session updates."""
    return lambda event: event["type"] in kinds or event["data"].get("update", {}).get("sessionUpdate") in kinds


def ends(prompt: str) -> Callable[[Json], bool]:
    """Whether an event ends the turn of `prompt`."""
    return lambda event: event["type"] in ("turn_complete", "turn_error") and event["data"]["promptId"] == prompt


class Recorder:
    """One run of the daemon."""

    def __init__(self, http: httpx2.Client, model: ScriptedModel, project: Path) -> None:
        self.http = http
        self.model = model
        self.project = project
        self.turns: dict[str, list[Json]] = {}
        self.replies: Json = {}
        self.refusals: Json = {}

    def begin(self) -> tuple[str, Stream]:
        """Open a new session; return its id and the stream of its events."""
        created = self.http.post("/session", json={"sessionScope": "thread"}).json()
        self.http.headers["X-Qwen-Client-Id"] = created["clientId"]
        # The commands may have been told before anybody listens, or come after the rest.
        stream = Stream(self.http, created["sessionId"], {"Last-Event-ID": "0"})
        beginning = {"replay_complete", "session_snapshot", "available_commands_update"}
        while beginning:
            (event,) = stream.until(lambda _: True)
            beginning -= {event["type"], event["data"].get("update", {}).get("sessionUpdate")}
        return created["sessionId"], stream

    def reply(self, name: str, method: str, path: str, body: object = None) -> Json:
        """Keep the answer to a request under `name`."""
        response = self.http.request(method, path, json=body)
        assert response.is_success, response.text
        self.replies[name] = response.json()
        return self.replies[name]

    def refusal(self, name: str, method: str, path: str, body: object = None, **headers: str) -> None:
        """Keep the refusal of a request under `name`."""
        response = self.http.request(method, path, json=body, headers=headers)
        assert not response.is_success, response.text
        self.refusals[name] = {
            "status": response.status_code,
            "headers": {
                name: response.headers[name] for name in ("content-type", "retry-after") if name in response.headers
            },
            "body": response.text,
        }

    def prompt(self, session: str, text: str) -> str:
        """Send a prompt; its id."""
        blocks = [{"type": "text", "text": text}]
        return self.reply("prompt", "POST", f"/session/{session}/prompt", {"prompt": blocks})["promptId"]

    def vote(self, session: str, request: Json, option: str, **more: object) -> None:
        """Answer the permission `request`, an event."""
        path = f"/session/{session}/permission/{request['data']['requestId']}"
        self.reply("permission", "POST", path, {"outcome": {"outcome": "selected", "optionId": option}, **more})

    def tool_turn(self, name: str, stream: Stream, session: str, call: Call, option: str, **more: object) -> None:
        """Record a turn in which the model calls one tool that needs a permission, answered by `option`."""
        self.model.answer(Answer("I need a tool.", (call,)))
        prompt = self.prompt(session, f"please {name}")
        before = stream.until(is_kind("permission_request"))
        self.replies[f"status_{name}"] = self.http.get(f"/session/{session}/status").json()
        if option == ALLOW:
            # After a rejection the model is not asked.
            self.model.say("That is done.")
        self.vote(session, before[-1], option, **more)
        self.turns[name] = before + stream.until(ends(prompt))

    def record(self) -> None:
        """Go through everything."""
        capabilities = self.reply("capabilities", "GET", "/capabilities")
        root = capabilities["workspaceCwd"]
        created = self.reply("session", "POST", "/session", {"cwd": root})
        session = created["sessionId"]
        self.http.headers["X-Qwen-Client-Id"] = created["clientId"]
        stream = Stream(self.http, session)
        self.turns["start"] = stream.until(is_kind("available_commands_update"))
        below = f"/session/{session}"

        self.model.say("Hello there, this is an answer.")
        self.turns["answer"] = stream.until(ends(self.prompt(session, "hello")))
        edit = Call("write_file", {"file_path": str(self.project / "new.txt"), "content": "one\ntwo\n"})
        self.tool_turn("write", stream, session, edit, ALLOW)
        self.refusal(
            "late_vote",
            "POST",
            f"{below}/permission/{self.turns['write'][-1]['promptId']}",
            {"outcome": {"outcome": "selected", "optionId": ALLOW}},
        )
        self.tool_turn(
            "ask",
            stream,
            session,
            Call("ask_user_question", {"questions": QUESTIONS[:2]}),
            ALLOW,
            answers={"0": "sqlite", "1": "red, blue"},
        )
        self.tool_turn(
            "run",
            stream,
            session,
            Call("run_shell_command", {"command": "touch x; echo done", "is_background": False}),
            ALLOW,
        )
        other = Call("write_file", {"file_path": str(self.project / "other.txt"), "content": "three\n"})
        self.tool_turn("reject", stream, session, other, "cancel")
        self.cancelled_turn(stream, session, other)
        for name, path in (
            ("status", "/status"),
            ("context", "/context"),
            ("context_usage", "/context-usage"),
            ("supported_commands", "/supported-commands"),
        ):
            self.reply(name, "GET", below + path)
        self.reply("sessions", "GET", f"/workspace/{quote(root, safe='')}/sessions?limit=5")
        self.reply("load", "POST", f"{below}/load", {})
        self.reply("approval_mode", "POST", f"{below}/approval-mode", {"mode": "auto-edit"})
        self.refuse_all(below)
        self.turns["settings"] = stream.until(is_kind("model_switch_failed"))
        self.replay(session, self.replies["load"]["lastEventId"] - 2, self.replies["load"]["eventEpoch"])
        assert self.http.delete(below).status_code == httpx2.codes.NO_CONTENT
        self.turns["closed"] = stream.rest()

    def cancelled_turn(self, stream: Stream, session: str, call: Call) -> None:
        """Record a turn that is cancelled while a permission waits, with one prompt queued and one taken back."""
        self.model.answer(Answer(calls=(call,)))
        running = self.prompt(session, "please wait")
        events = stream.until(is_kind("permission_request"))
        queued, removed = (self.prompt(session, text) for text in ("then this", "not this"))
        self.reply("removed", "DELETE", f"/session/{session}/pending-prompts/{removed}")
        self.model.say("The second prompt is answered.")
        assert self.http.post(f"/session/{session}/cancel").status_code == httpx2.codes.NO_CONTENT
        events += stream.until(ends(running)) + stream.until(ends(queued))
        self.turns["cancel"] = events + stream.until(is_kind("pending_prompt_completed"))

    def refuse_all(self, below: str) -> None:
        """Ask for everything that is refused."""
        text = {"prompt": [{"type": "text", "text": "x"}]}
        self.refusal("unauthorized", "GET", "/capabilities", Authorization="Bearer wrong")
        self.refusal("host", "GET", "/capabilities", Host="example.org")
        self.refusal("origin", "GET", "/capabilities", Origin="http://example.org")
        self.refusal("workspace_mismatch", "POST", "/session", {"cwd": "/"})
        self.refusal("no_session", "POST", f"/session/{UNKNOWN}/prompt", text)
        self.refusal("no_route", "GET", "/no/such/route")
        self.refusal("no_client", "POST", f"{below}/heartbeat", **{"X-Qwen-Client-Id": "client_unknown"})
        self.refusal("bad_mode", "POST", f"{below}/approval-mode", {"mode": "none"})
        self.refusal("bad_model", "POST", f"{below}/model", {"modelId": "none"})
        self.refusal("too_large", "POST", f"{below}/prompt", {"prompt": [{"type": "text", "text": "x" * 11_000_000}]})

    def record_tools(self) -> None:
        """Record tools and a failing model, in a session of its own that is loaded in three ways."""
        session, stream = self.begin()
        below = f"/session/{session}"
        greeting, fresh = str(self.project / "greeting.py"), str(self.project / "fresh.txt")

        def play(name: str, *answers: Answer, meanwhile: Callable[[], object] = lambda: None) -> None:
            """Record a turn in which the model gives `answers`; allow its requests after `meanwhile`."""
            for answer in answers:
                self.model.answer(answer)
            prompt = self.prompt(session, f"please {name}")
            events: list[Json] = []
            while not events or not ends(prompt)(events[-1]):
                events += stream.until(lambda event: is_kind("permission_request")(event) or ends(prompt)(event))
                if is_kind("permission_request")(events[-1]):
                    meanwhile()
                    self.vote(session, events[-1], ALLOW)
            self.turns[name] = events

        def look() -> None:
            self.reply("load_waiting", "POST", f"{below}/load", {})
            self.reply("status_waiting", "GET", f"{below}/status")

        play("think", Answer(MARKDOWN, thought="First this,\nthen that."))
        play("read", Answer(calls=(Call("read_file", {"file_path": greeting}),)), Answer("I have read it."))
        play(
            "edit",
            Answer(calls=(Call("edit", {"file_path": greeting, "old_string": "hello ", "new_string": "good day "}),)),
            Answer("It greets better now."),
            meanwhile=look,
        )
        create = {"file_path": fresh, "old_string": "", "new_string": "new\n"}
        play("create", Answer(calls=(Call("edit", create),)), Answer("It is there."))
        steps = zip(("Look", "Write", "Test"), ("completed", "in_progress", "pending"), strict=True)
        todos = [{"id": content, "content": content, "status": status} for content, status in steps]
        play("plan", Answer(calls=(Call("todo_write", {"todos": todos}),)), Answer("That is the plan."))
        agent = {"description": "Look around", "prompt": "look around", "subagent_type": "general-purpose"}
        call = Call("agent", {**agent, "run_in_background": False})
        read = Call("read_file", {"file_path": fresh})
        play("agent", Answer(calls=(call,)), Answer("I look.", (read,)), Answer("I see."), Answer("It has looked."))
        call = Call("run_shell_command", {"command": "sleep 2; echo rested", "is_background": True})
        play("background", Answer(calls=(call,)), Answer("It runs."))
        self.model.say("It has ended.")
        self.turns["background"] += stream.until(is_kind("background_notification_turn_complete"))
        write = Call("write_file", {"file_path": str(self.project / "more.txt"), "content": "more\n"})
        play(
            "inject",
            Answer(calls=(write,)),
            Answer("I have heard."),
            meanwhile=lambda: self.reply("injected", "POST", f"{below}/mid-turn-message", {"message": "also this"}),
        )
        play("fail", Answer(refusal=401))
        self.reply("load_live", "POST", f"{below}/load", {})
        assert self.http.delete(below).status_code == httpx2.codes.NO_CONTENT
        self.reply("load_disk", "POST", f"{below}/load", {})

    def busy(self) -> None:
        """Provoke the refusals for too much at once, in a session of its own."""
        call = Call("write_file", {"file_path": str(self.project / "busy.txt"), "content": "x"})
        self.model.answer(Answer(calls=(call,)))
        session, stream = self.begin()
        self.prompt(session, "please wait")
        request = stream.until(is_kind("permission_request"))[-1]
        path = f"/session/{session}"
        self.refusal(
            "invalid_option",
            "POST",
            f"{path}/permission/{request['data']['requestId']}",
            {"outcome": {"outcome": "selected", "optionId": "none"}},
        )
        for _ in range(self.replies["capabilities"]["limits"]["maxPendingPromptsPerSession"] - 1):
            self.prompt(session, "more")
        self.refusal("queue_full", "POST", f"{path}/prompt", {"prompt": [{"type": "text", "text": "too much"}]})
        listeners = [Stream(self.http, session) for _ in range(63)]
        self.refusal("subscriber_limit", "GET", f"{path}/events")
        self.http.delete(path)
        for listener in listeners:
            listener.rest()

    def kill(self, agents: Sequence[psutil.Process]) -> None:
        """Record how a turn and its session end with the daemon's `agents`."""
        session, stream = self.begin()
        call = Call("run_shell_command", {"command": "touch y", "is_background": False})
        self.model.answer(Answer("I need a tool.", (call,)))
        self.prompt(session, "please wait")
        before = stream.until(is_kind("permission_request"))
        for agent in agents:
            agent.kill()
        self.turns["killed"] = before + stream.rest()

    def die(self, end: Callable[[], None]) -> None:
        """Record how a session ends when the daemon does, which `end` makes it do."""
        _, stream = self.begin()
        end()
        self.turns["died"] = stream.rest()

    def replay(self, session: str, last: int, epoch: str) -> None:
        """Record how streams from a cursor begin: a good one, and one from another epoch."""
        for name, in_epoch in (("replay", epoch), ("resync", "another")):
            headers = {"Last-Event-ID": str(last), "X-Qwen-Event-Epoch": in_epoch}
            events = Stream(self.http, session, headers).until(is_kind("session_snapshot"))
            self.turns[name] = events if name == "replay" else events[:1]


class Names:
    """Replaces the ids and paths of the run by made-up names."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._ids: dict[str, str] = {}
        self._times = itertools.count(1_700_000_000_000)

    def clean(self, text: str) -> str:
        """`text` without names of the run."""
        text = text.replace(self._root, "/home/user")
        text = re.sub(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", self._id, text)
        text = re.sub(r"\bbg_[0-9a-f]{8}\b", "bg_00000000", text)
        text = re.sub(r"\b1[0-9]{12}\b", lambda _: str(next(self._times)), text)
        return re.sub(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "2026-01-01T00:00:00.000Z", text)

    def _id(self, match: re.Match[str]) -> str:
        return self._ids.setdefault(match[0], f"{len(self._ids):08x}-0000-4000-8000-000000000000")


def shorten(value: Any) -> Any:
    """Return `value` with only the first slash commands and skills, and without long parts that no test uses."""
    if isinstance(value, list):
        return [shorten(item) for item in cast("Sequence[Any]", value)]
    if not isinstance(value, dict):
        return value
    members = cast("Json", value)
    lists = ("availableCommands", "availableSkills")
    return {key: item[:COMMANDS] if key in lists else shorten(item) for key, item in members.items()}


def in_lines(found: Mapping[str, Mapping[str, Any]]) -> str:
    """`found` as JSON with one answer and one event per line."""

    def entry(value: Any) -> str:
        if not isinstance(value, list):
            return json.dumps(shorten(value))
        return "[\n" + ",\n".join(json.dumps(shorten(event)) for event in cast("Sequence[Json]", value)) + "\n]"

    sections = (
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f"{json.dumps(key)}: {entry(value)}" for key, value in section.items())
        + "\n}"
        for name, section in found.items()
    )
    return "{\n" + ",\n".join(sections) + "\n}\n"


def main() -> None:
    """Run the daemon, record, write."""
    sandbox = Sandbox()
    sandbox.write_cli_settings({**QWEN_SETTINGS, "tools": {**QWEN_SETTINGS["tools"], "todoWrite": {"enabled": True}}})
    with ScriptedModel() as model:
        serve = Serve(sandbox, {**sandbox.environment(), **model.environment()})
        try:
            serve.start()
            http = httpx2.Client(
                base_url=serve.url,
                headers={"Authorization": f"Bearer {serve.token}"},
                trust_env=False,
                timeout=PATIENCE,
                limits=httpx2.Limits(max_connections=None),
            )
            recorder = Recorder(http, model, sandbox.project)
            with http:
                recorder.record()
                recorder.record_tools()
                recorder.busy()
                recorder.kill([process for process in sandbox.processes() if "--acp" in process.cmdline()])
                recorder.die(serve.close)
        finally:
            serve.close()
    text = in_lines({"replies": recorder.replies, "refusals": recorder.refusals, "turns": recorder.turns})
    assert serve.token not in text
    TARGET.write_text(Names(sandbox.root).clean(text), encoding="ascii")
    sandbox.remove()


if __name__ == "__main__":
    main()
