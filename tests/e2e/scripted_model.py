# SPDX-License-Identifier: GPL-3.0-or-later
"""A language model on loopback that answers by a script; the only simulated part of the end-to-end tests.

In a test:

    with ScriptedModel() as model:
        model.call("write_file", file_path="/tmp/x", content="hello")
        model.say("Written.")
        ...start a CLI with model.environment()...
        request = model.next_request()

The demo serves its own script with `ModelServer`.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, cast

import gemini_api
import openai_chat
from limit import limit_s
from model_types import Answer, Call, ModelRequest

Responder = Callable[[ModelRequest], Answer]

# A request of the user's conversation offers this tool; what a CLI asks for itself (a title, a summary, a
# classification) offers none.
MAIN_TOOL: Final = "write_file"


SUBAGENT_TASK: Final = "You are the subagent of this script."
"""The prompt of a subagent; its conversation is told from the user's by it."""

# What Qwen Code in its mode `auto` asks about a command: whether it is to be kept from running.
CLASSIFICATION: Final = "shouldBlock"


class ScriptEndedError(AssertionError):
    """The CLI asked the model once more than the script has turns."""


class ModelServer:
    """Serves a model over HTTP on a free port of 127.0.0.1; `respond` is called in a thread for each request."""

    def __init__(self, respond: Responder) -> None:
        class Handler(_Handler):
            responder = staticmethod(respond)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="scripted-model", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.server_port

    def environment(self) -> dict[str, str]:
        """Return the variables by which a CLI finds this model."""
        return {
            "OPENAI_API_KEY": "no-key-needed",
            "OPENAI_BASE_URL": f"http://127.0.0.1:{self.port}/v1",
            "OPENAI_MODEL": openai_chat.MODEL_NAME,
            "GEMINI_API_KEY": "no-key-needed",
            "GOOGLE_GEMINI_BASE_URL": f"http://127.0.0.1:{self.port}",
            # The environment of whoever runs this may name a proxy; it has no business on loopback.
            "NO_PROXY": "127.0.0.1",
        }

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    responder: Responder

    def do_GET(self) -> None:
        if self.path == openai_chat.MODELS_PATH:
            self._send_json(openai_chat.models())
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        body = cast("Mapping[str, Any]", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        try:
            if self.path == openai_chat.CHAT_PATH:
                self._answer(openai_chat.parse(body), openai_chat.stream, openai_chat.completion)
                return
            match gemini_api.method(self.path):
                case "streamGenerateContent":
                    self._answer(gemini_api.parse(body, streaming=True), gemini_api.stream, gemini_api.response)
                case "generateContent":
                    self._answer(gemini_api.parse(body, streaming=False), gemini_api.stream, gemini_api.response)
                case "countTokens":
                    self._send_json(gemini_api.token_count())
                case _:
                    self.send_error(404)
        except ConnectionError:
            # The CLI was killed or the user pressed Esc; nobody is left to answer.
            self.close_connection = True

    def _answer(
        self,
        request: ModelRequest,
        stream: Callable[[Answer], Iterable[bytes]],
        whole: Callable[[Answer], Mapping[str, Any]],
    ) -> None:
        """Answer `request` in the words of `stream`, or of `whole` when it does not want a stream."""
        answer = self.responder(request)
        if answer.refusal:
            self._send_json({"error": {"message": "The model is not to be had."}}, answer.refusal)
        elif request.streaming:
            self._send_stream(stream(answer))
        else:
            self._send_json(whole(answer))

    def _send_json(self, value: Mapping[str, Any], status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_stream(self, events: Iterable[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for event in events:
            self.wfile.write(event)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the screen belongs to the program under test."""


def side_answer(request: ModelRequest) -> Answer | None:
    """Return the answer to a CLI's own request, or None when the request belongs to the user's conversation."""
    if MAIN_TOOL in request.tools:
        return None
    if CLASSIFICATION in json.dumps(request.body):
        return Answer(json.dumps({CLASSIFICATION: False}))
    return Answer("{}" if request.wants_json else "Scripted")


class ScriptedModel:
    """A model for one test: turns are pushed beforehand, requests are looked at afterwards."""

    def __init__(self) -> None:
        self._turns: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._subagent_turns: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._requests: queue.SimpleQueue[ModelRequest] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self.bodies: list[Mapping[str, Any]] = []
        """Every request body that came, for the records of a failed test."""
        self.unscripted: list[ModelRequest] = []
        """Requests of the conversation for which the script had no turn."""
        self._server = ModelServer(self._respond)
        self.environment = self._server.environment

    def __enter__(self) -> ScriptedModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._server.close()

    def close(self) -> None:
        """Stop serving; raise ScriptEndedError if there was a request without a turn."""
        self._server.close()
        if self.unscripted:
            raise ScriptEndedError(f"no turn was scripted for:\n{self.unscripted[0].prompt}")

    def reset(self) -> bool:
        """Forget turns and requests for the next test; return whether each request had a turn, and each turn one."""
        clean = self._turns.empty() and self._subagent_turns.empty() and not self.unscripted
        while not self._requests.empty():
            self._requests.get_nowait()
        with self._lock:
            self.bodies.clear()
        return clean

    def say(self, text: str) -> None:
        """Script a turn: text only, which ends the model's answer to a prompt."""
        self._turns.put(Answer(text))

    def call(self, tool: str, **arguments: Any) -> None:
        """Script a turn that calls one tool."""
        self.calls(Call(tool, arguments))

    def calls(self, *calls: Call) -> None:
        """Script a turn that calls several tools."""
        self._turns.put(Answer(calls=calls))

    def answer(self, answer: Answer) -> None:
        """Script any turn."""
        self._turns.put(answer)

    def start_subagent(self, *turns: Answer, waits: bool = False) -> None:
        """Script a turn that starts a subagent, and the `turns` of that, which come at any time.

        It works in the background, or with `waits` the conversation waits for it.
        """
        more = {"run_in_background": False} if waits else {}
        self.call("agent", description="help", prompt=SUBAGENT_TASK, subagent_type="general-purpose", **more)
        for turn in turns:
            self._subagent_turns.put(turn)

    def next_request(self) -> ModelRequest:
        """Return the next request of the conversation, as soon as it comes."""
        timeout = limit_s()
        try:
            return self._requests.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"the CLI asked the model nothing for {timeout:g} s") from None

    def _respond(self, request: ModelRequest) -> Answer:
        with self._lock:
            self.bodies.append(request.body)
        side = side_answer(request)
        if side is not None:
            return side
        is_subagent = any(m.role == "user" and SUBAGENT_TASK in m.text for m in request.messages)
        try:
            answer = (self._subagent_turns if is_subagent else self._turns).get_nowait()
        except queue.Empty:
            self.unscripted.append(request)
            answer = Answer("(the script has ended)")
        if not is_subagent:
            self._requests.put(request)
        return answer
