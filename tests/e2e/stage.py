# SPDX-License-Identifier: GPL-3.0-or-later
"""All the parts of one end-to-end test, and the steps that many of them begin with."""

from __future__ import annotations

import copy
import itertools
import re
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

import psutil

from client import Client
from clis import GEMINI, QWEN, Cli
from editor import Emacs, lisp_string
from far import Far
from qwen_companion.base.state import key_of
from qwen_companion.doors.layers import FILE_NAME
from qwen_companion.journal.places import state_directory
from sandbox import CHECKOUT, Sandbox, has_ended
from scripted_model import ScriptedModel
from serve import Serve
from terminal import PATIENCE, Screen, ScreenTimeoutError

# A word in the echo area whenever the companion's backend is told the context: an event to wait for on the screen.  A
# message that is there stays before it.
SHOW_CONTEXT: Final = """
(advice-add 'qwen-companion-backend-call :before
            (lambda (method payload)
              (when (eq method 'context)
                (let* ((told (format "told: line %s, character %s"
                                     (plist-get payload :line) (plist-get payload :character)))
                       (shown (replace-regexp-in-string " *told: .*" "" (or (current-message) "")))
                       (both (concat shown "  " told)))
                  (if (or (equal "" shown) (<= (frame-width) (string-width both)))
                      (message "%s" told)
                    (let (message-log-max)
                      (message "%s" both)))))))
"""


# An answer to what was told before may be on its way, and the one before that be equal to what is waited for.
TELL_ROOTS: Final = """
(let ((before qwen-companion-roots--answer))
  (put 'qwen-companion-mode 'answer-before
       (if (qwen-companion-backend-call 'roots qwen-companion-roots--sent) before 'off)))
"""
ROOTS_TOLD: Final = """
(progn (qwen-companion-roots-update)
       (and (null qwen-companion-roots--timer)
            (not (eq (get 'qwen-companion-mode 'answer-before) qwen-companion-roots--answer))
            (equal (sort (copy-sequence (qwen-companion-roots-published)) #'string<)
                   (plist-get qwen-companion-roots--sent :roots))))
"""
"""True when the discovery files name the roots of the buffers that there are, since `TELL_ROOTS`."""

# In the mode line: the menu bar has the word too.
READY: Final = re.compile(r"^-U.* Qwen(?!:)\b", re.MULTILINE)
NO_SESSION: Final = re.compile(r"^-U.* Qwen(?![\[:])\b", re.MULTILINE)

REMEMBER: Final = f'(progn (load "{CHECKOUT}/tests/e2e/reuse") (reuse-remember))'


# What the CLI that `qwen-companion-run' starts depends on.
RUN_OPTIONS: Final = """(list qwen-companion-approval-mode qwen-companion-qwen-command qwen-companion-terminal
 (null qwen-companion-diff-style))"""


_PROMPT_S: Final = 5.0
"""Seconds after which a CLI that cannot be typed to is ended and started again for the next test."""

_SENT_S: Final = 5.0
"""Seconds after which Enter is pressed once more where a CLI may have taken it for a part of a paste."""


@dataclass(frozen=True)
class _RunningCli:
    """`cli` in the terminal `buffer` of Emacs; `options` are the printed values of those that it was started with."""

    cli: Cli
    buffer: str
    options: str = ""


class Stage:
    """A sandbox, a scripted model, a terminal, and an Emacs in it once it is started.

    The project and the CLIs are at `place`, a beginning of TRAMP names, if that is given.  `cli` is the program that is
    `qwen` there.
    """

    def __init__(self, relaunch: bool = False, place: str = "", cli: str = "qwen") -> None:
        self.sandbox = Sandbox(relaunch=relaunch, elsewhere=place != "", cli=cli)
        self.model = ScriptedModel()
        self.environment = {**self.sandbox.environment(), **self.model.environment()}
        """The environment of CLIs."""
        self.here = {**self.environment, **self.sandbox.environment(self.sandbox.here)}
        """That of Emacs."""
        self.far = Far(self.sandbox, self.environment, place) if place else None
        self.screen = Screen(self.sandbox.run, self.here)
        self.emacs = Emacs(self.sandbox, self.screen, self.here, far=self.far)
        self.serve = Serve(self.sandbox, self.environment)
        """A daemon of somebody else, which the fixture `serve` starts; it goes on for the next tests."""
        self._cli: _RunningCli | None = None
        self._clients: list[Client] = []

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._disconnect_clients()
            # Told to end it takes five seconds, with a session open.
            self.serve.kill()
            if self.far is not None and self.emacs.running:
                # Hung up on, it would save what is unsaved there.
                self.emacs.process.kill()
            self.screen.close()
            if self.far is not None:
                self.far.close()
            self.sandbox.wait_for_end()
        finally:
            self.model.__exit__(kind, error, trace)
            self.sandbox.remove()

    def reset(self) -> bool:
        """Make everything as it was when Emacs and the CLI had started; return whether that succeeded.

        Then the next test may use this stage: its `start_emacs` and `start_cli` find both running.
        """
        if not self.emacs.running or not self.model.reset():
            return False
        self.screen.log.clear()
        self._disconnect_clients()
        # While it is busy, its files stay.
        if self._cli is not None and not self._reset_cli(self._cli):
            self._cli = None
        # A CLI reads its settings when it starts, a daemon for each session.
        if not self.sandbox.reset_files():
            self._cli = None
        terminal = lisp_string(self._cli.buffer) if self._cli else '""'
        if self.emacs.eval(f"(reuse-reset {terminal})") == "nil":
            return False
        # The CLI may have written another text than Emacs waits for; that takes seconds.
        self.emacs.wait_until("(null qwen-companion-disk--writes)")
        # With the buffers of other CLIs went their processes, and with these their connections.
        self.emacs.wait_until(f"(<= {self._sessions_form()} {1 if self._cli else 0})")
        return True

    def _sessions_form(self) -> str:
        """Return the form for the number of sessions but those of the agents of a daemon: these stay."""
        daemon = self.serve.pid if self.serve.running else -1
        return (
            f"(cl-count-if-not (lambda (session) (seq-intersection (qwen-companion-session-ancestors session)"
            f" (list {daemon} (process-id (qwen-companion-backend--process))))) (qwen-companion-backend-sessions))"
        )

    def _reset_cli(self, cli: _RunningCli) -> bool:
        """Let `cli` forget its conversation, which clears its screen; return whether it is there and idle."""
        buffer = lisp_string(cli.buffer)
        usable = (
            f"(and qwen-companion-mode (get-buffer {buffer}) (process-live-p (get-buffer-process {buffer}))"
            f" (eq 'vterm-mode (buffer-local-value 'major-mode (get-buffer {buffer}))))"
        )
        # Of others, nothing tells when they have done it.
        if cli.cli not in (QWEN, GEMINI):
            return False

        def is_gone() -> bool:
            # One that a test has killed may end only now.
            return self.emacs.eval(usable) == "nil"

        def shows(text: str) -> bool:
            return is_gone() or text in self.emacs.buffer_text(cli.buffer)

        try:
            # After its answer it takes a moment; one that asks something waits for ever.
            self.screen.wait_until(lambda: shows("Type your message"), "an empty prompt", _PROMPT_S)
        except ScreenTimeoutError:
            return False
        if is_gone():
            return False
        done = self._times_cleared()
        self.emacs.eval(f'(with-current-buffer {buffer} (vterm-send-string "/clear"))')
        self.screen.wait_until(lambda: shows("/clear"), "/clear typed")
        # As in `ask`.
        time.sleep(cli.cli.pause)
        self.emacs.eval(f"(when {usable} (with-current-buffer {buffer} (vterm-send-return)))")
        # Before that, what is typed is lost.
        self.screen.wait_until(lambda: is_gone() or self._times_cleared() > done, "/clear done")
        if cli.cli == GEMINI:
            # It leaves on the screen what was above its last answer, and draws the prompt again with the next key.
            self.emacs.eval(f'(with-current-buffer {buffer} (vterm-send-key "l" nil nil t))')
            self.screen.wait_until(lambda: is_gone() or not shows("Type your message"), "a clear screen", _PROMPT_S)
            self.emacs.eval(f'(with-current-buffer {buffer} (vterm-clear-scrollback) (vterm-send-string "x"))')
            self.screen.wait_until(lambda: shows("x"), "a letter typed", _PROMPT_S)
            self.emacs.eval(f"(with-current-buffer {buffer} (vterm-send-backspace))")
        self.screen.wait_until(lambda: shows("Type your message"), "an empty prompt")
        return not is_gone()

    def _times_cleared(self) -> int:
        """How often /clear has ended: Qwen Code writes so into its log, Gemini CLI begins another file."""
        logs = (self.sandbox.home / ".qwen/debug").glob("*.txt")
        conversations = (self.sandbox.home / ".gemini/tmp").glob("*/chats/*")
        return sum(log.read_text().count("[CLEAR_END]") for log in logs) + len(list(conversations))

    def end(self) -> None:
        """End Emacs as a user does; nothing of the companion or of the CLI may be left."""
        if self.emacs.running:
            self._disconnect_clients()
            self.serve.kill()
            if self._cli is not None and self._outlives_shell(self._cli):
                self.end_cli()
            self.emacs.quit()
            if self.far is not None:
                self.screen.wait_until(lambda: not self.sandbox.discovery_files, "nothing laid there")
                self.far.stop()
            self.sandbox.wait_for_end(keep=("tmux: server", "tmux: client"))
            self.sandbox.assert_no_files()

    @contextmanager
    def beside(self) -> Generator[Stage]:
        """Yield the same with another terminal, for a second Emacs."""
        other = copy.copy(self)
        place = self.sandbox.run / "beside"
        place.mkdir(mode=0o700)
        other.screen = Screen(place, self.here)
        other.emacs = Emacs(self.sandbox, other.screen, self.here, place / "server", self.far)
        try:
            yield other
        finally:
            other.screen.close()

    def there(self, command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> list[str]:
        """Return `command` so that it runs with the CLIs: see `Far.inside`."""
        return self.far.inside(command, directory, environment) if self.far else list(command)

    # --- Steps

    def start(self) -> None:
        """Start Emacs with the greeting, and the CLI from it."""
        self.start_emacs(self.sandbox.greeting)
        self.start_cli()

    def start_emacs(self, *files: Path, forms: tuple[str, ...] = (), by_shell: bool = False) -> None:
        """Start Emacs, `by_shell` or not, and turn the mode on by typing its name; returns when it is ready.

        An Emacs that runs already (see `reset`) evaluates `forms` and visits `files`.
        """
        reused = self.emacs.running
        if reused:
            for form in forms:
                self.emacs.eval(form)
            self.emacs.eval(f"(reuse-visit (list {' '.join(map(self.emacs.lisp_name, files))}))")
        else:
            reach = (self.far.use, self.far.serve) if self.far else ()
            self.emacs.start(*files, forms=(SHOW_CONTEXT, *reach, REMEMBER, *forms), by_shell=by_shell)
        if self.emacs.eval("(qwen-companion-state)") == "off":
            self.emacs.command("qwen-companion-mode")
        self.screen.wait_for(READY)
        if reused:
            # Those of the test before are told still, a moment long.
            self._wait_until_roots_told()
        if self.far is not None and files:
            self.emacs.wait_until(f"(or {self.far.ready} (null qwen-companion-remote-places))")

    def start_cli(self) -> None:
        """Start the CLI from Emacs by typing the command's name; returns when it is connected and can be typed to."""
        options = self.emacs.eval(RUN_OPTIONS)
        self._keep_only(_RunningCli(QWEN, "*qwen: project*", options))
        self.emacs.command("qwen-companion-run")
        self.screen.wait_for("Type your message")
        self.screen.wait_for("Qwen[1]")
        self._cli = _RunningCli(QWEN, "*qwen: project*", options)

    @property
    def label(self) -> str:
        """What names of files begin with that are shown, where the project is at another place."""
        return f"{self.far.label}:" if self.far else ""

    @property
    def journal(self) -> Path:
        """The directory with the records of the project."""
        return Path(state_directory(self.here)) / key_of(self.emacs.name(self.sandbox.project))

    @property
    def layer(self) -> Path:
        """The settings layer that the CLIs read."""
        files = self.sandbox.tmp.glob(f"*/{FILE_NAME}") if self.far is None else self.far.home.glob(".qwen/ide/*.json")
        (layer,) = files
        return layer

    def connect_client(self) -> Client:
        """Connect a client that takes the place of a CLI, until the test ends; returns when Emacs shows it."""
        self.wait_until_published()
        client = Client(self.sandbox)
        self._clients.append(client)
        self.screen.wait_for("Qwen[1]")
        return client

    def wait_until_said(self, text: str) -> None:
        """Return when Emacs has said `text` in this test; on the screen another message may have replaced it."""
        self.screen.wait_until(lambda: text in self.emacs.buffer_text("*Messages*"), f"the message {text!r}")

    def wait_until_published(self) -> None:
        """Return when the project is a workspace root, so that a `Client`, which works elsewhere, may propose in it.

        Roots follow the buffers a moment later.
        """
        name = self.emacs.lisp_name(self.sandbox.project)
        self._wait_until_roots_told(f"(qwen-companion-{'places-root' if self.far else 'roots-published-p'} {name})")

    def _wait_until_roots_told(self, form: str = "t") -> None:
        """Return when CLIs are told the roots that there are, and `form` is true in Emacs."""
        self.emacs.eval(TELL_ROOTS)
        self.emacs.wait_until(f"(and {ROOTS_TOLD} {form})")

    def _disconnect_clients(self) -> None:
        while self._clients:
            self._clients.pop().disconnect()

    def end_cli(self) -> None:
        """End the CLI of an earlier test, if one has left it."""
        self._keep_only(None)

    def _keep_only(self, wanted: _RunningCli | None) -> None:
        """End the CLI of an earlier test unless it equals `wanted`."""
        if self._cli is not None and self._cli != wanted:
            buffer = lisp_string(self._cli.buffer)
            pid = self.emacs.eval(f"(if (get-buffer-process {buffer}) (process-id (get-buffer-process {buffer})) 0)")
            processes = [each for each in self.sandbox.processes() if self._is_below(each, int(pid))]
            self.emacs.eval(f"(let (kill-buffer-query-functions) (kill-buffer {buffer}))")
            if self._outlives_shell(self._cli):
                self.sandbox.kill_clis()
            # It ends a moment after its connection, and would be one more of this run until then.
            assert all(has_ended(process, PATIENCE) for process in processes)
            self.emacs.wait_until("(null (qwen-companion-backend-sessions))")
            # The roots of a CLI stay as long as it is connected.
            self._wait_until_roots_told()
            self._cli = None

    @staticmethod
    def _is_below(process: psutil.Process, pid: int) -> bool:
        """Return whether `process` is that with the number `pid`, or was started by it, directly or not."""
        with suppress(psutil.NoSuchProcess):
            return pid in (process.pid, *(above.pid for above in process.parents()))
        return False

    def _outlives_shell(self, cli: _RunningCli) -> bool:
        """Return whether `cli` may be in a shell behind sudo, whose own terminal does not end with that of Emacs."""
        return self.far is not None and not cli.options

    def open_shell(self, name: str, variables: Mapping[str, str] | None = None) -> None:
        """Open a terminal `name` of Emacs with a shell, for which `variables` are set, in another window; go there."""
        environment = " ".join(lisp_string(f"{name}={value}") for name, value in (variables or {}).items())
        self.emacs.eval(
            f"(progn (require 'vterm) (setq vterm-shell {lisp_string('/bin/sh')}"
            f" vterm-tramp-shells (mapcar (lambda (method) (list (car method) vterm-shell)) tramp-methods)"
            f" vterm-buffer-name {lisp_string(name)} vterm-environment '({environment})))"
        )
        self.emacs.command("vterm-other-window")
        # TRAMP has the name of the directory in front of it.
        self.screen.wait_for(re.compile(r"[$#] ?$" if self.far else r"^[$#] ?$", re.MULTILINE))

    def start_in_shell(self, cli: Cli, connected: int = 1) -> None:
        """Start `cli` as a user does, by typing its name to a shell in a terminal of Emacs.

        Returns when `connected` of them are connected and it can be typed to.
        """
        running = _RunningCli(cli, f"*{cli.name}*")
        if connected == 1:
            self._keep_only(running)
        if self._cli == running:
            self.emacs.eval(f"(pop-to-buffer {lisp_string(running.buffer)})")
        else:
            # Some find their editor by the variables of their terminal only.
            if self.far is None:
                self.emacs.wait_until('(getenv "QWEN_CODE_IDE_SERVER_PORT")')
            self.open_shell(running.buffer, cli.variables)
            self.screen.enter(cli.program)
        self.screen.wait_for(f"Qwen[{connected}]")
        self.screen.wait_for("Type your message")
        self._cli = running if connected == 1 else None

    def script_change(self, path: Path, content: str, cli: Cli = QWEN) -> None:
        """Script the turns in which the model of `cli` proposes `content` for the existing file `path`.

        Today's CLIs let no model change a file that it has not read.
        """
        self.model.call("read_file", **{cli.path_argument: str(path)})
        self.model.call("write_file", file_path=str(path), content=content)

    def wait_for_review(self, cli: Cli = QWEN) -> None:
        """Wait until one proposal is on the screen, in Emacs and in the terminal of `cli`."""
        self.screen.wait_for("Qwen[1!1]")
        # The header line of hunks says how to get there while they are not selected.
        self.screen.wait_for(re.compile("C-c C-c accept|goes here"))
        self.screen.wait_for(cli.confirmation)
        # Most keys are refused, rightly, while the texts are compared.
        self.screen.wait_gone("comparing...")

    def propose(self, path: Path, content: str, prompt: str) -> None:
        """Have the CLI propose `content` for `path`, asked by `prompt`, and wait for the review."""
        self.script_change(path, content)
        self.ask(prompt)
        self.wait_for_review()

    def accept(self, shown: str) -> None:
        """Accept the proposal, and wait until `shown` is on the screen."""
        self.emacs.command("qwen-companion-diff-accept")
        self.screen.wait_for(shown)

    def wait_for_status(self, wanted: str) -> None:
        """Ask the CLI for its /ide status until it says `wanted`: it may take seconds to notice that all is gone."""
        deadline = time.monotonic() + PATIENCE
        for number in itertools.count(1):
            # The CLI ignores the number; it tells this answer from those above it.
            question = f"/ide status {number}"
            self.ask_command("/ide status", f" {number}")
            answer = re.compile(f"  > {question}.*(Connected to|Disconnected)", re.DOTALL)
            screen = self.screen.wait_for(answer)
            if wanted in screen[screen.rindex(question) :]:
                return
            assert time.monotonic() < deadline, f"the CLI never said {wanted} but\n{screen}"

    def ask(self, text: str, cli: Cli = QWEN, screen: Screen | None = None) -> None:
        """Type `text` and Enter into `cli`, in the selected window or on a `screen` of its own."""
        screen = screen or self.screen
        screen.type(text, seen=re.compile(cli.input_start + re.escape(text), re.MULTILINE))
        asked = len(self.model.bodies)
        # Nothing to be seen tells that this time is over.
        time.sleep(cli.pause)
        screen.keys("Enter")
        if cli.pause:
            try:
                screen.wait_until(
                    lambda: len(self.model.bodies) > asked or "Type your message" in screen.capture(),
                    "the prompt to be sent",
                    _SENT_S,
                )
            except ScreenTimeoutError:
                # On a busy machine it may read both at once all the same, as a paste of two lines.
                screen.keys("Enter")

    def ask_command(self, command: str, more: str = "") -> None:
        """Type `command` and `more` to Qwen Code, and Enter once its menu shows `command`, then nothing.

        Before that, Enter would take a completion of the slash alone.
        """
        # It may still hold the command before this one, though it has answered that.
        self.screen.wait_for(re.compile("^> .*(Type your message|/)", re.MULTILINE))
        if (left := re.search(r"^>\s+(/.*?)\s*$", self.screen.capture(), re.MULTILINE)) is not None:
            self.screen.keys(*["BSpace"] * len(left[1]))
            self.screen.wait_for("Type your message")
        offered = f"  > {command.removeprefix('/').split()[-1]}  "
        self.screen.type(command, seen=re.compile("^" + re.escape(offered), re.MULTILINE))
        if more:
            self.screen.type(more)
            self.screen.wait_gone(offered)
        self.screen.keys("Enter")

    def converse(self, prompt: str, answer: str, cli: Cli = QWEN) -> None:
        """Type `prompt` into `cli`, in the selected window, and wait until the model's `answer` is shown."""
        self.model.say(answer)
        self.ask(prompt, cli)
        self.screen.wait_for(answer)

    def asked(self, question: str) -> str:
        """Ask `question` in the terminal, which must be selected, and return the prompt that the model got."""
        answer = f"So much for {question}."
        self.converse(question, answer)
        return self.model.next_request().prompt

    @contextmanager
    def outside(self, cli: Cli = QWEN, directory: Path | None = None, *arguments: str) -> Generator[Screen]:
        """Start `cli` with `arguments` in a terminal outside of Emacs, in `directory`, by default the project."""
        place = self.sandbox.run / "outside"
        place.mkdir(exist_ok=True)
        directory, environment = directory or self.sandbox.project, {**self.environment, **cli.variables}
        screen = Screen(place, environment)
        screen.start(self.there([cli.program, *arguments], directory, environment), directory)
        try:
            screen.wait_for("Type your message")
            yield screen
        finally:
            screen.close()
