# SPDX-License-Identifier: GPL-3.0-or-later
"""Emacs and the real `qwen serve`: started by Emacs or found, used, and gone when it has to be."""

from __future__ import annotations

import http.client
import json
import re
from contextlib import suppress

import psutil
import pytest

from chat import daemons, leave_daemon, start_daemon
from editor import lisp_string
from sandbox import has_ended
from serve import Serve
from stage import Stage
from terminal import PATIENCE

pytestmark = [pytest.mark.reuses_stage("daemon"), pytest.mark.local("the daemon is of this machine")]

ENABLE = "(setq qwen-companion-daemon-enabled t)"
# All that is reported of the daemon, newest first.
COLLECT = """
(progn (defvar reports nil)
       (defvar qwen-companion-daemon-functions nil)
       (add-hook 'qwen-companion-daemon-functions (lambda (&rest report) (push report reports))))
"""

# The text of the agent, which comes in one report or in several.
ANSWER = """
(mapconcat (lambda (change) (if (eq (plist-get change :voice) 'answer) (plist-get change :text) ""))
           (mapcan (lambda (report) (copy-sequence (plist-get (cadr report) :changes))) (reverse reports))
           "")
"""


def start(stage: Stage, *forms: str) -> None:
    """Start Emacs with the use of daemons turned on; it has none."""
    enable(stage, *forms)
    leave_daemon(stage)
    stage.emacs.eval("(setq reports nil)")


def enable(stage: Stage, *forms: str) -> None:
    """Start Emacs with the use of daemons turned on; it may have one of an earlier test."""
    stage.start_emacs(stage.sandbox.greeting, forms=(ENABLE, COLLECT, *forms))


def assert_unseen(stage: Stage, *hidden: str) -> None:
    """Check that the `hidden` texts are in no buffer, variable or command line."""
    places: list[str] = []
    for process in stage.sandbox.processes():
        # One may have ended meanwhile.
        with suppress(psutil.NoSuchProcess):
            places.append(" ".join(process.cmdline()))
    places += [stage.emacs.buffer_text(name) for name in ("*Messages*", "*qwen-companion log*")]
    places.append(stage.emacs.text('(format "%S" reports)'))
    places.append(stage.emacs.text('(mapconcat #\'identity process-environment "\\n")'))
    places.append(stage.screen.capture())
    for secret in hidden:
        assert not any(secret in place for place in places)


def finds_tools(stage: Stage, secret: str) -> bool:
    """Return whether the daemon says that its agent knows the tools of all its MCP servers."""
    host = stage.emacs.text("(qwen-companion-daemon-connection-host qwen-companion-daemon--report)")
    connection = http.client.HTTPConnection(host, timeout=PATIENCE)
    try:
        connection.request("GET", "/workspace/mcp", headers={"Authorization": f"Bearer {secret}"})
        found = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return found["discoveryState"] == "completed" and bool(found["servers"])


def test_it_is_off(stage: Stage) -> None:
    stage.start_emacs(stage.sandbox.greeting)
    leave_daemon(stage)
    for command in ("qwen-companion-daemon-start", "qwen-companion-daemon-connect"):
        stage.emacs.eval("(message nil)")
        stage.emacs.command(command)
        stage.screen.wait_for("customize ‘qwen-companion-daemon-enabled’")
    assert daemons(stage) == []
    assert "Daemon" not in stage.emacs.text("(qwen-companion--lighter)")


def test_connected_with_the_token_of_auth_sources(stage: Stage, serve: Serve) -> None:
    serve.write_authinfo()
    start(stage)
    # Not on Emacs's own command line; a user and password there are of no use, and do no harm.
    url = serve.url.replace("//", f"//me:{serve.token}@")
    stage.emacs.eval(f"(progn (setq qwen-companion-daemon-url {lisp_string(url)}) nil)")
    stage.emacs.command("qwen-companion-daemon-connect")
    # Whose files and credentials these are.
    stage.screen.wait_for(re.compile(r"qwen serve at 127\.0\.0\.1:\d+, workspace"))
    stage.screen.wait_for(re.compile(r" Daemon(?!:)"))
    assert_unseen(stage, serve.token)


def test_a_wrong_token_is_said_and_not_shown(stage: Stage, serve: Serve) -> None:
    serve.write_authinfo("something-else")
    start(stage, f"(setq qwen-companion-daemon-url {lisp_string(serve.url)})")
    stage.emacs.command("qwen-companion-daemon-connect")
    stage.screen.wait_for("Daemon:refused")
    stage.screen.wait_for("does not accept the token")
    assert_unseen(stage, serve.token, "something-else")
    # The user mends it.
    serve.write_authinfo()
    stage.emacs.eval("(auth-source-forget-all-cached)")
    stage.emacs.command("qwen-companion-daemon-connect")
    stage.screen.wait_for(re.compile(r" Daemon(?!:)"))


def test_plain_http_to_another_machine_is_refused(stage: Stage) -> None:
    start(stage, '(setq qwen-companion-daemon-url "http://192.0.2.1:4170")')
    stage.emacs.command("qwen-companion-daemon-connect")
    stage.screen.wait_for("Daemon:refused")
    assert "Plain HTTP to 192.0.2.1" in stage.emacs.buffer_text("*Messages*")


def test_started_used_and_stopped(stage: Stage) -> None:
    start(stage)
    start_daemon(stage)
    supervisor, daemon = daemons(stage)
    secret = daemon.environ()["QWEN_SERVER_TOKEN"]
    assert supervisor.ppid() == stage.sandbox.backend().pid
    assert daemon.ppid() == supervisor.pid
    # As a chat does it; the agent may ask Emacs, as one in a terminal may, and nobody is asked for that.
    stage.model.call("mcp__emacs__open_files")
    stage.model.say("It greets.")
    stage.emacs.eval("(qwen-companion-backend-call 'daemon-open '(:request \"1\" :root nil :scope new))")
    stage.emacs.wait_until("(assq 'daemon-reply reports)")
    assert stage.emacs.eval("(plist-get (cadr (assq 'daemon-reply reports)) :error)") == "nil"
    # An agent waits for its tools no longer than one in a terminal, and nobody types as soon as this.
    stage.screen.wait_until(lambda: "has tools" if finds_tools(stage, secret) else None, "the tools of the agent")
    stage.emacs.eval(
        "(let ((session (plist-get (cadr (assq 'daemon-reply reports)) :session)))"
        " (qwen-companion-backend-call 'daemon-prompt"
        '  (list :session session :parts \'((:kind text :text "what does it do?")))))'
    )
    stage.emacs.wait_until('(string-match-p ":kind end" (format "%S" reports))')
    assert stage.emacs.text(ANSWER) == "It greets."
    asked, answered = stage.model.next_request(), stage.model.next_request()
    assert "what does it do?" in asked.prompt
    assert f"{stage.sandbox.greeting.name}:1: the user is here" in json.dumps(answered.body["messages"][-1])
    assert_unseen(stage, secret)
    stage.emacs.command("qwen-companion-daemon-stop")
    for process in (daemon, supervisor):
        assert has_ended(process, PATIENCE)
    assert stage.emacs.text("(qwen-companion-daemon-lighter)") == ""


# From here on each test may have the daemon of the one before it.
def test_it_ends_with_the_backend_killed_and_another_takes_its_place(stage: Stage) -> None:
    enable(stage)
    start_daemon(stage)
    processes = daemons(stage)
    stage.emacs.eval("(setq reports nil)")
    stage.sandbox.backend().kill()
    for process in processes:
        assert has_ended(process, PATIENCE)
    stage.emacs.wait_until("(and (assq 'daemon-state reports) (eq 'connected (qwen-companion-daemon-state)))")
    assert len(daemons(stage)) == 2


def test_one_that_ends_by_itself_is_missed(stage: Stage) -> None:
    enable(stage)
    start_daemon(stage)
    _, daemon = daemons(stage)
    daemon.kill()
    stage.screen.wait_for("Daemon:refused")
    stage.screen.wait_for("qwen serve has ended")
    start_daemon(stage)


@pytest.mark.ends_stage
def test_it_ends_with_emacs_killed(stage: Stage) -> None:
    enable(stage)
    start_daemon(stage)
    processes = daemons(stage)
    assert len(processes) == 2
    stage.emacs.process.kill()
    for process in processes:
        assert has_ended(process, PATIENCE)
