# SPDX-License-Identifier: GPL-3.0-or-later
"""A rewind in a terminal, killed at each step: nothing is lost, and what remains to be done is said."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final

import psutil
import pytest

from editor import lisp_string
from sandbox import GREETING, NOTES, has_ended
from stage import PATIENCE, Stage
from test_changes import FREE, ask
from test_chat_sessions import wait_until
from test_rewind import AGENT, PROMPT_BUFFER, TURNS, ask_on, rewind_turn, user_adds, wait_until_it_goes_on

pytestmark = pytest.mark.interop

PROGRAMS = ("qwen-0.23.4", "qwen")
HOLD: Final = Path(__file__).with_name("hold_requests.cjs")
PROMPTS: Final = ("make a file", "change a lot", "and once more")
WANTED: Final = {
    "greeting.py": "# by the user\n" + GREETING,
    "notes.txt": "by the user\n" + NOTES,
    "made.txt": "made\n",
}
"""The files after the rewind to before the second prompt."""

FUNCTIONS: Final = {
    "between files": ("qwen-companion-undo-files", 2),
    "between files and conversation": ("qwen-companion-rewind-cli-ask", 1),
    "before --resume": ("qwen-companion-terminal-replace", 1),
}
"""The steps of Emacs: each is held in the nth call of a function."""

REQUESTS: Final = {
    "before the session is loaded": "^POST .*/load$",
    "before the fork": "^POST .*/branch$",
    "before the daemon's rewind": "^POST .*/rewind$",
    "after the daemon's rewind": "^DELETE /session/",
}
"""Those of the daemon: each is held at a request."""

STEPS: Final = [
    *((step, victim) for step in FUNCTIONS for victim in ("backend", "emacs")),
    *((step, victim) for step in REQUESTS for victim in ("daemon", "backend", "emacs")),
]

SAID: Final = {
    "daemon": "Rewinding the conversation failed",
    "backend": f'The rewind to before "{PROMPTS[1]}" in',
    "emacs": f'The rewind to before "{PROMPTS[1]}" in',
}
"""What Emacs says by itself, after its next start where it was killed."""

HOLD_CALL: Final = """
(let ((calls 0))
  (defun hold-call (&rest _)
    (when (= NUMBER (setq calls (1+ calls)))
      (write-region "" nil "HELD" nil 0)
      (while (not (file-exists-p "GO"))
        (accept-process-output nil 0.05))))
  (advice-add 'FUNCTION :before #'hold-call))
"""


def forms_to_hold(step: str, held: Path, go: Path) -> tuple[str, ...]:
    """Return the forms with which Emacs or the daemon stops at `step`, and the file `held` says that it has."""
    if step in FUNCTIONS:
        function, number = FUNCTIONS[step]
        form = HOLD_CALL.replace("NUMBER", str(number)).replace("HELD", str(held)).replace("GO", str(go))
        return (form.replace("FUNCTION", function),)
    return (
        f'(setenv "NODE_OPTIONS" (concat (getenv "NODE_OPTIONS") {lisp_string(f" --require={HOLD}")}))',
        f'(setenv "HELD_REQUEST" {lisp_string(REQUESTS[step])})',
        f'(setenv "HELD_FILE" {lisp_string(str(held))})',
    )


def files(stage: Stage) -> dict[str, str]:
    return {path.name: path.read_text() for path in stage.sandbox.project.iterdir() if path.is_file()}


def kill(stage: Stage, victim: str, held: Path) -> None:
    """Kill `victim`, and wait until what ends with it has ended."""
    backend = stage.sandbox.backend()
    process = {"backend": backend, "emacs": stage.emacs.process}.get(victim) or psutil.Process(int(held.read_text()))
    process.send_signal(signal.SIGKILL)
    assert has_ended(process, PATIENCE)
    if victim == "emacs":
        assert has_ended(backend, PATIENCE)
        stage.screen.wait_until(lambda: not stage.sandbox.clis(), "the end of the CLI and of the daemon")


def check_all_is_there(stage: Stage, before: dict[str, str]) -> None:
    """Check that each file is as `before` or as it has to be in the end, and that no prompt is lost."""
    found = files(stage)
    assert all(found.get(name) in (before.get(name), WANTED.get(name)) for name in before), found
    transcripts = "\n".join(path.read_text() for path in (stage.sandbox.home / ".qwen/projects").rglob("*.jsonl"))
    assert all(prompt in transcripts for prompt in PROMPTS)


def resume(stage: Stage) -> None:
    """Go on with the conversation of the last turn in another Emacs."""
    stage.emacs.eval("(qwen-companion-journal-watch 'test t)")
    wait_until(stage, TURNS)
    project = lisp_string(str(stage.sandbox.project))
    session = f"(qwen-companion-turn-session (car (last {TURNS})))"
    stage.emacs.eval(f'(qwen-companion-terminal-open {project} (list "--resume" {session}))')
    stage.screen.wait_for("Type your message")


def rewind_again(stage: Stage) -> None:
    """Do what remains to be done as it was said, and wait until the conversation goes on."""
    wait_until_it_goes_on(stage)
    stage.emacs.eval(f"(progn (find-file {lisp_string(str(stage.sandbox.greeting))}) (delete-other-windows))")
    stage.emacs.command("qwen-companion-rewind")
    stage.screen.wait_for("Rewind to before:")
    # The newest is the first.
    stage.screen.type("2")
    stage.screen.keys("Tab", "Enter")
    stage.screen.wait_for("the conversation too")
    stage.screen.keys("y")
    stage.screen.wait_for("the prompt is in the prompt buffer")
    assert stage.emacs.buffer_text(PROMPT_BUFFER) == PROMPTS[1]


def check_end(stage: Stage) -> None:
    """Check that files and conversation are as at the prompt, and the turns are marked."""
    stage.emacs.command("qwen-companion-changes")
    stage.screen.wait_for(f"rewound  {PROMPTS[1]}")
    stage.screen.wait_for(f"rewound  {PROMPTS[2]}")
    assert files(stage) == WANTED
    said = ask_on(stage)
    assert [prompt in said for prompt in PROMPTS] == [True, False, False]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(("step", "victim"), STEPS)
def test_nothing_is_lost(stage: Stage, step: str, victim: str, program: str) -> None:
    project = stage.sandbox.project
    held, go = stage.sandbox.run / "held", stage.sandbox.run / "go"
    forms = (FREE, f'(setq qwen-companion-qwen-command \'("{program}"))')
    stage.start_emacs(stage.sandbox.greeting, forms=(*forms, *forms_to_hold(step, held, go)))
    stage.start_cli()
    stage.model.call("write_file", file_path=str(project / "made.txt"), content="made\n")
    ask(stage, PROMPTS[0], "Made.")
    stage.script_change(stage.sandbox.greeting, AGENT)
    ask(stage, PROMPTS[1], "Changed.")
    stage.model.call("write_file", file_path=str(project / "other.txt"), content="other\n")
    ask(stage, PROMPTS[2], "Done.")
    user_adds(stage, "by the user\n")
    user_adds(stage, "# by the user\n", stage.sandbox.greeting)
    before = files(stage)

    rewind_turn(stage, PROMPTS[1])
    stage.screen.wait_until(held.exists, f"the step {step}")
    kill(stage, victim, held)
    go.touch()
    answered = step == "before --resume"
    is_rewound = answered or step == "after the daemon's rewind"
    if victim == "emacs":
        check_all_is_there(stage, before)
        with stage.beside() as other:
            other.start_emacs(stage.sandbox.greeting, forms=forms)
            if not answered:
                other.wait_until_said(SAID[victim])
            resume(other)
            if not is_rewound:
                rewind_again(other)
            check_end(other)
            other.emacs.quit()
        return
    stage.wait_until_said("the prompt is in the prompt buffer" if answered else SAID[victim])
    check_all_is_there(stage, before)
    stage.screen.wait_for("Qwen[1]")
    if not is_rewound:
        rewind_again(stage)
    check_end(stage)
