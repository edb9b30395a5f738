# SPDX-License-Identifier: GPL-3.0-or-later
"""The process as Emacs starts it: hello, exit codes, and leftover files."""

from __future__ import annotations

import ast
import json
import os
import re
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sexpdata import Symbol, dumps

import qwen_companion.__main__ as entry
from limit import stretched
from qwen_companion.base.processes import start_of
from qwen_companion.wire.bridge import CALL_TIMEOUT_S
from support import NEVER_GIVEN_UP, PYTHON_DIRECTORY, TIMEOUT_S, Backend, Cli, Home, as_dict

SECONDS_TO_STOP = stretched(20.0)
"""Stopping takes a quarter of a second, on a machine that is busy for a moment a few."""

SNIFFIO = """\
import asyncio
import threading
from contextvars import ContextVar
current_async_library_cvar = ContextVar("current_async_library_cvar", default=None)
thread_local = threading.local()
class AsyncLibraryNotFoundError(RuntimeError):
    pass
def current_async_library():
    known = getattr(thread_local, "name", None) or current_async_library_cvar.get()
    try:
        known = known or asyncio.current_task() and "asyncio"
    except RuntimeError:
        pass
    if not known:
        raise AsyncLibraryNotFoundError
    return known
"""
"""As much of that package as anyio uses."""


def stop(backend: Backend) -> None:
    """Tell `backend` to stop, which it does in time."""
    backend.emacs.call("stop", "nil")
    assert backend.process.wait(SECONDS_TO_STOP) == 0


def context(path: Path, **more: object) -> str:
    return dumps({"files": [{"path": str(path), "timestamp": 1000}], "active": str(path), **more})


def test_prints_the_port_and_nothing_else_on_standard_output(home: Home) -> None:
    with Backend(home, fresh=True) as backend:
        backend.serve()
        backend.stopped()
        assert backend.process.stdout is not None
        assert backend.process.stdout.read() == b""
        assert backend.error_text() == ""


def test_standard_output_stays_open(backend: Backend) -> None:
    # Emacs reads from it in a busy loop once it has ended, for as long as the process lives.
    assert backend.process.stdout is not None
    readable, _, _ = select.select([backend.process.stdout], [], [], 0)
    assert readable == []


def test_publishes_where_it_is_found(home: Home) -> None:
    with Backend(home) as backend:
        published = backend.greet()
        assert published["environment"] == [
            ["QWEN_CODE_IDE_SERVER_PORT", str(backend.port)],
            ["QWEN_CODE_IDE_WORKSPACE_PATH", str(home.work)],
            ["GEMINI_CLI_IDE_SERVER_PORT", str(backend.port)],
            ["GEMINI_CLI_IDE_WORKSPACE_PATH", str(home.work)],
        ]
        assert published["warnings"] == []
        assert set(home.files()) >= {
            home.home / ".qwen/ide" / f"{backend.port}.lock",
            home.temporary / f"qwen/ide/qwen-code-ide-server-{os.getpid()}-{backend.port}.json",
            home.temporary / f"gemini/ide/qwen-code-ide-server-{os.getpid()}-{backend.port}.json",
            home.temporary / f"gemini/ide/gemini-ide-server-{os.getpid()}-{backend.port}.json",
        }
        for path in home.files():
            content = json.loads(path.read_text())
            assert content["authToken"] == backend.token
            assert len(backend.token) == 64
            modes = [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent, path.parent.parent)]
            assert modes == [0o600, 0o700, 0o700]


def test_emacs_is_told_which_files_it_must_remove_if_this_process_cannot(home: Home) -> None:
    with Backend(home) as backend:
        backend.greet()
        assert backend.emacs.wait_for("files")["files"] == [str(path) for path in home.files()]


STUCK_LIBRARY = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(('mcp.', 'mcp_types.')):
            print('stuck', name, file=sys.stderr, flush=True)
            import threading
            threading.Event().wait()
sys.meta_path.insert(0, Finder())
"""
"""As settings of a `Backend`: the MCP library is never imported to its end, as if the machine were very slow."""


def test_a_stream_does_not_wait_for_the_library(home: Home) -> None:
    """After a kill, the CLI's stream comes back and has context while its requests still have to wait."""
    known = {"id": "restored", "protocol": "2025-11-25", "client": "a CLI", "version": "1", "reviews": True}
    path = home.work / "a.txt"
    path.write_text("")
    with Backend(home, settings=f"exec({STUCK_LIBRARY!r})", sessions=[known]) as backend:
        backend.greet()
        backend.emacs.call("context", context(path))
        with Cli(backend.port, backend.token, "restored").stream() as stream:
            assert stream.block() == ["retry: 1500"]
            files = stream.event()["params"]["workspaceState"]["openFiles"]
            assert [file["path"] for file in files] == [str(path)]
            notification = b'{"jsonrpc": "2.0", "method": "notifications/initialized"}'
            assert Cli(backend.port, backend.token, "restored").post(notification)[0] == 202
            # The library is on its way, for what the CLI asks next.
            assert backend.error_line().startswith("stuck mcp")
            stop(backend)


def test_the_library_is_there_before_the_first_cli(home: Home) -> None:
    """A CLI that is typed to at once is to be reviewed: it must not wait for an import, which may take seconds."""
    with Backend(home, settings=f"exec({STUCK_LIBRARY!r})") as backend:
        backend.greet()
        assert backend.error_line().startswith("stuck mcp")
        # The files were there and the streams are served all the same.
        backend.emacs.wait_for("serving")
        stop(backend)


# With the longer time the terminal closes before the first look.
@pytest.mark.parametrize("seconds", [0.01, 1.0])
def test_the_files_follow_the_processes_above_emacs(home: Home, seconds: float) -> None:
    """A terminal was closed under an Emacs: a CLI in it takes another process for its editor now."""
    settings = "from qwen_companion.discovery import publisher as c"
    settings += f"; c.ANCESTORS_S = {seconds}; c.WATCHED_ANCESTORS_S = 3600"
    script = "sleep 1000 & echo $!; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        emacs = int(shell.stdout.readline())
        try:
            with Backend(home, settings=settings, emacs_pid=emacs) as backend:
                backend.greet()
                name = f"gemini-ide-server-{shell.pid}-{backend.port}.json"
                assert any(file.endswith(name) for file in backend.emacs.wait_for("files")["files"])
                shell.kill()
                # They may be told as they were once more before.
                backend.emacs.wait_until("files", lambda told: not any(file.endswith(name) for file in told["files"]))
                assert not any(file.name == name for file in home.files())
        finally:
            os.kill(emacs, signal.SIGKILL)


# The first to ask for the names, before there are files, goes on only when the second has been given them.
TWO_LOOKS = """
import sys, threading
import qwen_companion.discovery.publisher as c
from qwen_companion.discovery.files import Discovery
c.ANCESTORS_S = 0.01
c.WATCHED_ANCESTORS_S = 3600
looks, second, paths = [], threading.Event(), Discovery.paths
def wait(self):
    looks.append(paths(self))
    if len(looks) == 1:
        print(file=sys.stderr, flush=True)
        second.wait(1)
        return looks[0]
    second.set()
    return looks[-1]
Discovery.paths = wait
"""


def test_the_newest_files_are_told_last(home: Home) -> None:
    """Emacs removes what it was told of when the backend is killed."""
    with Backend(home, settings=f"exec({TWO_LOOKS!r})") as backend:
        backend.connect()
        assert backend.error_line() == "\n"
        backend.emacs.call("roots", dumps({"roots": [str(home.work)]}))
        backend.emacs.wait_for("published")
        written = {str(path) for path in home.files()}
        stop(backend)
        backend.emacs.close()
        told = backend.emacs.calls("files")
        assert written
        assert {*[told.get() for _ in range(told.qsize())][-1]["files"]} & written


def test_roots_rewrite_the_files(backend: Backend, home: Home) -> None:
    backend.emacs.call("roots", dumps({"roots": ["/one", "/two"]}))
    published = backend.emacs.wait_for("published")
    assert dict(published["environment"])["QWEN_CODE_IDE_WORKSPACE_PATH"] == "/one:/two"
    assert {json.loads(path.read_text())["workspacePath"] for path in home.files()} == {"/one:/two"}


@pytest.mark.parametrize("streams", [0, 3])
@pytest.mark.parametrize("way", ["stop", "SIGTERM", "end of input", "end of connection"])
def test_stops_quickly_and_leaves_no_file(backend: Backend, home: Home, way: str, streams: int) -> None:
    with ExitStack() as opened:
        open_streams = [opened.enter_context(backend.cli().stream()) for _ in range(streams)]
        for stream in open_streams:
            assert stream.block() == ["retry: 1500"]
        if way == "stop":
            backend.emacs.call("stop", "nil")
        elif way == "SIGTERM":
            backend.process.send_signal(signal.SIGTERM)
        elif way == "end of input":
            backend.close_input()
        else:
            backend.emacs.close()
        assert backend.process.wait(SECONDS_TO_STOP) == 0
        assert home.files() == []
        # Nobody is left to read the spool only when Emacs is gone.
        assert home.spool.exists() == (way != "end of input")
        for stream in open_streams:
            # Told to look again soon, a CLI finds nobody and says so; unless another process is to take this one's
            # place.
            assert stream.rest() == (b"retry: 500\n\n" if way in ("stop", "end of input") else b"")


HANGS = {
    "SQLite": "import sqlite3; sqlite3.connect(':memory:').execute("
    "'with recursive n(i) as (select 1 union all select 1 from n) select * from n where i > 1').fetchone()",
    "git": "import subprocess; subprocess.Popen(['git', 'hash-object', '--stdin'], stdin=subprocess.PIPE).wait()",
    "a pipe": "open(PIPE, 'rb').read()",
}

PLACES = {
    "in a thread": "from qwen_companion.discovery.publisher import Publisher\nfrom anyio import to_thread\n"
    "async def remove(self): await to_thread.run_sync(hang)\nPublisher.remove = remove",
    "in the event loop": "from qwen_companion.discovery.publisher import Publisher\n"
    "Publisher.run = lambda self: hang()",
    "before it serves": "import qwen_companion.wire.messages as messages\nparse = messages.Hello.parse\n"
    "messages.Hello.parse = lambda line: (parse(line), hang())[0]",
}


@pytest.mark.parametrize(
    ("what", "place", "way"),
    [
        *((what, "in a thread", "SIGTERM") for what in HANGS),
        ("a pipe", "in the event loop", "SIGTERM"),
        ("SQLite", "in the event loop", "end of input"),
        ("a pipe", "before it serves", "end of input"),
    ],
)
def test_whatever_hangs_the_process_is_gone(home: Home, what: str, place: str, way: str) -> None:
    os.mkfifo(pipe := home.work / "pipe")
    hang = f"def hang():\n    import sys; print('hangs', file=sys.stderr, flush=True)\n    {HANGS[what]}"
    limit = f"import qwen_companion.base.ending as ending; ending.END_S = 0.5; PIPE = {str(pipe)!r}"
    settings = "\n".join((limit, hang, PLACES[place]))
    with Backend(home, settings=f"exec({settings!r}, globals())") as backend:
        if place in ("in the event loop", "before it serves"):
            assert backend.error_line() == "hangs\n"
        else:
            backend.serve()
        if way == "SIGTERM":
            backend.process.send_signal(signal.SIGTERM)
        else:
            backend.close_input()
        assert backend.process.wait(SECONDS_TO_STOP) == 1
        assert "most recent call first" in backend.error_text()


def test_stops_with_a_client_that_reads_nothing(backend: Backend, home: Home) -> None:
    cli = backend.cli()
    with cli.stream() as stream:
        assert stream.block() == ["retry: 1500"]
        path = home.work / "a"
        path.write_text("")
        for number in range(300):
            backend.emacs.call("context", context(path, line=number, character=1, text="x" * 16000))
        stop(backend)


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (b"", "not one Lisp expression"),
        (b"(:protocol 1\n", "not one Lisp expression"),
        (b"\xff\n", "not one Lisp expression"),
        (b'(:protocol 2 :secret "geheim")\n', "protocol 2"),
        (b'(:protocol 1 :secret "geheim" :emacs-pid "x")\n', ":emacs-pid"),
        (b'(:protocol 1 :secret "" :emacs-pid 1 :port 0 :spool "/nowhere")\n', "lacks a secret"),
    ],
)
def test_a_bad_hello_line_ends_it_with_a_reason_and_no_secret(hello: bytes, reason: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "qwen_companion"],
        cwd=PYTHON_DIRECTORY,
        input=hello,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    error = done.stderr.decode()
    assert done.returncode == 6
    assert reason in error
    assert "geheim" not in error
    assert "Traceback" not in error


def test_a_private_directory_that_is_gone_ends_it(home: Home) -> None:
    """Not as if the Elisp were another version: Emacs can make a new directory."""
    home.spool.rmdir()
    with Backend(home, fresh=True) as backend:
        assert backend.exit_code() == 7
        assert str(home.spool) in backend.error_text()


def test_a_taken_port_ends_it(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Backend(home, fresh=True, port=port) as backend:
            assert backend.exit_code() == 5
            assert f"port {port}" in backend.error_text()


def test_a_missing_package_is_named(home: Home, tmp_path: Path) -> None:
    # An interpreter without site-packages has none of them.
    done = subprocess.run(
        [sys.executable, "-S", "-m", "qwen_companion"],
        cwd=PYTHON_DIRECTORY,
        env={"PATH": os.environ["PATH"]},
        input=b"",
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 3
    assert b"mcp" in done.stderr
    # A module may have the name of a stranger's package.
    assert b"pip install" not in done.stderr


def test_a_python_with_sniffio_serves_as_well(home: Home, tmp_path: Path) -> None:
    # With that package, anyio looks for the event loop in the context of what runs.
    (tmp_path / "sniffio.py").write_text(SNIFFIO)
    with Backend(home, settings=f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import sniffio") as backend:
        assert backend.greet()["port"]
        backend.cli()
        assert backend.stopped() == ""


def test_all_packages_are_looked_for() -> None:
    project = (PYTHON_DIRECTORY.parent / "pyproject.toml").read_text()
    (demanded,) = re.findall(r"^dependencies = \[\n(.*?)^\]", project, re.DOTALL | re.MULTILINE)
    names = re.findall(r'^ *"([\w-]+)', demanded, re.MULTILINE)
    assert sorted(entry.PACKAGES) == sorted(name.replace("-", "_") for name in names)


def test_a_package_that_cannot_be_imported_is_reported_as_missing(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "merge3.py").write_text("raise ModuleNotFoundError('broken', name='merge3')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Backend(home, fresh=True) as backend:
        assert backend.exit_code() == 3
        assert "lacks the Python module merge3" in backend.error_text()


def test_an_old_python_is_told_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(entry, "OLDEST_PYTHON", (99, 0))
    assert entry.main() == 4
    assert "Python too old" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["__init__.py", "__main__.py"])
def test_what_an_old_python_reads_first_is_readable_by_it(name: str) -> None:
    ast.parse((PYTHON_DIRECTORY / "qwen_companion" / name).read_text(), feature_version=(3, 6))


def test_the_token_is_in_no_argument_and_no_environment(home: Home) -> None:
    with Backend(home, fresh=True) as backend:
        backend.greet()
        process = Path(f"/proc/{backend.process.pid}")
        for name in ("cmdline", "environ"):
            content = (process / name).read_bytes()
            assert backend.token.encode() not in content
            assert backend.emacs.secret.encode() not in content


def test_a_change_of_one_cli_tells_of_no_other(backend: Backend) -> None:
    """A message to Emacs names the changed CLI only, however many are connected."""

    def settled(told: dict[str, Any]) -> bool:
        return any(item.get("streaming") and "pid" in item for item in map(as_dict, told["sessions"]))

    first, second = backend.cli(), backend.cli()
    with first.stream():
        backend.emacs.wait_until("sessions", settled)
        backend.emacs.calls("sessions").queue.clear()
        with second.stream():
            told = backend.emacs.wait_until("sessions", lambda told: True)
            assert [as_dict(item)["id"] for item in told["sessions"]] == [second.session]
        gone = backend.emacs.wait_until("sessions", lambda told: bool(told["gone"]))
        assert gone == {"sessions": [], "gone": [second.session]}


class TestRestart:
    """A killed backend is replaced without the CLI noticing."""

    def restart(self, old: Backend, opened: dict[str, Any]) -> Backend:
        """Return the next process, which is told of the sessions and of the proposal `opened`."""
        sessions = [*map(as_dict, self.last_sessions(old))]
        proposal = {key: opened[key] for key in ("id", "session", "path", "digest")}
        return Backend(old.home, port=old.port, token=old.token, sessions=sessions, proposals=[proposal])

    def last_sessions(self, old: Backend, *keys: str) -> list[object]:
        """Return the sessions told last, once one is streaming and has `keys`."""
        payload = old.emacs.wait_until(
            "sessions",
            lambda values: any(
                all(as_dict(item).get(key) for key in ("streaming", *keys)) for item in values["sessions"]
            ),
        )
        return payload["sessions"]

    def test_context_and_an_open_review_go_on(self, backend: Backend, home: Home) -> None:
        path = home.work / "a.txt"
        path.write_text("old\n")
        cli = backend.cli()
        with cli.stream() as stream:
            assert stream.block() == ["retry: 1500"]
            assert cli.tool("openDiff", filePath=str(path), newContent="new\n")["content"] == []
            opened = backend.emacs.wait_for("proposal-open")
            assert not opened["held"]
            backend.kill()
            # Not "reset", not "incomplete": a clean end is what makes the CLI come back.
            assert stream.rest() == b""
        with self.restart(backend, opened) as new:
            assert new.greet()["port"] == backend.port
            new.emacs.call("context", context(path, line=3, character=7))
            with cli.stream() as stream:
                assert stream.status_line == "HTTP/1.1 200 OK"
                update = stream.event()
                assert update["params"]["workspaceState"]["openFiles"][0]["cursor"] == {"line": 3, "character": 7}
                outcome = f'(:id "{opened["id"]}" :outcome accepted :text "new and better\n")'
                new.emacs.call("outcome", outcome)
                assert stream.event() == {
                    "jsonrpc": "2.0",
                    "method": "ide/diffAccepted",
                    "params": {"filePath": str(path), "content": "new and better\n"},
                }
                assert new.emacs.wait_for("delivered") == {"id": opened["id"]}
                assert cli.request("tools/list", {})[0] == 200

    def test_an_outcome_decided_while_no_stream_is_open_waits_for_it(self, backend: Backend, home: Home) -> None:
        path = home.work / "a.txt"
        cli = backend.cli()
        with cli.stream() as stream:
            assert stream.block() == ["retry: 1500"]
            cli.tool("openDiff", filePath=str(path), newContent="new\n")
            opened = backend.emacs.wait_for("proposal-open")
            backend.kill()
        with self.restart(backend, opened) as new:
            new.greet()
            new.emacs.call("outcome", f'(:id "{opened["id"]}" :outcome rejected)')
            new.emacs.wait_for("serving")
            assert new.emacs.calls("delivered").empty()
            with cli.stream() as stream:
                assert stream.event()["method"] == "ide/diffRejected"
                assert new.emacs.wait_for("delivered") == {"id": opened["id"]}

    def test_the_process_of_a_cli_stays_known(self, backend: Backend) -> None:
        cli = backend.cli()
        with cli.stream():
            (item,) = self.last_sessions(backend, "pid")
            told = as_dict(item)
            assert (told["pid"], told["directory"]) == (os.getpid(), os.getcwd())
            assert told["started"] == start_of(os.getpid())
            backend.kill()
        sessions = [told]
        with Backend(backend.home, port=backend.port, token=backend.token, sessions=sessions) as new:
            new.greet()
            with cli.stream():
                # The first that is told: without having been looked for.
                (item,) = new.emacs.wait_for("sessions")["sessions"]
                assert as_dict(item) == told

    def test_a_cli_that_ended_meanwhile_is_given_up_at_once(self, home: Home) -> None:
        session: dict[str, object] = {"id": "s", "protocol": "2025-11-25", "client": "c", "version": "1"}
        # The number is in use, but it is not that process.
        peer: dict[str, object] = {"pid": os.getpid(), "started": "an earlier boot:1", "ancestors": [os.getpid()]}
        proposal = {"id": "p", "session": "s", "path": "/a", "digest": "d"}
        with Backend(home, settings=NEVER_GIVEN_UP, sessions=[session | peer], proposals=[proposal]) as backend:
            backend.greet()
            assert backend.emacs.wait_for("sessions") == {"sessions": [], "gone": ["s"]}
            assert backend.emacs.wait_for("proposal-orphan") == {"id": "p", "reason": []}

    def test_a_proposal_of_a_forgotten_session_is_an_orphan(self, home: Home) -> None:
        with Backend(home, proposals=[{"id": "p", "session": "gone", "path": "/a", "digest": "d"}]) as backend:
            backend.greet()
            assert backend.emacs.wait_for("proposal-orphan") == {"id": "p", "reason": []}


def test_an_outcome_larger_than_a_frame_should_be_goes_by_file(backend: Backend, home: Home) -> None:
    text = "é\r\n" * 100_000
    path = home.work / "a.txt"
    cli = backend.cli()
    with cli.stream() as stream:
        cli.tool("openDiff", filePath=str(path), newContent=text)
        opened = backend.emacs.wait_for("proposal-open")
        assert "text" not in opened
        file = Path(opened["text-file"])
        assert file.parent == home.spool
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert file.read_bytes() == text.encode("utf-8")
        answer = home.spool / "answer"
        answer.write_bytes(text.encode("utf-8"))
        backend.emacs.call("outcome", f'(:id "{opened["id"]}" :outcome accepted :text-file "{answer}")')
        assert stream.event()["params"]["content"] == text
        assert not answer.exists()


def test_a_busy_emacs_has_a_review_queued_and_open(backend: Backend, home: Home) -> None:
    free = threading.Event()
    answers: list[object] = []

    def busy(_values: object) -> None:
        assert free.wait(TIMEOUT_S)

    def text(_values: object) -> object:
        return [Symbol(":text"), "as edited"]

    backend.emacs.handlers["proposal-open"], backend.emacs.handlers["proposal-close"] = busy, text
    cli = backend.cli()
    path = str(home.work / "a.txt")
    with cli.stream():
        began = time.monotonic()
        assert cli.tool("openDiff", filePath=path, newContent="new")["content"] == []
        assert not free.is_set()
        assert time.monotonic() - began < CALL_TIMEOUT_S
        closing = threading.Thread(
            target=lambda: answers.append(cli.tool("closeDiff", filePath=path, suppressNotification=True))
        )
        closing.start()
        free.set()
        closing.join(TIMEOUT_S)
    (answer,) = answers
    assert '"as edited"' in str(answer)


def test_two_starts_at_once_do_not_disturb_each_other(home: Home) -> None:
    with Backend(home, fresh=True) as one, Backend(home, fresh=True) as two:
        ports = {one.greet()["port"], two.greet()["port"]}
        assert len(ports) == 2
        one.emacs.wait_for("serving")
        one.stopped()
