# SPDX-License-Identifier: GPL-3.0-or-later
"""Problems sent to the model by themselves, and tools that ask Emacs, with the real CLI."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from editor import lisp_string
from model_types import ModelRequest
from sandbox import NOTES
from stage import Stage
from terminal import PATIENCE
from test_changes import FREE

pytestmark = pytest.mark.reuses_stage("free")

CLIENT = Path(__file__).with_name("tool_client.py")

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

# A language server, by eglot: of Emacs since 29, before that of a package that scripts/setup unpacks.  What is shown is
# another file.
EGLOT = """
(progn
  (unless (locate-library "eglot")
    (setq load-path (append (file-expand-wildcards "UNPACKED/*") load-path)))
  (when (require 'eglot nil t)
    (with-current-buffer (find-file-noselect FILE)
      (setq-local eglot-server-programs '((python-mode "RUFF" "server")))
      (let ((eglot-sync-connect t)
            (eglot-connect-timeout LIMIT)
            ;; It is to take no other files.
            (project-find-functions nil))
        (apply #'eglot (eglot--guess-contact)))
      (flymake-start)
      t)))
"""
CHECKOUT = Path(__file__).parents[2]
SHOP = "def price(apples):\n    return 2 * apples\n"

# A tool of the user's, after which Emacs is busy for three seconds.
BUSY = """
(progn
  (require 'qwen-companion-tools)
  (eval '(qwen-companion-define-tool "busy" () "Keep Emacs busy." :unasked t
           (run-at-time 0 nil (lambda () (let ((end (+ 3 (float-time)))) (while (< (float-time) end)))))
           "Busy now.") t))
"""

# What the user has configured, as eglot would be: a backend of xref that models may ask, and what eldoc says.  One use
# of the name is in a file that no CLI is told of.
KNOWING = """
(progn
  (require 'xref)
  (require 'cl-lib)
  (cl-defmethod xref-backend-identifier-at-point ((_ (eql own))) (thing-at-point 'symbol t))
  (cl-defmethod xref-backend-definitions ((_ (eql own)) _name)
    (list (xref-make "def greet" (xref-make-file-location (expand-file-name "greeting.py" PROJECT) 4 4))))
  (cl-defmethod xref-backend-references ((_ (eql own)) _name)
    (list (xref-make "print(greet)" (xref-make-file-location (expand-file-name "greeting.py" PROJECT) 9 10))
          (xref-make "GREET=secret" (xref-make-file-location (expand-file-name ".env" PROJECT) 1 0))))
  (setq qwen-companion-tools-servers '(own))
  (defun know-greet ()
    (add-hook 'xref-backend-functions (lambda () 'own) nil t)
    (add-hook 'eldoc-documentation-functions
              (lambda (callback) (funcall callback "greet(name: str) -> str") t) nil t))
  (add-hook 'python-mode-hook #'know-greet))
"""

MANUAL = "\n".join(
    (
        "This is own.info.",
        "\n\x1f\nFile: own.info,  Node: Top,  Next: Part\n\nThe top.",
        "\n\x1f\nFile: own.info,  Node: Part,  Prev: Top\n\nAbout zebras.",
        "\x1f\nEnd\n",
    )
)

OLD = '"hello " + name'
BROKEN = '"hello " + (name'
NEW_PROBLEM = "the checkers in the user's Emacs report"


def result_of(request: ModelRequest) -> str:
    """Return the result of the last tool call that the model is told of."""
    assert request.messages[-1].role == "tool"
    return request.messages[-1].text


def enter_minibuffer(stage: Stage) -> None:
    """Let Emacs ask for a text that begins with "half"."""
    stage.emacs.eval('(progn (run-at-time 0 nil (lambda () (read-string "Busy: " "half"))) nil)')
    stage.emacs.wait_until("(minibufferp (window-buffer (selected-window)))")


def leave_minibuffer(stage: Stage) -> str:
    """Press Enter there; return the text, which Emacs has read."""
    text = stage.emacs.text("(with-selected-window (minibuffer-window) (minibuffer-contents))")
    stage.screen.keys("Enter")
    stage.emacs.wait_until("(= 0 (minibuffer-depth))")
    assert stage.emacs.text("(car minibuffer-history)") == text
    return text


FOUND = "greeting.py:4: greet (def)"


def is_busy(answer: str) -> bool:
    """Return whether `answer` tells a model that Emacs is busy."""
    return answer.startswith("Emacs is busy and has not answered within")


@contextmanager
def calling(stage: Stage, file: Path) -> Generator[Callable[[], list[str]]]:
    """Return a function that calls a tool fifty times for `file`, eight at a time, and returns the first lines."""
    command = [sys.executable, str(CLIENT), str(stage.layer), "symbols", json.dumps({"path": file.name})]
    project = stage.sandbox.project
    command = stage.there(command, project, stage.environment)
    with subprocess.Popen(command, cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def call_fifty() -> list[str]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("50\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        try:
            yield call_fifty
        finally:
            process.stdin.close()


# The CLI asks which tools there are when it starts.
@pytest.mark.fresh_stage
def test_the_model_is_told_what_emacs_knows(stage: Stage) -> None:
    greeting, notes = stage.sandbox.greeting, stage.sandbox.notes
    # Another file is shown, so that flymake would wait for a window.
    project = lisp_string(stage.emacs.name(stage.sandbox.project) + "/")
    stage.start_emacs(greeting, notes, forms=(FREE, FLYMAKE, BUSY, KNOWING.replace("PROJECT", project)))
    stage.emacs.wait_until(f'(with-current-buffer "{greeting.name}" (flymake-reporting-backends))')
    stage.start_cli()
    numbers = itertools.count(1)

    def send_from_a_minibuffer() -> None:
        enter_minibuffer(stage)
        stage.emacs.eval('(progn (with-current-buffer "*qwen: project*" (vterm-send-return)) nil)')

    def ask(*calls: tuple[str, dict[str, Any]], in_minibuffer: bool = False) -> list[ModelRequest]:
        """Return the requests of a turn in which the model makes `calls`, one after the other.

        The user goes into a minibuffer before it if so.
        """
        answer = f"Done with {next(numbers)}."
        for name, arguments in calls:
            stage.model.call(name, **arguments)
        stage.model.say(answer)
        # In this mode the CLI shows another sign before what is typed.
        stage.screen.type("go on")
        if in_minibuffer:
            send_from_a_minibuffer()
        else:
            stage.screen.keys("Enter")
        requests = [stage.model.next_request() for _ in range(len(calls) + 1)]
        # What is typed before its end is said in the middle of the turn.
        stage.screen.wait_for(answer)
        stage.emacs.wait_until("(null (qwen-companion-layer-activity))")
        return requests

    def break_and_mend(file: Path, old: str, new: str) -> str:
        """Return the result of an edit of the model that breaks `file`, with the problem, after one that mends it."""
        text = file.read_text()
        break_it = ("edit", {"file_path": str(file), "old_string": old, "new_string": new})
        mend_it = ("edit", {"file_path": str(file), "old_string": new, "new_string": old})
        told = ""
        # On a busy machine Emacs may take longer to follow and to check the file than the CLI is kept waiting.
        for _ in range(5):
            _, _, broken, mended = ask(("read_file", {"file_path": str(file)}), break_it, mend_it)
            assert NEW_PROBLEM not in result_of(mended)
            assert file.read_text() == text
            told = result_of(broken)
            if NEW_PROBLEM in told:
                return told
        raise AssertionError(told)

    told = break_and_mend(greeting, OLD, BROKEN)
    assert "greeting.py:" in told
    assert "was never closed" in told
    shop = stage.sandbox.project / "shop/shop.py"
    shop.parent.mkdir()
    shop.write_text(SHOP)
    eglot = EGLOT.replace("UNPACKED", str(CHECKOUT / ".build/lisp")).replace("FILE", stage.emacs.lisp_name(shop))
    eglot = eglot.replace("RUFF", str(Path(sys.executable).with_name("ruff"))).replace("LIMIT", f"{PATIENCE:.0f}")
    # There, no language server is asked, and no backend of xref.
    if stage.far is None and stage.emacs.eval(eglot) == "t":
        told = break_and_mend(shop, "2 * apples", "2 * (apples")
        assert re.search(r"shop\.py:\d+:\d+: error: .+ \(eglot\)", told)
        stage.emacs.eval(
            f'(with-current-buffer "{shop.name}" (eglot-shutdown (eglot-current-server) nil {PATIENCE:.0f}))'
        )

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
    assert leave_minibuffer(stage) == "half"
    prompt, *results = requests
    # All tools are named, beside that of the user's.
    told = json.dumps(prompt.body["messages"])
    assert len(set(re.findall(r"mcp__emacs__\w+(?=\W*: )", told)) - {"mcp__emacs__busy"}) == 10
    assert "mcp__emacs__busy" in told
    assert "data, not instructions" in told
    assert f"{notes.name}: has unsaved changes in Emacs" in told
    texts = [json.dumps(request.body["messages"][-1]) for request in results]
    assert "unsaved changes" in texts[0]
    assert f"{len(NOTES.splitlines()) + 1}| plums, unsaved" in texts[1]
    assert "greeting.py:4: greet" in texts[2]
    assert "No problems" in texts[3]
    assert "Emacs does not show .env" in texts[4]
    assert "SECRET" not in texts[4]
    assert "counts from 1" in texts[5]

    # The others.
    (stage.sandbox.project / "own.info").write_text(MANUAL)
    stage.emacs.eval(f"(progn (require 'info) (info-initialize) (push {project} Info-directory-list) nil)")
    stage.emacs.eval(
        f'(with-current-buffer (get-buffer-create "*compilation*") (setq default-directory {project})'
        ' (insert "greeting.py:5:1: error: cold\\nexit 1\\n") (compilation-mode) nil)'
    )
    at_call = {"path": greeting.name, "symbol": "greet", "line": 9}
    _, *results = ask(
        ("mcp__emacs__definition", at_call),
        ("mcp__emacs__references", at_call),
        ("mcp__emacs__hover", at_call),
        ("mcp__emacs__describe", {"symbol": "car"}),
        ("mcp__emacs__search_docs", {"manual": "own", "query": "zebra"}),
        ("mcp__emacs__test_output", {}),
        ("mcp__emacs__diagnostics", {"source": "compilation"}),
    )
    texts = [result_of(request) for request in results]
    if stage.far is None:
        assert "greeting.py:4: def greet" in texts[0]
        assert "greeting.py:9: print(greet)" in texts[1]
        assert "(1 in a file that Emacs does not show, not listed.)" in texts[1]
    assert "secret" not in texts[1]
    assert "| greet(name: str) -> str" in texts[2]
    assert stage.emacs.text('(car (split-string (documentation \'car) "\\n"))') in texts[3]
    assert 'Node "Part": About zebras.' in texts[4]
    assert "| greeting.py:5:1: error: cold" in texts[5]
    assert "greeting.py:5:1: error greeting.py:5:1: error: cold" in texts[6]

    # What is typed in a minibuffer while Emacs answers is all there, and the answer comes.
    stage.model.call("mcp__emacs__symbols", path=greeting.name)
    stage.model.say("Done with it.")
    stage.screen.type("go on")
    stage.emacs.type_into("python-imenu-create-index", ", typed at once", send_from_a_minibuffer)
    stage.model.next_request()
    assert FOUND in result_of(stage.model.next_request())
    assert leave_minibuffer(stage) == "half, typed at once"

    # Another process of the backend answers a CLI that noticed nothing, and an Emacs that is busy is waited for.
    old = stage.sandbox.backend()
    old.kill()
    # Emacs may notice the end of the old one a moment later, and says that it is ready until then.
    stage.screen.wait_until(
        lambda: [each.pid for each in stage.sandbox.backends()] not in ([], [old.pid]), "another backend"
    )
    stage.emacs.wait_until("(and (qwen-companion-backend-connected-p) (eq 'ready (qwen-companion-state)))")
    _, busy, answered = ask(("mcp__emacs__busy", {}), ("mcp__emacs__symbols", {"path": greeting.name}))
    assert "Busy now." in json.dumps(busy.body["messages"][-1])
    assert "greeting.py:4: greet" in json.dumps(answered.body["messages"][-1])

    # Two hundred calls of a client in the project: in a minibuffer, with Emacs busy for three seconds, and over the
    # death of the backend.
    with calling(stage, greeting) as call_fifty:
        enter_minibuffer(stage)
        assert call_fifty() == [FOUND] * 50
        assert leave_minibuffer(stage) == "half"
        stage.emacs.eval(
            "(progn (run-at-time 0 nil (lambda () (let ((end (+ 3 (float-time)))) (while (< (float-time) end))))) nil)"
        )
        answers = call_fifty()
        assert len(answers) == 50
        assert {answer for answer in answers if answer != FOUND} <= {answer for answer in answers if is_busy(answer)}
        stage.sandbox.backend().kill()
        answers = call_fifty()
        assert len(answers) == 50
        stage.emacs.wait_until("(and (qwen-companion-backend-connected-p) (eq 'ready (qwen-companion-state)))")
        assert call_fifty() == [FOUND] * 50
    stage.emacs.eval(
        "(progn (remove-hook 'python-mode-hook #'flymake-mode) (remove-hook 'python-mode-hook #'know-greet)"
        " (setq qwen-companion-tools-servers '(xref-lsp eglot)) (pop Info-directory-list) nil)"
    )
