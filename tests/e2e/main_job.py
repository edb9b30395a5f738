# SPDX-License-Identifier: GPL-3.0-or-later
"""The main job as one list of steps, each with what the user sees then; `make configurations` goes through it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from editor import EmacsError, lisp_string
from plans import PLAN
from sandbox import EDITED, NOTES
from stage import Stage

TERMINAL: Final = "*qwen: project*"
CHANGES: Final = "*qwen-companion changes*"
HUNKS: Final = "*qwen-companion hunks: greeting.py*"
MINE: Final = "# mine"
EDITED_BY_HAND: Final = EDITED + MINE
EDITED_AGAIN: Final = EDITED_BY_HAND.replace('"world"', '"everybody"')


STEPS: Final = ("connect", "select", "ask", "Ediff", "edit", "accept", "hunks", "reject", "follow", "undo", "plan")

PREPARE: Final = """
(progn
  (defvar main-job-configured nil)
  (defvar main-job-told nil)
  (advice-add 'qwen-companion-backend-call :before
              (lambda (method payload)
                (when (eq method 'context)
                  (setq main-job-told payload)))))
"""
"""The form that Emacs evaluates at its start: the step `select` sees by it which context was told last."""


class MainJob:
    """The steps on `stage`, whose Emacs is not started yet; each begins where the one before it ended.

    Keys and names of commands are typed.  What only chooses a window is done by Lisp, since that depends on the user's
    own rules for windows and frames.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    @property
    def steps(self) -> dict[str, Callable[[], None]]:
        """The steps by their names, in their order."""
        acts = (
            self._connect,
            self._select,
            self._ask,
            self._review_in_ediff,
            self._edit,
            self._accept,
            self._review_hunks,
            self._reject,
            self._follow,
            self._undo,
            self._plan,
        )
        return dict(zip(STEPS, acts, strict=True))

    # --- The steps

    def _connect(self) -> None:
        """Start the CLI from Emacs: the mode line counts it."""
        self._command("qwen-companion-mode")
        self._true("(and (fboundp 'qwen-companion-state) (eq 'ready (qwen-companion-state)))", "the mode ready")
        self._command("qwen-companion-run")
        self._stage.screen.wait_for("Type your message")
        self._counted("Qwen[1]")

    def _select(self) -> None:
        """Select lines: they reach the model with the next prompt."""
        self._go("greeting.py")
        self._keys("M-<", "C-Space", "Down", "Down")
        self._true("(eql 3 (plist-get main-job-told :line))", "the position on line 3 told")
        self._go(TERMINAL)
        self._prompt("what is selected?", "Two lines are.")
        assert "```\n# A small program" in self._stage.model.next_request().prompt, "the model was told no selection"

    def _ask(self) -> None:
        """Send a prompt from the file: its window stays selected."""
        stage = self._stage
        self._go("greeting.py")
        stage.script_change(stage.sandbox.greeting, EDITED)
        self._command("qwen-companion-ask")
        self._selected("*qwen prompt: project*")
        self._type("greet better")
        self._keys("C-c", "C-c")
        self._asked("greet better")
        self._selected("greeting.py")

    def _review_in_ediff(self) -> None:
        """Go to the proposal that has opened, and to its first change."""
        self._counted("Qwen[1!1]")
        self._selected("greeting.py")
        self._command("qwen-companion-review")
        self._true("(qwen-companion-review-shown)", "the review open")
        # Where there is little room.
        if self._stage.emacs.eval(f"(window-live-p (get-buffer-window {lisp_string(HUNKS)} t))") == "t":
            self._keys("Tab")
        proposal = lisp_string("*qwen-companion proposal: greeting.py*")
        self._true(f"(get-buffer-window {proposal} t)", "the proposal in a window")
        self._stage.screen.wait_for("good day")
        change = 'eql {} (buffer-local-value \'ediff-current-difference (get-buffer "*Ediff Control Panel*"))'
        # It has one, and shows it.
        for keys, number in (((), 0), (("n",), 1), (("p",), 0)):
            self._keys(*keys)
            self._true(f"({change.format(number)})", f"change {number + 1} of 1 after {keys}")

    def _edit(self) -> None:
        """Edit the proposal in its side."""
        self._keys("e")
        self._selected("*qwen-companion proposal: greeting.py*")
        self._keys("M->")
        self._type(MINE)
        self._holds_buffer("*qwen-companion proposal: greeting.py*", EDITED_BY_HAND)

    def _accept(self) -> None:
        """Accept it: the file is written with the edit, and the buffer and the model have that."""
        self._stage.model.say("All done.")
        self._keys("C-c", "C-c")
        self._holds(self._stage.sandbox.greeting, EDITED_BY_HAND)
        while MINE not in "".join(self._stage.model.next_request().tool_results):
            pass
        self._true("(null (qwen-companion-proposals))", "the review over")
        self._answered("All done.")
        self._go(TERMINAL)

    def _review_hunks(self) -> None:
        """Go to the next proposal by the key of the terminal; drop a hunk and bring it back."""
        stage = self._stage
        stage.script_change(stage.sandbox.greeting, EDITED_AGAIN)
        self._prompt("greet all")
        self._counted("Qwen[1!1]")
        self._selected(TERMINAL)
        self._keys("C-c", ",", "r")
        self._true(f"(not (equal {lisp_string(TERMINAL)} (buffer-name (window-buffer))))", "the review selected")
        if self._stage.emacs.eval(f"(equal {lisp_string(HUNKS)} (buffer-name (window-buffer)))") != "t":
            self._keys("Tab")
        self._selected(HUNKS)
        stage.screen.wait_for(re.compile(r'\+ .*"everybody"'))
        for key, count in (("k", "0 of 1"), ("u", "1 of 1")):
            self._keys(key)
            self._true(
                f"(string-search {lisp_string(count)}"
                ' (or (buffer-local-value \'qwen-companion-review-unified--status (window-buffer)) ""))',
                f"{count} hunk kept",
            )

    def _reject(self) -> None:
        """Reject it: nothing is written, and the CLI waits for the next prompt."""
        self._keys("C-c", "C-k")
        self._true("(null (qwen-companion-proposals))", "the review over")
        self._go(TERMINAL)
        self._stage.screen.wait_gone("Yes, allow once")
        self._stage.screen.wait_for("Type your message")
        self._holds(self._stage.sandbox.greeting, EDITED_BY_HAND)

    def _follow(self) -> None:
        """Let a command of the model write a file: its buffer follows."""
        stage = self._stage
        stage.emacs.eval(f"(progn (find-file-noselect {lisp_string(str(stage.sandbox.notes))}) nil)")
        stage.model.call("run_shell_command", command="echo kiwis >> notes.txt", is_background=False)
        self._prompt("add kiwis")
        stage.screen.wait_for("Yes, allow once")
        stage.model.say("Kiwis added.")
        self._keys("Enter")
        self._answered("Kiwis added.")
        self._holds(stage.sandbox.notes, NOTES + "kiwis\n")

    def _undo(self) -> None:
        """Undo that turn in the list of changes, on the disk and in the buffer."""
        stage = self._stage
        # In a `term' M-x is a key of the terminal.
        self._go("greeting.py")
        self._command("qwen-companion-changes")
        self._selected(CHANGES)
        self._true(
            '(with-current-buffer (window-buffer) (string-search "add kiwis" (buffer-string)))', "the turn listed"
        )
        stage.emacs.eval(
            '(with-current-buffer (window-buffer) (goto-char (point-min)) (search-forward "add kiwis")'
            " (beginning-of-line) (set-window-point nil (point)))"
        )
        self._keys("k")
        stage.screen.wait_for(re.compile(r"Undo.*\(y or n\)", re.DOTALL))
        self._keys("y")
        self._holds(stage.sandbox.notes, NOTES)

    def _plan(self) -> None:
        """Approve a plan: the model is told."""
        stage = self._stage
        self._go(TERMINAL)
        self._type("/approval-mode plan")
        self._keys("Enter")
        stage.screen.wait_for("plan mode")
        stage.model.call("exit_plan_mode", plan=PLAN)
        self._prompt("plan it")
        self._true("(equal '(plan) (mapcar #'qwen-companion-proposal-kind (qwen-companion-proposals)))", "the plan")
        self._keys("C-c", ",", "r")
        stage.screen.wait_for("Buy plums")
        stage.model.say("A fine plan.")
        self._keys("C-c", "C-c")
        while "User approved" not in "".join(stage.model.next_request().tool_results):
            pass
        self._answered("A fine plan.")

    # --- Their parts

    def _keys(self, *keys: str) -> None:
        self._stage.screen.keys(*keys)

    def _true(self, form: str, sight: str) -> None:
        """Wait until `form`, by which Emacs tells of `sight`, is true."""
        try:
            self._stage.emacs.wait_until(form)
        except EmacsError as error:
            reason = str(error).splitlines()[-1].removeprefix("*ERROR*: ")
            raise AssertionError(f"{sight}: {reason}") from error

    def _command(self, name: str) -> None:
        """Type M-x `name` RET."""
        self._keys("M-x")
        self._true("(active-minibuffer-window)", "a prompt for M-x")
        self._stage.screen.type(name)
        # Helm refuses RET until it has drawn the candidates.
        self._true(
            f"(or (not (bound-and-true-p helm-alive-p)) (equal {lisp_string(name)} (helm-get-selection)))",
            f"the candidate {name}",
        )
        self._keys("Enter")

    def _type(self, text: str) -> None:
        """Type `text`, in a modal editor after the key that lets keys type."""
        commands = (
            "(or (eq 'normal (bound-and-true-p evil-state)) (eq 'vi-state (bound-and-true-p viper-current-state)))"
        )
        if self._stage.emacs.eval(f"(with-current-buffer (window-buffer) {commands})") == "t":
            self._keys("i")
        self._stage.screen.type(text)

    def _go(self, name: str) -> None:
        """Select the buffer `name`, in its window if it has one."""
        self._stage.emacs.eval(
            f"(let* ((buffer (get-buffer {lisp_string(name)})) (window (get-buffer-window buffer t)))"
            " (if window (progn (select-frame-set-input-focus (window-frame window)) (select-window window))"
            " (switch-to-buffer buffer)) nil)"
        )
        self._selected(name)

    def _selected(self, name: str) -> None:
        """Wait until the buffer `name` is in the selected window."""
        self._true(f"(equal {lisp_string(name)} (buffer-name (window-buffer)))", f"{name} selected")

    def _counted(self, lighter: str) -> None:
        """Wait until the mode line says `lighter`, in a window that is wide enough."""
        self._true(f"(string-search {lisp_string(lighter)} (format-mode-line minor-mode-alist))", lighter)

    def _prompt(self, text: str, answer: str | None = None) -> None:
        """Type the prompt `text` into the terminal, and wait until the `answer` of the model, if any, is shown."""
        if answer is not None:
            self._stage.model.say(answer)
        self._type(text)
        self._keys("Enter")
        if answer is not None:
            self._answered(answer)

    def _answered(self, answer: str) -> None:
        """Wait until the terminal has the `answer` of the model, on the screen or scrolled off.

        In a terminal of a few lines the CLI's own prompt hides it: there the list of CLIs has it.
        """
        text = lisp_string(answer)
        self._true(
            f"(or (with-current-buffer {lisp_string(TERMINAL)} (string-search {text} (buffer-string)))"
            f" (and (< (frame-height) 24) (seq-some (lambda (session) (equal {text} (qwen-companion-cli-state-said"
            " (qwen-companion-session-state session)))) (qwen-companion-backend-sessions))))",
            f"{answer!r} in the terminal",
        )

    def _asked(self, prompt: str) -> None:
        """Wait until the model has got `prompt`."""
        while prompt not in self._stage.model.next_request().prompt:
            pass

    def _holds(self, path: Path, text: str) -> None:
        """Wait until the file `path` has `text`, and so has its buffer, unmodified."""
        self._stage.screen.wait_until(lambda: path.read_text() == text, f"{path.name} as {text!r}")
        self._holds_buffer(path.name, text)
        self._true(
            f"(with-current-buffer {lisp_string(path.name)}"
            " (and (not (buffer-modified-p)) (verify-visited-file-modtime)))",
            f"{path.name} unmodified",
        )

    def _holds_buffer(self, name: str, text: str) -> None:
        """Wait until the buffer `name` has `text`."""
        emacs = self._stage.emacs
        self._stage.screen.wait_until(lambda: emacs.buffer_text(name) == text, f"the buffer {name} as {text!r}")
