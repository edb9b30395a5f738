# SPDX-License-Identifier: GPL-3.0-or-later
"""Emacs as a daemon, with frames of emacsclient that come and go in a terminal."""

from __future__ import annotations

import pytest

from daemon import CLOSE_DISPLAYS, MODE_ON, WAIT_UNTIL_READY, WINDOW, Daemon
from display import display
from editor import CLIENT, draws_windows
from sandbox import EDITED
from stage import Stage
from terminal import Screen

pytestmark = pytest.mark.local("about frames of Emacs")

EDITED_AGAIN = EDITED.replace('"world"', '"everybody"')


def start_daemon(stage: Stage) -> Daemon:
    """Return a daemon with the mode on and no frame, and a shell on the screen."""
    daemon = stage.emacs = Daemon(stage.sandbox, stage.screen, stage.environment)
    stage.screen.start(["sh"], stage.sandbox.project)
    daemon.start_daemon(forms=(MODE_ON,))
    daemon.wait_until(WAIT_UNTIL_READY)
    assert stage.sandbox.lock_files
    return daemon


def end_shell(stage: Stage) -> None:
    stage.screen.enter("exit")


def test_reviews_in_the_frames_of_clients_that_come_and_go(stage: Stage) -> None:
    daemon = start_daemon(stage)
    daemon.open_frame(stage.sandbox.greeting)
    client = stage.connect_client()
    client.propose(stage.sandbox.greeting, EDITED)
    stage.screen.wait_for("C-c C-c accept")
    stage.emacs.command("qwen-companion-diff-accept")
    assert client.write_accepted(stage.sandbox.greeting) == EDITED

    # With its frame gone the daemon goes on, and so does the connection.
    daemon.close_frame()
    daemon.open_frame(stage.sandbox.greeting)
    stage.screen.wait_for("Qwen[1]")
    assert daemon.buffer_text("greeting.py") == EDITED
    # The root went with the frame's buffer: the client does not work in the project.
    stage.wait_until_published()

    # A review goes with its frame and comes back in the next one.
    client.propose(stage.sandbox.greeting, EDITED_AGAIN)
    stage.screen.wait_for("Qwen[1!1]")
    stage.screen.wait_for("C-c C-c accept")
    daemon.eval(
        '(with-current-buffer "*qwen-companion proposal: greeting.py*" (goto-char (point-max))'
        ' (let ((inhibit-read-only t)) (insert "# by hand")))'
    )
    daemon.close_frame()
    assert stage.sandbox.greeting.read_text() == EDITED
    daemon.open_frame(stage.sandbox.greeting)
    stage.screen.wait_for("Qwen[1!1]")
    stage.screen.wait_for("C-c C-c accept")
    stage.screen.wait_for("# by hand")
    # From a frame on another terminal one goes to it there.
    place = stage.sandbox.run / "second"
    place.mkdir()
    second = Screen(place, stage.environment)
    try:
        second.start([CLIENT, "-t", "-s", str(stage.sandbox.run / "daemon")], stage.sandbox.project)
        second.wait_for("File Edit Options")
        second.keys("M-x")
        second.type("qwen-companion-review")
        second.keys("Enter")
        second.wait_for("C-c C-c accept")
        second.wait_for("# by hand")
        stage.screen.wait_gone("C-c C-c accept")
        second.keys("C-x", "C-c")
        second.wait_gone("C-c C-c accept")
    finally:
        second.close()
    stage.emacs.command("qwen-companion-diff-accept")
    stage.screen.wait_gone("C-c C-c accept")
    assert client.write_accepted(stage.sandbox.greeting) == EDITED_AGAIN + "# by hand"
    daemon.close_frame()
    end_shell(stage)


@pytest.mark.skipif(not draws_windows(), reason="this Emacs draws no windows: EMACS=/path/to/emacs names one that does")
def test_a_review_opens_in_the_frame_of_its_terminal(stage: Stage) -> None:
    daemon = start_daemon(stage)
    daemon.open_frame(stage.sandbox.greeting)
    # Ediff, though a frame of the usual size has little room for it beside the terminal.
    daemon.eval("(setq qwen-companion-review-ediff--least-lines 0)")
    stage.script_change(stage.sandbox.greeting, EDITED)
    cli = '(with-current-buffer "*qwen: project*" (string-match-p "{}" (buffer-string)))'
    with display() as screen:
        window = daemon.open_window(screen.name)
        screen.keys(window, "ctrl+x", "ctrl+f")
        screen.type(window, str(stage.sandbox.greeting))
        screen.keys(window, "Return", "alt+x")
        screen.type(window, "qwen-companion-run")
        screen.keys(window, "Return")
        stage.screen.wait_for("Qwen[1]")
        daemon.wait_until(cli.format("Type your message"))
        screen.type(window, "change the greeting")
        daemon.wait_until(cli.format("> +change the greeting"))
        screen.keys(window, "Return")
        stage.screen.wait_for("Qwen[1!1]")
        proposal = "*qwen-companion proposal: greeting.py*"
        daemon.wait_until(f'(get-buffer-window "{proposal}" t)')
        assert daemon.eval(f'(display-graphic-p (window-frame (get-buffer-window "{proposal}" t)))') == "t"
        assert "C-c C-c accept" not in stage.screen.capture()
        stage.model.say("All done.")
        screen.keys(window, "ctrl+x", "o", "ctrl+x", "o", "ctrl+c", "ctrl+c")
        daemon.wait_until(cli.format("All done"))
        assert stage.sandbox.greeting.read_text() == EDITED
        # The frame in the terminal shows what was written as well.
        stage.screen.wait_for("good day")
        screen.keys(window, "ctrl+x", "5", "0")
        daemon.wait_until(f"(not {WINDOW})")
        # When the server ends first, whatever runs then signals "Connection lost to X server".
        daemon.eval(CLOSE_DISPLAYS)
    daemon.close_frame()
    end_shell(stage)
