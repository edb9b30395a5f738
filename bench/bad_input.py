# SPDX-License-Identifier: GPL-3.0-or-later
"""Send what nobody should send by each way into the backend, and count how often that harms nothing."""

from __future__ import annotations

import json
import os
import queue
import random
import socket
import stat
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import hypothesis
from sexpdata import Symbol, dumps

from bad_backend import bad_backend
from bad_daemon import bad_daemon
from loopback import Table, chdir, new_home, session
from qwen_companion.base.processes import process_space
from qwen_companion.discovery.dialects import DIALECTS, File
from qwen_companion.discovery.files import MARKER, Discovery, directory_of
from qwen_companion.doors.door_settings import secrets_of
from schema_messages import client_messages
from support import OTHER_USER, Backend, Cli, EpcPeer, Home
from test_robust import answer_to, damaged, hostile_body, hostile_request, noise

HANG_S = 30.0
"""Longer than this counts as hanging, in seconds."""


def bad_input(table: Table, cases: int, chance: random.Random) -> None:
    """Add the rows of all ways in, `cases` each."""
    _into_the_backend(table, cases, chance)
    good = sum(FILES_AT_ONCE * _discovery(chance) for _ in range(cases // FILES_AT_ONCE))
    cases_of_files = cases // FILES_AT_ONCE * FILES_AT_ONCE
    table.count("3", "discovery files of others: ours are right, theirs untouched, no hang", good, cases_of_files)
    bad_daemon(table, cases, chance)
    bad_backend(table, cases, chance)


def _into_the_backend(table: Table, cases: int, chance: random.Random) -> None:
    with new_home() as home, Backend(home, fresh=True) as backend:
        backend.greet()
        backend.emacs.wait_for("serving")
        cli = backend.cli()
        written = set(home.files())
        ways: dict[str, Callable[[], bool]] = {
            "HTTP": lambda: b" 500 " not in answer_to(backend.port, hostile_request(chance, cli))[:20],
            "JSON-RPC": lambda: cli.post(hostile_body(chance))[0] < 500,
            "hook bodies": lambda: _post(backend, "/hook", _hook(chance)) < 500,
            "tool calls": lambda: _post(backend, "/tools", _call(chance)) < 500,
            "EPC with the secret": lambda: _epc(backend.emacs, chance),
        }
        for name, case in ways.items():
            good = sum(_survives(case) for _ in range(cases))
            table.count("3", f"{name}: refused or answered, no crash, no hang", good, cases)
        table.count("3", "JSON-RPC by its schema: refused or answered", _by_schema(cli, home, cases), cases)
        # Only the roots count, as for most users, and a CLI is one of the root that it works in.
        backend.emacs.call("settings", "(:reviews t)")
        with _traps(home) as names, chdir(home.work), session(backend) as proposing:
            good = sum(_survives(lambda: _proposal(backend, proposing, home, chance, names)) for _ in range(cases))
        table.count("3", "names and texts of proposals: refused, or shown as they are", good, cases)
        backend.emacs.call("stop", "nil")
        code, said = backend.exit_code(), backend.error_text()
        quiet = "nothing" if not said and not code else f"status {code}, {len(said.splitlines())} lines"
        table.add("3", "said on standard error after all that", quiet, "nothing")
        new = {path for path in set(home.files()) - written if path.exists()}
        table.add("3", "files written by it", str(len(new)), "0")


def _by_schema(cli: Cli, home: Home, cases: int) -> int:
    """Send about `cases` messages by the schema, whole and damaged; return how many harmed nothing, at most `cases`."""
    good = bad = 0

    @hypothesis.settings(max_examples=cases, derandomize=True, database=None, deadline=None)
    @hypothesis.given(client_messages(str(home.work)))
    def send(message: Any) -> None:
        nonlocal good, bad
        if _survives(lambda: cli.post(json.dumps(message).encode())[0] < 500):
            good += 1
        else:
            bad += 1

    send()
    # It may send a few more or fewer.
    return cases - bad if good else 0


def _survives(case: Callable[[], bool]) -> bool:
    with suppress(OSError, ValueError, queue.Empty):
        return case()
    return False


def _hook(chance: random.Random) -> bytes:
    wrong: list[object] = [None, 7, "x" * 3000, [], {"a": []}, "\0", "../..", True]
    names = ["PreToolUse", "PostToolUse", "UserPromptSubmit", "Stop", "PermissionRequest", "SessionStart", "?"]
    keys = ("session_id", "transcript_path", "cwd", "tool_name", "tool_input", "prompt", "permission_mode")
    body: dict[str, object] = {"hook_event_name": chance.choice(names), **{key: chance.choice(wrong) for key in keys}}
    data = json.dumps(body).encode()
    return damaged(chance, data) if chance.random() < 0.3 else data


def _call(chance: random.Random) -> bytes:
    wrong: list[object] = [None, 7, "x" * 3000, [], {"path": "/etc/shadow"}, "../..", True]
    params = {"name": chance.choice(["diagnostics", "buffer_text", "", 7]), "arguments": chance.choice(wrong)}
    body = {"jsonrpc": "2.0", "id": chance.choice([1, "a", None]), "method": "tools/call", "params": params}
    data = json.dumps(body).encode()
    return damaged(chance, data) if chance.random() < 0.3 else data


def _post(backend: Backend, path: str, body: bytes) -> int:
    port, secret = backend.port, secrets_of(backend.token)[path]
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {secret}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(head.encode() + body)
        answer = connection.makefile("rb").readline()
    return int(answer.split()[1])


def _epc(emacs: EpcPeer, chance: random.Random) -> bool:
    methods = ("context", "roots", "outcome", "compare", "merge", "journal-files", "tool-answer", "prompt", "none")
    values: list[Any] = [None, 7, -1, "x" * 300, [], [Symbol("a")], "/..", Symbol("t"), {"path": 7}]
    keys = ("id", "path", "files", "active", "line", "roots", "outcome", "text", "old", "new", "scope", "turn", "file")
    payload = {key: chance.choice(values) for key in chance.sample(keys, 4)}
    return emacs.call(chance.choice(methods), dumps(payload))[0] in ("return", "return-error")


# --- Names and texts --------------------------------------------------------------------------------------------------

TEXTS = (
    "",
    "\0",
    "\ud800 alone",
    "\udc80\udcff",
    "\r\n\r\r\n\n",
    "%s%n%d {0} $(id) `id`",
    "-*- mode: emacs-lisp; eval: (kill-emacs) -*-\n",
    "\n;; Local Variables:\n;; eval: (kill-emacs)\n;; End:\n",
    "\u202etxt.exe\u2066\u200b\ufeff",
    "\x1b]52;c;aGk=\x07\x1b[2J",
    "<<<<<<< mine\n=======\n>>>>>>> theirs\n",
    "x" * 70_000,
    "\U0010ffff" * 3000,
)
"""Texts that a model could write."""

NAMES = (
    "",
    "/",
    ".",
    "..",
    "../../etc/passwd",
    "/etc/shadow",
    "/proc/self/mem",
    "/dev/zero",
    "~root/x",
    "/ssh:nobody@localhost:/x",
    "/sudo::/x",
    "/:x",
    "$HOME/x",
    "-x",
    "a\nb",
    "a\0b",
    "\ud800",
    "\u202eb.txt",
    "%s",
    "x" * 300,
    "x/" * 3000,
    ".env",
    "id_rsa",
    ".git/hooks/pre-commit",
    ".qwen/settings.json",
    ".dir-locals.el",
    "new/deep/er.txt",
)
"""Names of files that a model could think of."""


@contextmanager
def _traps(home: Home) -> Generator[tuple[str, ...]]:
    """Put files into the project that are no files, and a link out of it; yield their names and `NAMES`."""
    work = home.work
    (work / "link").symlink_to(home.home)
    (work / "loop").symlink_to("loop")
    (work / "folder").mkdir()
    os.mkfifo(work / "pipe")
    (work / "unreadable").touch(mode=0)
    try:
        yield (*NAMES, "link/x", "loop", "loop/x", "folder", "pipe", "unreadable", "unreadable/x")
    finally:
        for path in (work / "link", work / "loop", work / "pipe", work / "unreadable"):
            path.unlink()
        (work / "folder").rmdir()


def _proposal(backend: Backend, cli: Cli, home: Home, chance: random.Random, names: Sequence[str]) -> bool:
    """Propose a text for one of `names`; return whether it was refused, or came to Emacs as it was sent."""
    name, text = chance.choice(names), "".join(chance.choices(TEXTS, k=chance.randrange(1, 4)))
    path = name if chance.random() < 0.2 else f"{home.work}/{name}"
    arguments = {"filePath": path, "newContent": text}
    status, _, answer = cli.request("tools/call", {"name": "openDiff", "arguments": arguments})
    if status != 200 or "error" in answer or answer["result"].get("isError"):
        return status < 500
    opened = backend.emacs.calls("proposal-open").get(timeout=HANG_S)
    shown = opened["text"] if "text" in opened else _spooled(Path(opened["text-file"]))
    sound = text.encode("utf-8", "replace").decode() == text
    # By its name: where a link leads, Emacs shows.
    inside = os.path.normpath(str(opened["path"])).startswith(f"{home.work}{os.sep}")
    cli.tool("closeDiff", filePath=path)
    return inside and (shown == text or not sound)


def _spooled(file: Path) -> str:
    """Return the text of `file` and remove it, as Emacs does."""
    data = file.read_bytes()
    file.unlink()
    return data.decode("utf-8")


# --- Discovery files of others ----------------------------------------------------------------------------------------

PORT = 4711
FILES_AT_ONCE = 20
FILES = tuple({dialect.file: None for dialect in DIALECTS})


def _discovery(chance: random.Random) -> bool:
    """Publish and remove our files among those of others; return whether only ours came and went."""
    with new_home() as home:
        bait = home.work / "bait"
        bait.write_text("as it was")
        environ = home.environ
        discovery = Discovery(os.getpid(), PORT, "token", environ)
        directories = {file: Path(directory_of(file, environ)) for file in FILES}
        for directory in directories.values():
            _make_directory(directory, chance, home)
        put = 0
        while put < FILES_AT_ONCE:
            file = chance.choice(FILES)
            path = directories[file] / _name(file, chance, put)
            if not os.path.lexists(path):
                _put(path, bait, chance)
                put += 1
        others = _all(home)
        told, written, right = list[str](), list[str](), list[bool]()

        def work() -> None:
            told.extend(discovery.publish([str(home.work)]).warnings)
            written.extend(discovery.paths())
            right.extend(_is_ours(Path(path)) for path in written)
            discovery.renew()
            discovery.remove()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(HANG_S)
        if thread.is_alive():
            return False
        left = _all(home)
        # What we could have written ourselves is replaced where it has a name of ours.
        ours = (*written, *map(str, directories.values()), *(str(path.parent) for path in directories.values()))
        kept = all(left.get(path) == found for path, found in others.items() if path not in ours)
        gone = not [path for path in set(left) - set(others) if not os.path.isdir(path)]
        starts = [os.path.join(directory_of(file, environ), file.name.partition("{")[0]) for file in FILES]
        said = sum(any(path.startswith(start) for path in written) for start in starts) + len(told) >= len(FILES)
        return said and len(right) == len(written) and all(right) and kept and gone


def _make_directory(directory: Path, chance: random.Random, home: Home) -> None:
    """Make `directory`, or in few cases what nobody may be led into."""
    kind = chance.random()
    with suppress(FileExistsError):
        if kind < 0.05:
            directory.parent.mkdir(parents=True, mode=0o700)
            directory.symlink_to(home.spool)
        elif kind < 0.1:
            directory.mkdir(parents=True)
            directory.chmod(0o777)
        elif kind < 0.15 and os.geteuid() == 0:
            directory.mkdir(parents=True)
            os.chown(directory, OTHER_USER, -1)
        else:
            directory.mkdir(parents=True, mode=0o700)


def _name(file: File, chance: random.Random, number: int) -> str:
    """Return a name for a file beside `file`, which may be that of ours; `number` makes the others different."""
    pid = chance.choice((str(os.getpid()), str(os.getppid()), "1", "0", "99999999999999999999", "-1", "x"))
    port = chance.choice((str(PORT), str(number), str(70000 + number), f"{number}x", f"{PORT}{number}\n"))
    odd = (f"{'x' * 200}{number}", f"\udcff{number}.lock", ".lock", f"a\n{number}.json")
    return chance.choice((file.name.format(pid=pid, port=port),) * 5 + odd)


def _put(path: Path, bait: Path, chance: random.Random) -> None:
    """Put something at `path` that is no discovery file of a live Emacs."""
    # Process 1 lives.
    space, pid = chance.choice((("elsewhere", 10**30), ("elsewhere", -1), (process_space(), 1), (process_space(), "1")))
    mark = {"space": space, "pid": pid, "started": ""}
    content = json.dumps({"port": "1", "workspacePath": "/", MARKER: chance.choice((mark, [], "x", None))}).encode()
    kinds: list[Callable[[], object]] = [
        lambda: path.write_bytes(noise(chance, chance.randrange(200))),
        lambda: path.write_bytes(damaged(chance, content)),
        lambda: path.write_bytes(content),
        lambda: path.write_bytes(chance.choice((b"[", b'{"a":')) * 100_000),
        lambda: _make_huge(path),
        lambda: path.symlink_to(bait),
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.symlink_to("nowhere"),
        lambda: path.hardlink_to(bait),
        lambda: os.mkfifo(path),
        lambda: path.mkdir(),
        lambda: (path.write_bytes(content), os.geteuid() == 0 and os.chown(path, OTHER_USER, -1)),
        lambda: (path.write_bytes(content), path.chmod(0)),
    ]
    chance.choice(kinds)()


def _make_huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 36)


def _all(home: Home) -> dict[str, tuple[object, ...]]:
    """Return the files and directories below `home` by name, with their kind, owner and content."""
    found: dict[str, tuple[object, ...]] = {}
    for directory, folders, files in os.walk(home.home.parent):
        for name in (*folders, *files):
            path = os.path.join(directory, name)
            state = os.lstat(path)
            small = stat.S_ISREG(state.st_mode) and state.st_size < 1 << 20
            found[path] = (
                state.st_ino,
                state.st_mode,
                state.st_uid,
                Path(path).read_bytes() if small else state.st_size,
            )
    return found


def _is_ours(path: Path) -> bool:
    """Return whether a CLI would find this Emacs by the file `path`."""
    content = json.loads(path.read_bytes())
    return str(content["port"]) == str(PORT) and content["authToken"] == "token"
