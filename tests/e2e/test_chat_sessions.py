# SPDX-License-Identifier: GPL-3.0-or-later
"""Several chats, several Emacs, and daemons that end under them, with the real `qwen serve`; the model is scripted."""

from __future__ import annotations

import re
import threading
from typing import Final

import pytest

from chat import NAMED, connect_daemon, converse, daemons, option_key, send, start_daemon, takes_answers
from editor import lisp_string
from model_types import Answer
from sandbox import CHECKOUT
from serve import Serve
from stage import READY, Stage

pytestmark = [pytest.mark.reuses_stage("daemon"), pytest.mark.local("the daemon is of this machine")]

KEPT = "The agent still has this prompt, and may carry it out with the next one; C-c C-r goes back to before it"

NEW: Final = "*qwen chat*"
"""The buffer of a chat in which nothing was said."""

SEPARATOR: Final = " C-c C-c send"
"""The start of the line between the conversation and the prompt."""

LIST: Final = "*qwen-companion chats*"


def named(title: str) -> str:
    """Return the buffer of the chat of the session `title`."""
    return f"*qwen chat: {title} (project)*"


def numbered(word: str) -> str:
    """Return a text in which nothing can be missing, or be there twice, unseen."""
    return "".join(f"{word}{number:02}.\n" for number in range(20))


def wait_until(stage: Stage, form: str) -> None:
    """Wait until `form` is true; keys that were pressed before are not held up."""
    stage.screen.wait_until(lambda: stage.emacs.eval(form) != "nil", form)


def wait_until_state(stage: Stage, buffer: str, *states: str) -> None:
    """Wait until `buffer` is a chat whose session is in one of `states`, and shows all of its conversation."""
    chat = f"(get-buffer {lisp_string(buffer)})"
    told = f"(plist-get (buffer-local-value 'qwen-companion-chat-session {chat}) :state)"
    left = f"(buffer-local-value 'qwen-companion-chat--batches-left {chat})"
    wait_until(stage, f"(and {chat} (memq {told} '({' '.join(states)})) (<= {left} 0))")


def wait_until_said(stage: Stage, buffer: str, text: str) -> None:
    """Wait until `text` is in `buffer`."""
    search = f"(save-excursion (goto-char (point-min)) (search-forward {lisp_string(text)} nil t))"
    wait_until(stage, f"(and (get-buffer {lisp_string(buffer)}) (with-current-buffer {lisp_string(buffer)} {search}))")


def answer(stage: Stage, chat: str, label: str) -> None:
    """Press the key of the answer `label` to the question of `chat`, once it takes keys."""
    wait_until(stage, takes_answers(chat))
    stage.screen.keys("C-c", "C-a", option_key(stage, label))


def go_to_line(stage: Stage, text: str) -> None:
    """Go to the line with `text` of the list of sessions, which is shown, once it is there."""
    wait_until(
        stage,
        f"(with-selected-window (get-buffer-window {lisp_string(LIST)})"
        f" (goto-char (point-min)) (and (search-forward {lisp_string(text)} nil t) (progn (beginning-of-line) t)))",
    )


def begin(stage: Stage, *steps: tuple[str, str]) -> str:
    """Open a chat that fills the frame and take `steps`, prompts and their answers, in it; return its buffer."""
    stage.emacs.command("qwen-companion-chat")
    wait_until_state(stage, NEW, "idle", "off")
    state = f"(plist-get (buffer-local-value 'qwen-companion-chat-session (get-buffer {lisp_string(NEW)})) :state)"
    if stage.emacs.eval(state) == "off":
        # On a busy machine an agent may take longer to start than the daemon waits.
        stage.emacs.command("qwen-companion-chat")
        wait_until_state(stage, NEW, "idle")
    stage.screen.keys("C-x", "1")
    chat = NEW
    for prompt, reply in steps:
        stage.model.say(reply)
        send(stage, prompt)
        chat = named(steps[0][0])
        wait_until_said(stage, chat, reply)
        wait_until_state(stage, chat, "idle")
    return chat


def stream_half(stage: Stage, chat: str, prompt: str, word: str) -> threading.Event:
    """Send `prompt` in `chat` and wait until half of the answer is there; the rest waits for the event."""
    more = threading.Event()
    stage.model.answer(Answer(numbered(word), pieces=4, halfway=more))
    send(stage, prompt)
    wait_until_said(stage, chat, f"{word}09.")
    return more


def test_several_sessions_in_one_emacs(stage: Stage, serve: Serve) -> None:
    connect_daemon(stage, serve, NAMED)
    # Two stream side by side.
    begin(stage)
    alpha_goes_on = stream_half(stage, named("tell alpha"), "tell alpha", "alpha")
    stage.emacs.command("qwen-companion-chat", prefix=True)
    wait_until_state(stage, NEW, "idle")
    beta_goes_on = stream_half(stage, named("tell beta"), "tell beta", "beta")
    # The list follows without being asked to.
    stage.emacs.command("qwen-companion-chats")
    stage.screen.wait_for(re.compile(r"^ \* tell alpha +\d{4}-\d\d-\d\d \d\d:\d\d +1 +busy$", re.MULTILINE))
    alpha_goes_on.set()
    stage.screen.wait_for(re.compile(r"^ \* tell alpha .* 1 +idle$", re.MULTILINE))
    stage.screen.wait_for(re.compile(r"^ \* tell beta .* 1 +busy$", re.MULTILINE))
    beta_goes_on.set()
    stage.screen.wait_for(re.compile(r"^ \* tell beta .* 1 +idle$", re.MULTILINE))
    alpha, beta = (stage.emacs.buffer_text(named(f"tell {word}")) for word in ("alpha", "beta"))
    assert numbered("alpha") in alpha
    assert numbered("beta") in beta
    assert "beta" not in alpha
    assert "alpha" not in beta
    # One is left and loaded from the disk, with its history.
    go_to_line(stage, "tell alpha")
    stage.screen.keys("k")
    stage.screen.wait_for(re.compile(r"tell alpha .* closed$", re.MULTILINE))
    stage.emacs.eval(f"(kill-buffer {lisp_string(named('tell alpha'))})")
    stage.screen.keys("g")
    stage.screen.wait_for(re.compile(r"^   tell alpha .* 0 +ended$", re.MULTILINE))
    go_to_line(stage, "tell alpha")
    stage.screen.keys("Enter")
    wait_until_state(stage, named("tell alpha"), "idle")
    assert stage.emacs.buffer_text(named("tell alpha")) == alpha
    # The other is ended, and stays readable.
    stage.emacs.command("qwen-companion-chats")
    go_to_line(stage, "tell beta")
    stage.screen.keys("D")
    stage.screen.wait_for("End this session for all its clients?")
    stage.screen.keys("y")
    stage.screen.wait_for(re.compile(r"tell beta .* 0 +closed$", re.MULTILINE))
    assert stage.emacs.buffer_text(named("tell beta")) == beta
    stage.screen.keys("+")
    wait_until_state(stage, NEW, "idle")
    # One by its title.
    stage.screen.keys("M-x")
    stage.screen.enter("qwen-companion-chat-switch")
    stage.screen.wait_for("Chat (default tell alpha):")
    stage.screen.keys("Tab", "Tab")
    stage.screen.wait_for(re.compile(r"tell beta +\d{4}-\d\d-\d\d \d\d:\d\d, closed"))
    stage.screen.enter("tell al")
    stage.screen.wait_for("alpha19.")


def test_two_emacs_take_part_in_one_session(stage: Stage, serve: Serve) -> None:
    connect_daemon(stage, serve, NAMED)
    chat = begin(stage, ("one", "First."))
    with stage.beside() as other:
        connect_daemon(other, serve, NAMED)
        other.emacs.command("qwen-companion-chats")
        other.screen.wait_for(re.compile(r"^   one .* 1 +idle$", re.MULTILINE))
        go_to_line(other, "one")
        other.screen.keys("Enter")
        wait_until_state(other, chat, "idle")
        other.screen.keys("C-x", "1")
        other.screen.wait_for("2 clients")
        other.screen.wait_for(re.compile(r"Somebody else\s+one\s+First\."))
        # What one asks streams in the other too.
        more = stream_half(other, chat, "two", "both")
        wait_until_said(stage, chat, "both09.")
        stage.screen.wait_for("2 clients")
        stage.screen.wait_for(re.compile(r"Somebody else\s+two\s+both00\."))
        assert "both10." not in stage.emacs.buffer_text(chat)
        more.set()
        for place in (stage, other):
            wait_until_said(place, chat, "both19.")
            wait_until_state(place, chat, "idle")
            assert numbered("both") in place.emacs.buffer_text(chat)
        # A question is asked in both and answered in one.
        file = stage.sandbox.project / "new.txt"
        stage.model.call("write_file", file_path=str(file), content="new\n")
        stage.model.say("Third.")
        send(stage, "three")
        stage.screen.wait_for("Asks:1")
        other.screen.wait_for("Asks:1")
        answer(other, chat, "Allow")
        other.screen.wait_for('you answered "Allow"')
        stage.screen.wait_for('answered by another client: "Allow"')
        stage.screen.wait_for("Third.")
        stage.screen.wait_gone("Asks")
        assert file.read_text() == "new\n"
        wait_until_state(stage, chat, "idle")
        other.emacs.quit()
    # One has gone, the other goes on.
    converse(stage, "four", "Fourth.")
    stage.screen.wait_gone("2 clients")


def test_agents_and_daemon_die_under_a_chat(stage: Stage, serve: Serve) -> None:
    connect_daemon(stage, serve, NAMED)
    chat = begin(stage, ("one", "First."))
    # The agent, while nothing goes on.
    stage.screen.type("not sent yet")
    shown = stage.emacs.buffer_text(chat)
    serve.kill_agents()
    stage.screen.wait_for("Ended; C-c C-l loads the session again")
    stage.screen.keys("C-c", "C-l")
    wait_until_state(stage, chat, "idle")
    assert stage.emacs.buffer_text(chat) == shown
    # The agent, in the middle of an answer, of which the daemon has nothing on its disk.
    stage.screen.keys("C-a", "C-k")
    stream_half(stage, chat, "two", "half")
    stage.screen.type("not sent either")
    serve.kill_agents()
    stage.screen.wait_for("Ended; C-c C-l loads the session again")
    shown = stage.emacs.buffer_text(chat)
    assert "half09.\n\nFailed: agent channel closed" in shown
    stage.screen.keys("C-c", "C-l")
    wait_until_state(stage, chat, "idle")
    assert stage.emacs.buffer_text(chat) == shown
    # The daemon, in the middle of an answer; point is in the middle of the prompt.
    stage.screen.keys("C-a", "C-k")
    stream_half(stage, chat, "three", "more")
    # It waits in the daemon's queue, which nobody else has.
    send(stage, "and then four")
    stage.screen.wait_for("1 queued")
    stage.screen.type("a draft")
    stage.screen.keys("M-b")
    in_place = f"(with-current-buffer {lisp_string(chat)} (= 5 (- (point-max) (point))))"
    stage.emacs.wait_until(in_place)
    shown = stage.emacs.buffer_text(chat)
    serve.kill()
    stage.screen.wait_for("Disconnected: ")
    serve.start()
    wait_until_state(stage, chat, "idle")
    lost = "Lost with the queue, and in the input again: and then four"
    failed = f"Failed: The daemon has been restarted.\n{KEPT}\n{lost}\n{SEPARATOR}"
    expected = shown.replace(SEPARATOR, failed).replace("a draft", "and then four\na draft")
    assert stage.emacs.buffer_text(chat) == expected
    assert stage.emacs.eval(in_place) == "t"
    # And it goes on.
    stage.screen.keys("C-a", "C-k", "C-p", "C-a", "C-k", "C-k")
    converse(stage, "four", "Fourth.")
    wait_until_state(stage, chat, "idle")
    stage.screen.wait_gone("Daemon:")


def test_the_backend_is_killed_under_a_chat(stage: Stage, serve: Serve) -> None:
    connect_daemon(stage, serve, NAMED)
    chat = begin(stage, ("one", "First."))
    stage.screen.type("not sent yet")
    shown = stage.emacs.buffer_text(chat)
    stage.sandbox.backend().kill()
    stage.screen.wait_for("process is being replaced")
    wait_until_state(stage, chat, "idle")
    assert stage.emacs.buffer_text(chat) == shown
    # In the middle of an answer, which goes on at the daemon.
    stage.screen.keys("C-a", "C-k")
    more = stream_half(stage, chat, "two", "more")
    stage.sandbox.backend().kill()
    stage.screen.wait_for("process is being replaced")
    more.set()
    wait_until_said(stage, chat, "more19.")
    wait_until_state(stage, chat, "idle")
    shown = stage.emacs.buffer_text(chat)
    assert numbered("more") in shown
    assert [shown.count(text) for text in ("one\n", "First.", "two\n", "more00.")] == [1, 1, 1, 1]
    # A prompt that is sent meanwhile waits, and is sent once.
    stage.model.say("Third.")
    stage.sandbox.backend().kill()
    stage.screen.wait_for("process is being replaced")
    send(stage, "three")
    wait_until_said(stage, chat, "Third.")
    assert stage.emacs.buffer_text(chat).count("three\n") == 1


LEFT: Final = r"""
(mapconcat (lambda (item) (format "%S" item))
           (seq-filter (lambda (item)
                         (and (string-match-p "qwen-companion-\\(chat\\|daemon\\)" (format "%S" item))
                              ;; The prompts that were sent are the user's, as other histories are.
                              (not (eq (car item) 'qwen-companion-chat-send--history))))
                       (seq-difference (leftovers--state) leftovers-before))
           "\n")
"""
"""The traces of chats and daemons that are new or have changed since the start, one a line."""


# What it leaves is compared with what there was before the first chat.
@pytest.mark.fresh_stage
def test_a_chat_outlives_its_daemon_and_the_mode_and_leaves_nothing(stage: Stage) -> None:
    leftovers = CHECKOUT / "tests/e2e/leftovers.el"
    # The menu, which names the commands of chats, is loaded when the keymap is first looked through.
    look = (
        f"(progn (load {lisp_string(str(leftovers))}) (require 'qwen-companion-menu)"
        " (setq leftovers-before (leftovers--state)))"
    )
    stage.start_emacs(stage.sandbox.greeting, forms=(*NAMED, look))
    start_daemon(stage)
    chat = begin(stage, ("one", "First."))
    stream_half(stage, chat, "zero", "kept")
    stage.screen.type("not sent yet")
    shown = stage.emacs.buffer_text(chat)
    # The mode is turned off in the middle of an answer, and on: another daemon has the rest on its disk.
    stage.emacs.command("qwen-companion-mode")
    stage.screen.wait_for("M-x qwen-companion-mode, then M-x qwen-companion-chat here")
    assert stage.emacs.buffer_text(chat) == shown
    stage.emacs.command("qwen-companion-mode")
    stage.screen.wait_for(READY)
    stage.emacs.command("qwen-companion-chat")
    wait_until_state(stage, chat, "idle")
    assert "kept09." in shown
    broken = f"Failed: The turn broke off.\n{KEPT}\n{SEPARATOR}"
    assert stage.emacs.buffer_text(chat) == shown.replace(SEPARATOR, broken)
    # The daemon is killed in the middle of an answer; another is had as that one was.
    stage.screen.keys("C-a", "C-k")
    stream_half(stage, chat, "two", "half")
    stage.screen.type("not sent yet")
    shown = stage.emacs.buffer_text(chat)
    daemons(stage)[1].kill()
    stage.screen.wait_for("No session; M-x qwen-companion-chat here tries again: qwen serve has ended.")
    stage.screen.wait_for("Daemon:refused")
    assert stage.emacs.buffer_text(chat) == shown
    stage.emacs.command("qwen-companion-chat")
    wait_until_state(stage, chat, "idle")
    shown = shown.replace(SEPARATOR, broken)
    assert stage.emacs.buffer_text(chat) == shown
    # Nobody loses a prompt by the end of Emacs or of the buffer.
    stage.screen.keys("C-x", "C-c")
    stage.screen.wait_for(f"The prompt in {chat} has not been sent; exit anyway?")
    stage.screen.enter("no")
    stage.emacs.command("qwen-companion-daemon-stop")
    stage.screen.wait_for("Disconnected from the daemon; M-x qwen-companion-chat here tries again")
    assert stage.emacs.buffer_text(chat) == shown
    stage.screen.keys("C-x", "k", "Enter")
    stage.screen.wait_for("The prompt has not been sent; kill the chat?")
    stage.screen.enter("yes")
    stage.screen.wait_gone("not sent yet")
    stage.emacs.command("qwen-companion-mode")
    stage.emacs.wait_until("(not qwen-companion-mode)")
    assert stage.emacs.text(LEFT) == ""
