# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes the pictures of the README from the running demo, on a screen of its own: `make screenshots`.

Needs an Emacs that draws windows with Cairo and Xvfb; for the one of a terminal also xterm and ImageMagick's `import`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

DEMO = Path(__file__).resolve().parent
CHECKOUT = DEMO.parent
PICTURES = CHECKOUT / "docs"
sys.path[:0] = [str(CHECKOUT / "tests/e2e"), str(CHECKOUT / "tests/helpers")]

import demo_script  # noqa: E402  the path is set first
from display import display  # noqa: E402
from editor import Emacs, EmacsError, lisp_string  # noqa: E402
from model_types import Answer, Call, ModelRequest  # noqa: E402
from sandbox import Sandbox  # noqa: E402
from scripted_model import ModelServer, side_answer  # noqa: E402
from terminal import Screen  # noqa: E402

PATIENCE_S = 60.0
FONT = "DejaVu Sans Mono"
TERMINAL_PROGRAMS = ("xterm", "import")
HUNKS_SHOWN = """
(cl-some (lambda (window)
           (with-current-buffer (window-buffer window)
             (and (derived-mode-p 'qwen-companion-unified-mode)
                  (save-excursion (goto-char (point-min)) (re-search-forward "^@@" nil t)))))
         (window-list nil 'no-minibuffer))
"""


def wait_for(emacs: Emacs, form: str) -> None:
    """Ask `emacs` again and again until `form` is true."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if emacs.eval(form) != "nil":
                return
        except EmacsError:
            pass  # Not up yet.
        time.sleep(0.2)
    raise TimeoutError(f"never true: {form}")


def start_demo(sandbox: Sandbox) -> str:
    """Return the form with which Emacs begins the demo, without its guide."""
    return f"(demo-start {lisp_string(str(sandbox.greeting))})"


def start_chat(sandbox: Sandbox) -> str:
    """Return the form with which Emacs shows a file and has room for a chat."""
    return f"(demo-start-chat {lisp_string(str(sandbox.greeting))})"


def review(emacs: Emacs, typed: Callable[[], None] = lambda: None) -> None:
    """Play the demo up to its first review; call `typed` when the prompt is typed and not sent."""
    wait_for(emacs, "(qwen-companion-backend-sessions)")
    cli = "(with-current-buffer (car (qwen-companion-terminal-buffers)) {})"
    wait_for(emacs, cli.format('(string-match-p "Type your message" (buffer-string))'))
    emacs.eval(cli.format('(vterm-send-string "greet politely")'))
    wait_for(emacs, cli.format('(string-match-p "> +greet politely" (buffer-string))'))
    typed()
    emacs.eval(cli.format("(vterm-send-return)"))
    wait_for(emacs, '(get-buffer-window "*Ediff Control Panel*" t)')
    wait_for(emacs, cli.format('(string-match-p "Yes, allow once" (buffer-string))'))


def hunks(emacs: Emacs) -> None:
    """Play the demo up to its first review, hunk by hunk."""
    review(emacs)
    emacs.eval("(qwen-companion-diff-switch)")
    wait_for(emacs, HUNKS_SHOWN)


def changes(emacs: Emacs) -> None:
    """Accept the first review, show the changes of the turn, and undo a hunk of it."""
    review(emacs)
    emacs.eval("(qwen-companion-diff-accept)")
    wait_for(
        emacs,
        "(progn (qwen-companion-journal-watch 'picture t)"
        " (and (qwen-companion-journal-turns) (qwen-companion-turn-end (car (qwen-companion-journal-turns)))))",
    )
    emacs.eval("(progn (delete-other-windows) (qwen-companion-changes) (delete-other-windows))")
    in_changes = '(with-selected-window (get-buffer-window "*qwen-companion changes*") {})'
    emacs.eval(
        in_changes.format(
            '(progn (goto-char (point-min)) (search-forward "greeting.py") (qwen-companion-changes-toggle-fold))'
        )
    )
    hunk = '(progn (goto-char (point-min)) (re-search-forward "^@@" nil t))'
    wait_for(emacs, in_changes.format(hunk))
    emacs.eval(in_changes.format(f"(progn {hunk} (qwen-companion-changes-undo))"))
    wait_for(emacs, in_changes.format('(string-match-p "you  Undo" (buffer-string))'))
    emacs.eval("(progn (message nil) (set-mouse-position (selected-frame) 0 0))")


PLAN = """\
# A politer greeting

1. Let `greet` in `greeting.py` say *a very good day to you* in place of hello.
2. Sort the lines of `notes.txt`, so that greetings stand together.
3. Run `python greeting.py` and look at what it prints.

> Nothing else in the project uses the old greeting.
"""


def propose_plan(_request: ModelRequest) -> Answer:
    """Ask to leave the plan mode."""
    return Answer(calls=(Call("exit_plan_mode", {"plan": PLAN}),))


def plan(emacs: Emacs) -> None:
    """Have a plan proposed, change a line of it, and note a comment on another one."""
    wait_for(emacs, "(qwen-companion-backend-sessions)")
    cli = "(with-current-buffer (car (qwen-companion-terminal-buffers)) {})"
    for typed, awaited in (("/approval-mode plan", "plan mode"), ("Plan a politer greeting.", "")):
        wait_for(emacs, cli.format('(string-match-p "Type your message" (buffer-string))'))
        emacs.eval(cli.format(f"(vterm-send-string {lisp_string(typed)})"))
        wait_for(emacs, cli.format(f'(string-match-p "> +{typed}" (buffer-string))'))
        emacs.eval(cli.format("(vterm-send-return)"))
        wait_for(emacs, cli.format(f'(string-match-p "{awaited}" (buffer-string))'))
    wait_for(emacs, "(qwen-companion-review-shown)")
    shown = "(qwen-companion-proposal-buffer (car (qwen-companion-proposals)))"
    in_plan = f"(with-selected-window (get-buffer-window {shown}) {{}})"
    emacs.eval(
        in_plan.format(
            '(progn (search-forward "python ") (insert "-W error ") (search-backward "notes.txt")'
            ' (cl-letf (((symbol-function \'read-string) (lambda (&rest _) "Leave the notes as they are.")))'
            " (qwen-companion-diff-comment)))"
        )
    )
    emacs.eval("(progn (message nil) (set-mouse-position (selected-frame) 0 0))")


def worktrees(emacs: Emacs) -> None:
    """Have two CLIs change files in worktrees, and show the list above the differences of one of them."""
    accept = "(and (qwen-companion-proposals) (progn (qwen-companion-diff-accept) t))"
    wait_for(emacs, "(qwen-companion-backend-sessions)")
    for name, prompt in (("greeting", "greet politely"), ("notes", "sort the notes")):
        emacs.eval('(progn (pop-to-buffer "greeting.py") (delete-other-windows))')
        emacs.eval(f'(with-current-buffer "greeting.py" (qwen-companion-run-in-worktree "{name}"))')
        cli = f'(with-current-buffer "*qwen: {name}*" {{}})'
        wait_for(emacs, cli.format('(string-match-p "Type your message" (buffer-string))'))
        emacs.eval(cli.format(f"(vterm-send-string {lisp_string(prompt)})"))
        wait_for(emacs, cli.format(f'(string-match-p "> +{prompt}" (buffer-string))'))
        emacs.eval(cli.format("(vterm-send-return)"))
        wait_for(emacs, '(get-buffer-window "*Ediff Control Panel*" t)')
        wait_for(emacs, accept)
        wait_for(emacs, cli.format('(string-match-p "It is written" (buffer-string))'))
    # What the user has written meanwhile contradicts one of them.
    emacs.eval(
        '(with-current-buffer "greeting.py" (goto-char (point-min)) (search-forward "\\"hello ")'
        ' (replace-match "\\"good morning ") (save-buffer) (qwen-companion-worktrees) (delete-other-windows))'
    )
    in_list = '(with-current-buffer "*qwen-companion worktrees*" {})'
    row = '(progn (goto-char (point-min)) (re-search-forward "worktree-greeting.*\\\\+0 -0 +1" nil t))'
    wait_for(emacs, in_list.format(row))
    emacs.eval(
        '(with-selected-window (get-buffer-window "*qwen-companion worktrees*")'
        f" (split-window-below 8) {row} (forward-line 0) (call-interactively #'qwen-companion-worktrees-diff))"
    )
    in_changes = '(with-selected-window (get-buffer-window "*qwen-companion changes*") {})'
    wait_for(emacs, in_changes.format('(progn (goto-char (point-min)) (search-forward "greeting.py" nil t))'))
    emacs.eval(in_changes.format("(qwen-companion-changes-toggle-fold)"))
    wait_for(emacs, in_changes.format('(progn (goto-char (point-min)) (re-search-forward "^@@" nil t))'))
    emacs.eval("(progn (message nil) (set-mouse-position (selected-frame) 0 0))")


def chat(emacs: Emacs) -> None:
    """Chat beside a file until a change is asked for."""

    def in_chat(form: str) -> str:
        return f"(with-current-buffer (car (qwen-companion-chat-buffers)) {form})"

    def say(text: str) -> None:
        emacs.eval(in_chat(f"(progn (goto-char (point-max)) (insert {lisp_string(text)}) (qwen-companion-chat-send))"))

    wait_for(emacs, "(eq (qwen-companion-state) 'ready)")
    emacs.eval('(with-current-buffer "greeting.py" (call-interactively #\'qwen-companion-daemon-start))')
    wait_for(emacs, "(eq (qwen-companion-daemon-state) 'connected)")
    emacs.eval("(let ((display-buffer-overriding-action '(display-buffer-same-window))) (qwen-companion-chat))")
    idle = in_chat("(eq 'idle (plist-get qwen-companion-chat-session :state))")
    wait_for(emacs, idle)
    say("explain it")
    wait_for(emacs, in_chat('(string-match-p "f\\"hello" (buffer-string))'))
    wait_for(emacs, idle)
    say("Now greet politely.")
    wait_for(emacs, in_chat('(string-match-p "^\\\\+.*a very good day" (buffer-string))'))
    # What the pointer is over would be highlighted.
    emacs.eval("(progn (message nil) (set-mouse-position (selected-frame) 0 0))")


def take(
    name: str,
    terminal: Sequence[str],
    columns: int,
    lines: int,
    start: Callable[[Sandbox], str],
    play: Callable[[Emacs], None],
    respond: Callable[[ModelRequest], Answer] = demo_script.respond,
) -> None:
    """Begin with `start`, let `play` do something in Emacs, and take the picture `name`.

    `terminal` is the command that runs Emacs in a terminal; empty for an Emacs with a window of its own.  The model
    answers by `respond`.
    """
    sandbox = Sandbox()
    server = ModelServer(lambda request: side_answer(request) or respond(request))
    try:
        with display(columns * 9, lines * 18) as where:
            environment = {
                **sandbox.environment(),
                **server.environment(),
                "DISPLAY": where.name,
                "TERM": "xterm-256color",
            }
            emacs = Emacs(sandbox, Screen(sandbox.run, environment), environment)
            program = os.environ.get("EMACS") or "emacs"
            command = [*terminal, program, *(["-nw"] if terminal else ["--fullscreen", "-fn", f"{FONT}-10"]), "-Q"]
            forms = (
                emacs.server_form(),
                "(progn (menu-bar-mode -1) (when (fboundp 'tool-bar-mode) (tool-bar-mode -1))"
                " (when (fboundp 'scroll-bar-mode) (scroll-bar-mode -1)) (blink-cursor-mode -1))",
                start(sandbox),
            )
            loads = ["-l", str(CHECKOUT / "scripts/checkout.el"), "-l", str(DEMO / "demo.el")]
            evaluations = [argument for form in forms for argument in ("--eval", form)]
            with subprocess.Popen([*command, *loads, *evaluations], cwd=sandbox.project, env=environment) as process:
                try:
                    play(emacs)
                    emacs.eval("(redisplay t)")
                    picture = ["import", "-window", "root", "-trim", "+repage", str(PICTURES / name)]
                    subprocess.run(picture, env=environment, check=True)
                    emacs.send("(kill-emacs)")
                    process.wait(PATIENCE_S)
                finally:
                    # Else a failure waits here for ever.
                    process.kill()
        sandbox.wait_for_end()
    finally:
        server.close()
        sandbox.remove()


def main() -> int:
    """Take all pictures; return the exit status."""
    if shutil.which("Xvfb") is None:
        print("screenshots: not installed: Xvfb (package xvfb)", file=sys.stderr)
        return 1
    PICTURES.mkdir(exist_ok=True)
    take("review.png", [], 150, 46, start_demo, review)
    missing = [program for program in TERMINAL_PROGRAMS if shutil.which(program) is None]
    if missing:
        print(
            f"screenshots: no terminal.png without {', '.join(missing)} (packages xterm, imagemagick)", file=sys.stderr
        )
    else:
        look = ["-fa", FONT, "-fs", "10", "-bg", "#1c1c1c", "-fg", "#d8d8d8", "-bw", "0", "+sb"]
        # Without its name it says that it has eight colours.
        look += ["-tn", "xterm-256color"]
        xterm = ["xterm", *look, "-geometry", "140x44+0+0", "-e"]
        take("terminal.png", xterm, 126, 44, start_demo, review)
    take("hunks.png", [], 150, 46, start_demo, hunks)
    take("plan.png", [], 120, 40, start_demo, plan, propose_plan)
    take("changes.png", [], 120, 30, start_demo, changes)
    take("worktrees.png", [], 120, 30, start_demo, worktrees)
    take("chat.png", [], 150, 46, start_chat, chat)
    return 0


if __name__ == "__main__":
    sys.exit(main())
