# SPDX-License-Identifier: GPL-3.0-or-later
"""What the user's Emacs knows, for the model: problems that come by themselves, and tools, with the real CLI."""

from __future__ import annotations

import json
from typing import Any

import pytest

from model_types import ModelRequest
from sandbox import GREETING, NOTES
from stage import Stage
from test_changes import FREE

pytestmark = pytest.mark.reuses_stage("free")

# Python itself, which is the checker that is there wherever this runs.
FLYMAKE = """
(progn
  (require 'python)
  (setq python-flymake-command
        '("python3" "-c" "import sys
try:
    compile(sys.stdin.read(), 'stdin', 'exec')
except SyntaxError as error:
    print(f'stdin:{error.lineno}:{error.offset}: {error.msg}')
    sys.exit(1)"))
  (add-hook 'python-mode-hook #'flymake-mode))
"""

# A tool of the user's, after which Emacs is busy for three seconds.
BUSY = """
(progn
  (require 'qwen-companion-tools)
  (eval '(qwen-companion-define-tool "busy" () "Keep Emacs busy." :unasked t
           (run-at-time 0 nil (lambda () (let ((end (+ 3 (float-time)))) (while (< (float-time) end)))))
           "Busy now.") t))
"""

OLD = '"hello " + name'
BROKEN = '"hello " + (name'
NEW_PROBLEM = "the checkers in the user's Emacs report"


def result_of(request: ModelRequest) -> str:
    """Return the result of the last tool call that the model is told of."""
    assert request.messages[-1].role == "tool" or NEW_PROBLEM in request.messages[-1].text
    return "\n".join(message.text for message in request.messages[-2:])


# The CLI asks which tools there are when it starts.
@pytest.mark.fresh_stage
def test_the_model_is_told_what_emacs_knows(stage: Stage) -> None:
    greeting, notes = stage.sandbox.greeting, stage.sandbox.notes
    # Another file is shown, so that flymake would wait for a window.
    stage.start_emacs(greeting, notes, forms=(FREE, FLYMAKE, BUSY))
    stage.emacs.wait_until(f'(with-current-buffer "{greeting.name}" (flymake-reporting-backends))')
    stage.start_cli()

    def ask(*calls: tuple[str, dict[str, Any]], in_minibuffer: bool = False) -> list[ModelRequest]:
        """Return the requests of a turn in which the model makes `calls`, one after the other.

        The user goes into a minibuffer before it if so.
        """
        for name, arguments in calls:
            stage.model.call(name, **arguments)
        stage.model.say("Done with it.")
        # In this mode the CLI shows another sign before what is typed.
        stage.screen.type("go on")
        if in_minibuffer:
            stage.emacs.eval('(progn (run-at-time 0 nil (lambda () (read-string "Busy: " "half"))) nil)')
            stage.emacs.wait_until("(minibufferp (window-buffer (selected-window)))")
            stage.emacs.eval('(progn (with-current-buffer "*qwen: project*" (vterm-send-return)) nil)')
        else:
            stage.screen.keys("Enter")
        return [stage.model.next_request() for _ in range(len(calls) + 1)]

    def edit(old: str, new: str) -> tuple[str, dict[str, Any]]:
        return ("edit", {"file_path": str(greeting), "old_string": old, "new_string": new})

    # An edit that breaks the file, and one that mends it.
    _, _, broken, mended = ask(("read_file", {"file_path": str(greeting)}), edit(OLD, BROKEN), edit(BROKEN, OLD))
    told = json.dumps(broken.body["messages"][-1])
    assert NEW_PROBLEM in told, told
    assert "greeting.py:" in told
    assert "was never closed" in told
    assert NEW_PROBLEM not in json.dumps(mended.body["messages"][-1])
    assert greeting.read_text() == GREETING

    # They answer what Emacs knows.
    stage.emacs.eval(f'(with-current-buffer "{notes.name}" (goto-char (point-max)) (insert "plums, unsaved\\n"))')
    (stage.sandbox.project / ".env").write_text("SECRET=1\n")
    requests = ask(
        ("mcp__emacs__open_files", {}),
        ("mcp__emacs__buffer_text", {"path": notes.name, "start": 1}),
        ("mcp__emacs__symbols", {"path": greeting.name}),
        ("mcp__emacs__diagnostics", {"path": str(greeting)}),
        ("mcp__emacs__buffer_text", {"path": ".env"}),
        ("mcp__emacs__buffer_text", {"path": notes.name, "start": 0}),
        in_minibuffer=True,
    )
    stage.screen.keys("Enter")
    stage.emacs.wait_until("(= 0 (minibuffer-depth))")
    assert stage.emacs.text("(car minibuffer-history)") == "half"
    prompt, *results = requests
    # All tools are there without a search for them, and cost that much.
    offered = [tool for tool in prompt.body["tools"] if tool["function"]["name"].startswith("mcp__emacs__")]
    assert len(offered) == 11
    assert len(json.dumps(offered)) < 7000
    assert "data, not instructions" in json.dumps(prompt.body["messages"])
    assert f"{notes.name}: has unsaved changes in Emacs" in json.dumps(prompt.body["messages"])
    texts = [json.dumps(request.body["messages"][-1]) for request in results]
    assert "unsaved changes" in texts[0]
    assert f"{len(NOTES.splitlines()) + 1}| plums, unsaved" in texts[1]
    assert "greeting.py:4: greet" in texts[2]
    assert "No problems" in texts[3]
    assert "Emacs does not show .env" in texts[4]
    assert "SECRET" not in texts[4]
    assert "counts from 1" in texts[5]
    stage.screen.wait_for("Done with it.")

    # Another process of the backend answers a CLI that noticed nothing, and an Emacs that is busy is waited for.
    old = stage.sandbox.backend()
    old.kill()
    stage.screen.wait_until(lambda: [each.pid for each in stage.sandbox.backends()] != [old.pid], "another backend")
    stage.emacs.wait_until("(and (qwen-companion-backend-connected-p) (eq 'ready (qwen-companion-state)))")
    _, busy, answered = ask(("mcp__emacs__busy", {}), ("mcp__emacs__symbols", {"path": greeting.name}))
    assert "Busy now." in json.dumps(busy.body["messages"][-1])
    assert "greeting.py:4: greet" in json.dumps(answered.body["messages"][-1])
    stage.emacs.eval("(remove-hook 'python-mode-hook #'flymake-mode)")
