# SPDX-License-Identifier: GPL-3.0-or-later
"""`python -m qwen_companion.doctor`: check the chain from the Python packages to the settings of the CLIs.

Reads a JSON object from standard input: `editor_pid`, `starting` (whether the mode is just starting), `port` (null
while nothing is served), `roots` and `terminals` (objects with `name`, `pid`, `directory` and `connected`, one for each
CLI that Emacs has started).  Prints one line for each check, an Emacs Lisp list ("pass"|"warn"|"fail" NAME TEXT REMEDY
COMMAND) of strings.  No line holds a secret or the content of a file.  Runs also where packages are missing: what needs
them is imported after they were looked at.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import re
import secrets
import shlex
import stat
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from qwen_companion.base.json_objects import as_object, read_object
from qwen_companion.base.programs import find_program, isolated, run_within

_LOCK: Final = Path(__file__).resolve().parents[1] / "requirements.lock"
_LOCKED: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)( ;)?", re.MULTILINE)
_INSTALL: Final = "M-x qwen-companion-install-backend"
_OFF_AND_ON: Final = "turn qwen-companion-mode off and on"
_NODE: Final = "install Node.js {} or later and see that `exec-path' has its directory, then g here"
_NO_PROGRAM: Final = 127
"""The status of `env` where the program that a script names is not on the path."""

_VERSION_LIMIT_S: Final = 20
_ANSWER_LIMIT_S: Final = 5

_INITIALIZE: Final = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "qwen-companion-doctor", "version": "1"},
}

_CLIS: Final = {
    "qwen": ("Qwen Code", "npm install -g @qwen-code/qwen-code"),
    "gemini": ("Gemini CLI", "npm install -g @google/gemini-cli"),
}
"""Programs of CLIs, the name of each and how it is installed."""


@dataclass(frozen=True)
class Check:
    """The outcome of one check: `status` is pass, warn or fail; `remedy` tells what to do, or is empty.

    `command` is the shell command in `remedy` that does it, or is empty.
    """

    status: str
    name: str
    text: str
    remedy: str = ""
    command: str = ""

    def line(self) -> str:
        """Return the check as a line of Emacs Lisp."""
        fields = (self.status, self.name, self.text, self.remedy, self.command)
        # What JSON escapes in a string, Emacs Lisp escapes in the same way.
        return f"({' '.join(json.dumps(field, ensure_ascii=False) for field in fields)})"


def packages(lock: str) -> Iterator[Check]:
    """Check that what `lock`, the text of a requirements file, names is installed in the version it names."""
    wanted: dict[str, set[str]] = {}
    conditional: set[str] = set()
    for name, version, condition in _LOCKED.findall(lock):
        wanted.setdefault(name, set()).add(version)
        if condition:
            conditional.add(name)
    missing: list[str] = []
    others: list[str] = []
    for name, versions in sorted(wanted.items()):
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            if name not in conditional:
                missing.append(name)
            continue
        if found not in versions:
            others.append(f"{name} {found}, not {' or '.join(sorted(versions))}")
    if missing:
        text = f"missing: {', '.join(missing)}"
        if importlib.util.find_spec("ensurepip") is None:  # Debian keeps it apart.
            remedy = "install Python's venv (on Debian: apt install python3-venv), then " + _INSTALL
            yield Check("fail", "Python packages", f"{text}; this Python cannot make an environment for them", remedy)
        else:
            yield Check("fail", "Python packages", text, _INSTALL)
    elif others:
        yield Check("warn", "Python packages", f"not those that were tested: {', '.join(others)}", _INSTALL)
    else:
        yield Check("pass", "Python packages", f"{len(wanted) - len(conditional)} packages as in the lock file")


def discovery_files(editor_pid: int, port: int | None, environ: Mapping[str, str]) -> tuple[list[Check], str | None]:
    """Check the discovery files of the Emacs `editor_pid`; return the token that they hold, too."""
    from qwen_companion.discovery.dialects import DIALECTS, in_effect
    from qwen_companion.discovery.files import MARKER, directory_of

    checks: list[Check] = []
    token: str | None = None
    for file in in_effect(DIALECTS)[0]:
        name = file.label[0].upper() + file.label[1:]
        directory = directory_of(file, environ)
        pattern = re.escape(file.name).replace(r"\{pid\}", r"\d+").replace(r"\{port\}", r"\d+")
        try:
            names = [path for path in sorted(Path(directory).iterdir()) if re.fullmatch(pattern, path.name)]
            contents = {path: _json(path) for path in names}
            marks = {path: content.get(MARKER) for path, content in contents.items()}
            ours = {path: contents[path] for path, mark in marks.items() if as_object(mark).get("pid") == editor_pid}
            problem = _problem(Path(directory), ours, port)
        except OSError as error:
            ours, problem = {}, (f"{error.filename}: {error.strerror}", _OFF_AND_ON, "")
        if port is None:
            if ours:
                left = f"left though nothing is served: {next(iter(ours))}"
                checks.append(Check("warn", name, left, _OFF_AND_ON))
            continue
        for content in ours.values():
            token = content.get("authToken", token)
        if problem is None:
            checks.append(Check("pass", name, str(next(iter(ours)))))
        else:
            checks.append(Check("fail", name, *problem))
    return checks, token


def _problem(directory: Path, ours: Mapping[Path, dict[str, Any]], port: int | None) -> tuple[str, str, str] | None:
    """Return a problem with the files that are `ours` in `directory`, with its remedy and command; None for none."""
    for path in (directory.parent, directory):
        found = path.stat()
        if found.st_uid != os.getuid():
            return f"{path} belongs to another user", f"move {path} away; the files are written again", ""
        if found.st_mode & 0o022:
            command = f"chmod go-w {shlex.quote(str(path))}"
            return f"other users can write to {path}", command, command
    for path, content in ours.items():
        status = path.lstat()
        if stat.S_IMODE(status.st_mode) != 0o600 or status.st_uid != os.getuid():
            return f"{path} may be read by others", _OFF_AND_ON, ""
        if str(content.get("port")) != str(port):
            return f"{path} names another port than {port}", _OFF_AND_ON, ""
    return None if ours else (f"there is none of this Emacs in {directory}", _OFF_AND_ON, "")


def _json(path: Path) -> dict[str, Any]:
    """Return the JSON object in the file `path`, {} where there is none."""
    try:
        # Reading a pipe would block.
        return (read_object(path.read_bytes()) or {}) if stat.S_ISREG(path.stat().st_mode) else {}
    except OSError:
        return {}


def server(port: int, token: str | None) -> Iterator[Check]:
    """Check that the server at `port` refuses a caller without the token, and not one with it."""
    name = f"Server at port {port}"
    try:
        without = _status(port, None)
        with_token = _status(port, token) if token else None
    except (OSError, http.client.HTTPException) as error:
        yield Check("fail", name, f"does not answer: {error}", _OFF_AND_ON)
        return
    if without != http.client.UNAUTHORIZED:
        yield Check("fail", name, f"answers {without} to a caller without the token: it is not ours", _OFF_AND_ON)
    elif with_token in (None, http.client.UNAUTHORIZED):
        yield Check("fail", name, "refuses the token of the discovery files", _OFF_AND_ON)
    else:
        yield Check("pass", name, "answers, and refuses callers without the token")


def _status(port: int, token: str | None) -> int:
    from qwen_companion.ide.server import PATH

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_LIMIT_S)
    try:
        # Without a session: no CLI comes or goes in the mode line.
        headers = {"Accept": "text/event-stream"} | ({"Authorization": f"Bearer {token}"} if token else {})
        connection.request("GET", PATH, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def proposal(port: int, token: str, root: str) -> Check:
    """Check that a proposal reaches Emacs and comes back: open the review of a new file in `root`, and end it at once.

    The file is never written.
    """
    from qwen_companion.ide.models import CLOSE_DIFF, OPEN_DIFF, close_result

    name, log = "A proposal, and back", "see M-x qwen-companion-log"
    path = os.path.join(root, f"qwen-companion-doctor-{secrets.token_hex(4)}.txt")
    text = "Proposed by qwen-companion-doctor, and taken back.\n"
    try:
        os.chdir(root)  # The server knows a caller's workspace by its directory.
        client = _Client(port, token)
        try:
            opened = client.call_tool(OPEN_DIFF, {"filePath": path, "newContent": text})
            closed = client.call_tool(CLOSE_DIFF, {"filePath": path, "suppressNotification": True})
        finally:
            client.leave()
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        return Check("fail", name, f"the server does not serve a client: {error!r}", log)
    if opened.get("isError") or closed.get("isError"):
        failed = opened if opened.get("isError") else closed
        return Check("fail", name, str(failed["content"][0]["text"]), log)
    if closed["content"][0]["text"] != close_result(text):
        return Check("fail", name, "Emacs gives back another text", log)
    return Check("pass", name, "Emacs has taken it and given it back")


class _Client:
    """A client of the server, as far as a proposal goes."""

    def __init__(self, port: int, token: str) -> None:
        """Begin a session."""
        self._port = port
        self._headers = {
            "Authorization": f"Bearer {token}",
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
        }
        answer, headers = self._post("initialize", _INITIALIZE)
        self._headers |= {
            "mcp-session-id": headers["mcp-session-id"],
            "mcp-protocol-version": answer["result"]["protocolVersion"],
        }
        self._post("notifications/initialized", None)

    def call_tool(self, name: str, arguments: Mapping[str, object]) -> dict[str, Any]:
        """Return the result of the tool `name`."""
        return self._post("tools/call", {"name": name, "arguments": arguments})[0]["result"]

    def leave(self) -> None:
        """End the session."""
        self._request("DELETE", None)

    def _post(self, method: str, params: Mapping[str, object] | None) -> tuple[Any, Mapping[str, str]]:
        message: dict[str, object] = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            message |= {"id": 1, "params": params}
        return self._request("POST", json.dumps(message))

    def _request(self, verb: str, body: str | None) -> tuple[Any, Mapping[str, str]]:
        from qwen_companion.ide.server import PATH

        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_ANSWER_LIMIT_S)
        try:
            connection.request(verb, PATH, body, self._headers)
            response = connection.getresponse()
            data = response.read()
            if response.status >= http.client.BAD_REQUEST:
                raise OSError(f"status {response.status}")
            headers = {name.lower(): value for name, value in response.getheaders()}
            return json.loads(data) if data else None, headers
        finally:
            connection.close()


def clis(environ: Mapping[str, str]) -> Generator[Check, None, dict[str, str]]:
    """Check which CLIs are on the path, and that they say their version; return the versions by program."""
    found = False
    versions: dict[str, str] = {}
    for program, (name, install) in _CLIS.items():
        path = find_program(program, environ)
        if path is None:
            continue
        found = True
        try:
            status, output = run_within(_VERSION_LIMIT_S, [path, "--version"], isolated(environ))
        except OSError as error:
            yield Check("fail", program, f"{path} does not start: {error}", install, install)
            continue
        version = output.decode("utf-8", "replace").strip().splitlines()[-1:] or [""]
        versions[program] = version[0]
        if status == _NO_PROGRAM and find_program("node", environ) is None:
            yield Check("fail", program, f"{path} needs Node.js, and no `node` is on the path", _NODE.format(22))
        elif status or not version[0]:
            yield Check("fail", program, f"{path} --version ends with status {status}", install, install)
        elif (needed := _newer_node(path, environ)) is not None:
            text = (
                f"{version[0]} at {path} asks for Node.js {needed[0]} or later, and the one on the path is {needed[1]}"
            )
            yield Check("warn", program, text, _NODE.format(needed[0]))
        else:
            yield served(program, name, version[0], path)
    if not found:
        install = _CLIS["qwen"][1]
        text = "neither qwen nor gemini is on the path"
        if find_program("npm", environ) is None:
            yield Check("fail", "CLI", f"{text}, nor npm to install them", f"{_NODE.format(22)}; then {install}")
        else:
            yield Check("fail", "CLI", text, install, install)
    return versions


def _newer_node(path: str, environ: Mapping[str, str]) -> tuple[int, str] | None:
    """Return the major versions of Node.js that the CLI at `path` needs and that is installed, if that is older."""
    script = Path(os.path.realpath(path))
    manifest = next((file for parent in script.parents if (file := parent / "package.json").is_file()), None)
    asked = as_object(_json(manifest).get("engines")).get("node") if manifest else None
    wanted = re.fullmatch(r">=\s*(\d+)[.\d]*", str(asked))
    node = find_program("node", environ)
    if wanted is None or node is None:
        return None
    try:
        _, output = run_within(_VERSION_LIMIT_S, [node, "--version"], isolated(environ))
    except OSError:
        return None
    own = re.match(r"v((\d+)[.\d]*)", output.decode("utf-8", "replace"))
    if own is None or int(own[2]) >= int(wanted[1]):
        return None
    return int(wanted[1]), own[1]


def served(program: str, name: str, version: str, path: str) -> Check:
    """Check that a generation of the CLI `name` in `version` is served."""
    from qwen_companion.discovery.dialects import DIALECTS

    known = re.match(r"(\d+)\.(\d+)", version)
    if known is None:
        return Check("pass", program, f"{version} at {path}")
    own = (int(known[1]), int(known[2]))
    first = re.compile(re.escape(name) + r" (\d+)\.(\d+)")
    rows = [(int(row[1]), int(row[2]), dialect) for dialect in DIALECTS if (row := first.match(dialect.generation))]
    fitting = [row for row in rows if row[:2] <= own]
    if not fitting:
        return Check("warn", program, f"{version} at {path} is older than those that are served", _CLIS[program][1])
    dialect = max(fitting, key=lambda row: row[:2])[2]
    text = f"{version} at {path}, served like {dialect.generation}"
    return Check("pass", program, text)


def terminals(started: Iterable[Mapping[str, Any]], port: int | None, roots: Iterable[str]) -> Iterator[Check]:
    """Check that the CLIs that Emacs has `started` are connected to `port`, else what they lack of the discovery."""
    inside = [os.path.realpath(root) for root in roots]
    for terminal in started:
        ports = _ports(terminal["pid"])
        served = "the mode is off" if port is None else f"Emacs serves {port}"
        named = None if ports is None else ", ".join(sorted(ports)) or "no port"
        directory = os.path.realpath(terminal["directory"])
        if terminal["connected"]:
            yield Check("pass", terminal["name"], f"connected; its environment names {named or 'an unknown port'}")
        elif port is not None and not any(os.path.commonpath((root, directory)) == root for root in inside):
            text = f"not connected: {terminal['directory']} is below none of the workspace roots"
            yield Check("warn", terminal["name"], text, "visit a file in there")
        elif ports is not None and ports != {str(port)}:
            text = f"not connected: its environment names {named}, and {served}"
            yield Check("warn", terminal["name"], text, "/ide enable in there, or end it and M-x qwen-companion-run")
        else:
            yield Check("warn", terminal["name"], "the CLI in there is not connected", "/ide enable in there")


def _ports(pid: int) -> set[str] | None:
    """Return the ports that the environment of the process `pid` names for CLIs, None when it cannot be read."""
    import psutil

    from qwen_companion.discovery.dialects import DIALECTS, Value, in_effect

    try:
        environ = psutil.Process(pid).environ()
    except (psutil.Error, OSError):
        return None
    names = [name for name, value in in_effect(DIALECTS)[1] if value is Value.PORT_STRING]
    return {environ[name] for name in names if name in environ}


def settings(roots: list[str], environ: Mapping[str, str], version: str = "") -> Iterator[Check]:
    """Check the settings of Qwen Code, in `version` if it is known, about the IDE and hooks."""
    from qwen_companion.doors.layers import combine
    from qwen_companion.doors.user_settings import (
        VARIABLE,
        LayerError,
        read_settings,
        user_settings_file,
        why_hooks_are_off,
    )

    path = user_settings_file(environ)
    layer = environ.get(VARIABLE)
    defaults: dict[str, Any] = {}
    missing = ""
    if layer:
        try:
            defaults = read_settings(layer)
            missing = "" if defaults else f"{layer} is not there"
        except LayerError as error:
            missing = str(error)
    try:
        ide = as_object(combine(defaults, read_settings(path)).get("ide"))
    except LayerError as error:
        yield Check("fail", "Settings of Qwen Code", str(error), f"mend {path}: no CLI starts with it")
        return
    if ide.get("enabled") is True:
        yield Check("pass", "Settings of Qwen Code", "the CLI connects by itself")
    elif ide.get("hasSeenNudge"):
        yield Check(
            "warn", "Settings of Qwen Code", "the CLI neither connects nor asks whether to", "/ide enable in the CLI"
        )
    else:
        yield Check("pass", "Settings of Qwen Code", "the CLI asks whether to connect when it starts")
    yield from approval_modes([path, *(os.path.join(root, ".qwen", "settings.json") for root in roots)])
    if missing:
        yield Check("fail", "Settings layer", missing, _OFF_AND_ON)
    elif layer:
        yield Check("pass", "Settings layer", layer)
    for root in roots:
        reason = why_hooks_are_off(root, environ, version)
        if reason is not None:
            yield Check(
                "warn",
                f"Hooks in {root}",
                f"the CLI does not say what it does, and its edits are not reviewed in the mode auto: {reason}",
                "change that in the settings",
            )


def guard(environ: Mapping[str, str]) -> Iterator[Check]:
    """Check that a CLI asks before an edit when Emacs does not answer."""
    if find_program("curl", environ) is None:
        problem = "without curl, a CLI writes its edits when Emacs fails to answer"
        yield Check("warn", "Reviews", problem, "install curl")


def approval_modes(paths: Iterable[str]) -> Iterator[Check]:
    """Warn where one of the settings files `paths` has the CLI write without asking anybody, Emacs included."""
    from qwen_companion.doors.user_settings import LayerError, read_settings

    for path in paths:
        try:
            tools = as_object(read_settings(path).get("tools"))
        except LayerError:
            continue
        if tools.get("approvalMode") == "yolo":
            yield Check(
                "warn",
                f"Approval mode in {path}",
                "yolo: the CLI writes without a review",
                "M-x qwen-companion-changes lists what it has written",
            )


def registered(environ: Mapping[str, str]) -> Iterator[Check]:
    """Check the records of the CLIs that are running, and the token with which Emacs prompts them."""
    from qwen_companion.conversations.controller import VALID, grant_file, read_grant
    from qwen_companion.conversations.records import names_in, read_record, registry_directory

    directory = registry_directory(environ)
    found = [record.cli for name in sorted(names_in(directory)) if (record := read_record(directory, name)) is not None]
    running = f"{sum(cli.listens for cli in found)} of {len(found)} running Qwen Codes take them"
    state, grant = read_grant(environ)
    if grant is None:
        text, remedy = "Emacs has no token for that yet, and asks before it makes one", ""
    elif state == VALID:
        text = f"Emacs has the token {grant.id}, in {grant_file(environ)}"
        remedy = f"qwen sessions controllers remove {grant.id} takes it back"
    else:
        text, remedy = f"you have taken back the token {grant.id}", "the next prompt asks whether to make another"
    yield Check("pass", "Prompts to CLIs outside of Emacs", f"{running}; {text}", remedy)
    for cli in found:
        if cli.problem is not None:
            yield Check("warn", f"Qwen Code, process {cli.pid}", cli.problem, "end it, and start it anew")


def run(request: Mapping[str, Any], environ: Mapping[str, str]) -> Iterator[Check]:
    """Run all checks for `request`, see the module."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Check("pass", "Python", f"{version} at {sys.executable}")
    found = list(packages(_LOCK.read_text()))
    yield from found
    if any(check.status == "fail" for check in found):
        return
    port: int | None = request["port"]
    token: str | None = None
    if not request["starting"]:
        checks, token = discovery_files(request["editor_pid"], port, environ)
        yield from checks
    if port is not None:
        served = list(server(port, token))
        yield from served
        roots: list[str] = request["roots"]
        root = next((root for root in roots if os.path.isdir(root)), None)
        if token and root and all(check.status == "pass" for check in served):
            yield proposal(port, token, root)
    if not request["starting"]:
        yield from terminals(request["terminals"], port, request["roots"])
    versions = yield from clis(environ)
    yield from registered(environ)
    yield from settings(request["roots"], environ, versions.get("qwen", ""))
    yield from guard(environ)


def main() -> None:
    """Read the request, and print the checks as they end."""
    request: dict[str, Any] = json.load(sys.stdin)
    for check in run(request, os.environ):
        print(check.line(), flush=True)


if __name__ == "__main__":
    main()
