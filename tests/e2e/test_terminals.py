# SPDX-License-Identifier: GPL-3.0-or-later
"""Several CLIs in terminals of one project: start another, continue a conversation, hide and show."""

from __future__ import annotations

import re

from stage import Stage

TERMINALS = (
    "(length (seq-filter (lambda (b) (process-live-p (get-buffer-process b))) (qwen-companion-terminal-buffers)))"
)

CONVERSATION = (
    "(qwen-companion-cli-state-conversation (qwen-companion-session-state (car (qwen-companion-backend-sessions))))"
)

PASTE_IMAGE = r"""
  (cl-letf (((symbol-function 'gui-get-selection) (lambda (&rest _) "\211PNG\r\n")))
    (with-current-buffer "*qwen: project*<2>" (qwen-companion-paste-image)))"""


def test_clis_in_terminals_of_one_project(stage: Stage) -> None:
    stage.start()
    assert "remember the teapot" in stage.asked("remember the teapot")

    if stage.far is None:
        # There the CLI has an editor of that place.
        edit_what_is_typed(stage)

    stage.emacs.command("qwen-companion-toggle")
    stage.screen.wait_until(lambda: "*qwen: project*" not in stage.emacs.visible_buffers(), "the terminal hidden")
    stage.emacs.command("qwen-companion-toggle")
    stage.screen.wait_for("So much for remember the teapot.")
    assert stage.emacs.eval(TERMINALS) == "1"

    if stage.far is None:
        # Two CLIs in one conversation would lose turns.
        for command in "qwen-companion-resume", "qwen-companion-continue":
            stage.emacs.eval('(message "")')
            stage.emacs.command(command)
            if command == "qwen-companion-resume":
                choose_here(stage)
            stage.screen.wait_for("That conversation is open in this terminal")
        assert stage.emacs.eval(TERMINALS) == "1"
        conversation = stage.emacs.eval(CONVERSATION)
        stage.screen.type("/clear", seen="/clear")
        stage.screen.keys("Enter")
        stage.emacs.wait_until(f"(not (equal {CONVERSATION} {conversation}))")

    # Another one, which goes on with what was said.
    stage.emacs.command("qwen-companion-resume")
    if stage.far is None:
        choose_here(stage)
    else:
        choose_there(stage)
    stage.screen.wait_for("Qwen[2]")
    stage.screen.wait_for(re.compile(r"> remember the teapot(?s:.*)Type your message(?s:.*)qwen: project\*<2>"))
    assert stage.emacs.eval(TERMINALS) == "2"

    # A third with the same arguments in place of the second.
    process = '(process-id (get-buffer-process "*qwen: project*<2>"))'
    before = stage.emacs.eval(process)
    stage.emacs.command("qwen-companion-restart")
    stage.screen.wait_for("End the CLI in")
    stage.screen.enter("yes")
    if stage.far is not None:
        stage.emacs.wait_until(f"(and (= 2 {TERMINALS}) (/= {before} {process}))")
        choose_there(stage)
    stage.emacs.wait_until(
        f"(and (= 2 {TERMINALS}) (/= {before} {process}) (= 2 (length (qwen-companion-backend-sessions))))"
    )
    # What the second one showed is like it.
    resumed = re.compile(r"> remember the teapot(?s:.*)Type your message")
    stage.screen.wait_until(
        lambda: resumed.search(stage.emacs.buffer_text("*qwen: project*<2>")), "the conversation in the third terminal"
    )

    stage.emacs.eval(PASTE_IMAGE)
    # The CLI takes the mention of an image for the image.
    stage.screen.wait_for("Attachments: [")
    # Emacs says nothing of the file, but for TRAMP of its copy.
    messages = re.sub("^Copying .*$", "", stage.emacs.buffer_text("*Messages*"), flags=re.MULTILINE)
    assert not re.search(r"image-\w+\.png", messages)


def choose_here(stage: Stage) -> None:
    """Go on with the conversation, one of those that Emacs offers."""
    stage.screen.wait_for("Continue conversation:")
    stage.screen.type("teapot")
    stage.screen.keys("Tab", "Enter")


def choose_there(stage: Stage) -> None:
    """Go on with the conversation that the CLI at another place offers by itself."""
    stage.screen.wait_for("› remember the teapot")
    stage.screen.keys("Enter")


def edit_what_is_typed(stage: Stage) -> None:
    """Type half a line to the CLI, whose editor this Emacs is, and go on there."""
    stage.screen.type("half a line", seen="half a line")
    stage.emacs.eval('(with-current-buffer "*qwen: project*" (vterm-send-key "x" nil nil t))')
    # Soon that the context is told takes its place on the screen.
    stage.screen.wait_until(
        lambda: "When done with a buffer, type C-x #" in stage.emacs.buffer_text("*Messages*"), "a text to edit"
    )
    stage.screen.keys("M->")
    stage.screen.type(" and the rest")
    # The CLI waits for its editor and reads nothing: what is said to it meanwhile must come from keys.
    stage.screen.keys("C-x", "C-s", "C-x", "#")
    stage.screen.wait_for(re.compile("^> +half a line and the rest", re.MULTILINE))
    stage.emacs.eval('(select-window (get-buffer-window "*qwen: project*"))')
    stage.model.say("Edited.")
    stage.screen.keys("Enter")
    stage.screen.wait_for("Edited.")
