# SPDX-License-Identifier: GPL-3.0-or-later
"""Questions of a chat that another client answers, or nobody can, with the real `qwen serve`, in a terminal."""

from __future__ import annotations

import threading

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from chat import CHAT, FORMS, answer, begin_chat, connect_daemon, send, wait_until_idle, wait_until_recorded
from editor import lisp_string
from model_types import Answer, Call
from qwen_companion.daemon.client import DaemonClient
from serve import Network, Serve
from stage import Stage
from test_changes import shown

pytestmark = [pytest.mark.reuses_stage("daemon"), pytest.mark.local("the daemon is of this machine")]


# The names of the files in the turns that began so.
CHANGED = """
(mapcar (lambda (turn)
          (mapcar (lambda (file) (file-name-nondirectory (qwen-companion-changed-file-path file)))
                  (qwen-companion-turn-files turn)))
        (seq-filter (lambda (turn) (equal (concat "please touch " %s) (qwen-companion-turn-prompt turn)))
                    (qwen-companion-journal-turns)))
"""


# The tokens of each turn; each request of the scripted model has one in and one out.
TOKENS = """
(mapcar (lambda (turn) (qwen-companion-layer-tokens (qwen-companion-turn-usage turn)))
        (qwen-companion-journal-turns))
"""


class Other:
    """Another client of the newest session of a daemon."""

    def __init__(self, portal: BlockingPortal, client: DaemonClient, project: str) -> None:
        self._portal = portal
        self._client = client
        session, *_ = portal.call(client.list_sessions, project)
        self._session = session.session_id
        portal.call(client.load, self._session)

    def answer(self, label: str) -> None:
        """Answer the question that waits with the option that has `label`."""
        (waiting,) = self._portal.call(self._client.status, self._session).pending_interactions
        (option,) = (option.option_id for option in waiting.options if (option.name or option.label) == label)
        self._portal.call(self._client.answer_permission, self._session, waiting.request_id, option)


def test_others_answer_and_the_connection_is_lost(stage: Stage, serve: Serve) -> None:
    def ask(command: str) -> None:
        stage.model.call("run_shell_command", command=command, is_background=False)
        stage.model.say(f"So much for {command}.")
        send(stage, f"please {command}")
        stage.screen.wait_for("Asks:1")
        wait_until_recorded(stage, f"please {command}")

    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Network(serve.port)) as network,
        portal.wrap_async_context_manager(DaemonClient(serve.url, serve.token)) as client,
    ):
        connect_daemon(stage, serve, FORMS, network.port)
        begin_chat(stage)
        other = Other(portal, client, str(stage.sandbox.project))

        ask("touch one")
        other.answer("Allow")
        stage.screen.wait_for("So much for touch one.")
        wait_until_idle(stage)
        stage.emacs.wait_until(f"(equal '(4) {TOKENS})")

        ask("touch two")
        portal.call(network.break_down)
        stage.screen.wait_for("Daemon:unreachable")
        screen = stage.screen.wait_for("Held: the connection is lost.")
        assert "C-c C-a" not in screen
        stage.screen.keys("C-c", "C-a", "y")
        stage.wait_until_said("The connection to the daemon is lost; this is checked again after reconnecting")
        portal.call(network.mend)
        stage.screen.wait_for("C-c C-a y  Allow")
        answer(stage, "Allow")
        stage.screen.wait_for("So much for touch two.")
        wait_until_idle(stage)

        ask("touch three")
        portal.call(network.break_down)
        stage.screen.wait_for("Held: the connection is lost.")
        other.answer("Allow")
        portal.call(network.mend)
        stage.screen.wait_for("So much for touch three.")
        wait_until_idle(stage)

        # What is said while the connection is lost comes later; what is sent then waits, and can be taken back.
        more = threading.Event()
        text = "".join(f"line {number}\n" for number in range(60))
        call = Call("run_shell_command", {"command": "touch four", "is_background": False})
        stage.model.answer(Answer(text, (call,), pieces=60, halfway=more))
        stage.model.say("So much for touch four.")
        send(stage, "please touch four")
        stage.screen.wait_for("line 20")
        wait_until_recorded(stage, "please touch four")
        portal.call(network.break_down)
        stage.screen.wait_for("Daemon:unreachable")
        send(stage, "are you there?")
        stage.screen.wait_for("the prompt is sent once the session is there, C-c C-k takes it back")
        stage.screen.keys("C-c", "C-k")
        stage.screen.wait_gone("once the session is there")
        more.set()
        portal.call(network.mend)
        stage.screen.wait_for("C-c C-a y  Allow")
        answer(stage, "Allow")
        stage.screen.wait_for("So much for touch four.")
        wait_until_idle(stage)

        conversation = stage.emacs.buffer_text(CHAT)
        assert conversation.endswith("\nare you there?")
        for line in (
            'touch one: answered by another client: "Allow"',
            'touch two: you answered "Allow"',
            'touch three: answered by another client: "Allow"',
            *(f"please touch {number}" for number in ("one", "two", "three", "four")),
            *(f"So much for touch {number}." for number in ("one", "two", "three", "four")),
            text.rstrip(),
        ):
            assert conversation.count(f"{line}\n") == 1, conversation
        stage.screen.wait_gone("Asks")
        assert "Held" not in conversation

        # Emacs did not start this daemon: what its agent has changed is known by its events and by the disk.
        stage.emacs.command("qwen-companion-changes")
        for number in ("one", "two", "three", "four"):
            stage.emacs.wait_until(f"(equal '(({lisp_string(number)})) {CHANGED % lisp_string(number)})")
            shown(stage, f"Qwen Code  please touch {number}")
