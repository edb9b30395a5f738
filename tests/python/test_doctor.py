# SPDX-License-Identifier: GPL-3.0-or-later
"""The doctor's checks, on directories and programs made for them; with a real Emacs see tests/e2e."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from qwen_companion import doctor
from qwen_companion.conversations.controller import add_grant
from qwen_companion.discovery.files import Discovery
from qwen_companion.doors.user_settings import VARIABLE
from registry_records import write

TOKEN = "0123456789abcdef"
PORT = 4321


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return an environment whose home, temporary directory and path are empty directories."""
    for name in ("home", "tmp", "bin"):
        (tmp_path / name).mkdir(mode=0o700)
    return {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp"), "PATH": str(tmp_path / "bin")}


def program(environ: dict[str, str], name: str, script: str) -> None:
    path = Path(environ["PATH"], name)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def said(checks: list[doctor.Check]) -> list[tuple[str, str]]:
    return [(check.status, check.text) for check in checks]


def test_packages_of_other_versions_and_missing_ones_are_named() -> None:
    (found,) = doctor.packages("pytest==0.1 \\\n    --hash=sha256:00\nonly-on-mars==1 ; sys_platform == 'mars'\n")
    assert found.status == "warn"
    assert "not 0.1" in found.text
    (found,) = doctor.packages("no-such-package==1\npytest==0.1\n")
    assert (found.status, found.text) == ("fail", "missing: no-such-package")
    assert found.remedy == "M-x qwen-companion-install-backend"


def test_the_files_of_this_emacs_are_looked_at(environ: dict[str, str]) -> None:
    discovery = Discovery(os.getpid(), PORT, TOKEN, environ)
    discovery.publish(["/project"])
    checks, token = doctor.discovery_files(os.getpid(), PORT, environ)
    assert {check.status for check in checks} == {"pass"}
    assert token == TOKEN
    lock = Path(environ["HOME"], ".qwen/ide", f"{PORT}.lock")
    lock.chmod(0o644)
    checks, _ = doctor.discovery_files(os.getpid(), PORT, environ)
    assert ("fail", f"{lock} may be read by others") in said(checks)
    lock.chmod(0o600)
    lock.write_text(lock.read_text().replace(str(PORT), "1"))
    checks, _ = doctor.discovery_files(os.getpid(), PORT, environ)
    assert ("fail", f"{lock} names another port than {PORT}") in said(checks)
    lock.unlink()
    checks, _ = doctor.discovery_files(os.getpid(), PORT, environ)
    assert ("fail", f"there is none of this Emacs in {lock.parent}") in said(checks)
    # Nothing is served: what is there is too much.
    checks, _ = doctor.discovery_files(os.getpid(), None, environ)
    assert {check.status for check in checks} == {"warn"}
    discovery.remove()
    assert doctor.discovery_files(os.getpid(), None, environ) == ([], None)


def test_a_directory_open_to_others_has_a_command_that_closes_it(environ: dict[str, str]) -> None:
    home = Path(environ["HOME"], ".qwen")
    (home / "ide").mkdir(parents=True)
    for directory in (home / "ide", home):
        directory.chmod(0o777)
        discovery = Discovery(os.getpid(), PORT, TOKEN, environ)
        discovery.publish(["/project"])
        checks, _ = doctor.discovery_files(os.getpid(), PORT, environ)
        (failed,) = (check for check in checks if check.status == "fail")
        assert failed.text == f"other users can write to {directory}"
        subprocess.run(["sh", "-c", failed.command], check=True)
        discovery.publish(["/project"])
        checks, _ = doctor.discovery_files(os.getpid(), PORT, environ)
        assert {check.status for check in checks} == {"pass"}
        discovery.remove()


def test_nothing_is_said_of_files_while_the_mode_starts(environ: dict[str, str]) -> None:
    """They are written before Emacs is told of them."""
    Discovery(os.getpid(), PORT, TOKEN, environ).publish(["/project"])
    request: dict[str, object] = {"editor_pid": os.getpid(), "port": None, "roots": [], "terminals": []}
    found = doctor.run({**request, "starting": True}, environ)
    assert not [check for check in found if "nothing is served" in check.text]
    found = doctor.run({**request, "starting": False}, environ)
    assert [check for check in found if "nothing is served" in check.text]


def test_a_python_without_venv_is_said(monkeypatch: pytest.MonkeyPatch) -> None:

    def find_nothing(_name: str) -> None:
        return None

    monkeypatch.setattr("importlib.util.find_spec", find_nothing)
    (check,) = doctor.packages("no-such-package==1\n")
    assert "apt install python3-venv" in check.remedy


def test_files_that_are_not_from_an_emacs_do_not_count(environ: dict[str, str]) -> None:
    Discovery(os.getpid(), PORT, TOKEN, environ).publish(["/project"])
    directory = Path(environ["HOME"], ".qwen/ide")
    for number, text in enumerate(["{", "[" * 100_000, '{"qwenCompanion": 5}', '{"qwenCompanion": []}'], 1):
        (directory / f"{number}.lock").write_text(text)
    os.mkfifo(directory / "9.lock")
    checks, token = doctor.discovery_files(os.getpid(), PORT, environ)
    assert {check.status for check in checks} == {"pass"}
    assert token == TOKEN


def test_files_of_another_emacs_do_not_count(environ: dict[str, str]) -> None:
    Discovery(os.getppid(), PORT, TOKEN, environ).publish(["/project"])
    checks, token = doctor.discovery_files(os.getpid(), PORT, environ)
    assert {check.status for check in checks} == {"fail"}
    assert token is None


def test_a_port_at_which_nobody_listens() -> None:
    (check,) = doctor.server(1, TOKEN)
    assert check.status == "fail"
    assert "does not answer" in check.text


def test_a_proposal_that_nobody_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check = doctor.proposal(1, TOKEN, str(tmp_path))
    assert (check.status, check.remedy) == ("fail", "see M-x qwen-companion-log")
    assert list(tmp_path.iterdir()) == []


def test_the_clis_on_the_path(environ: dict[str, str]) -> None:
    (check,) = doctor.clis(environ)
    assert check.text == "neither qwen nor gemini is on the path, nor npm to install them"
    assert check.remedy.endswith("; then npm install -g @qwen-code/qwen-code")
    program(environ, "npm", "true")
    (check,) = doctor.clis(environ)
    assert (check.status, check.command) == ("fail", "npm install -g @qwen-code/qwen-code")
    program(environ, "qwen", "exit 127")  # As `env' ends without Node.js.
    (check,) = doctor.clis(environ)
    assert (check.status, check.text) == (
        "fail",
        f"{environ['PATH']}/qwen needs Node.js, and no `node` is on the path",
    )
    assert check.remedy.startswith("install Node.js 22")
    program(environ, "qwen", "echo 0.24.4")
    program(environ, "gemini", "exit 3")
    qwen, gemini = doctor.clis(environ)
    assert (qwen.status, qwen.text) == (
        "pass",
        f"0.24.4 at {environ['PATH']}/qwen, served like Qwen Code 0.15 and later",
    )
    assert (gemini.status, gemini.text) == ("fail", f"{environ['PATH']}/gemini --version ends with status 3")


@pytest.mark.parametrize(
    ("version", "status", "text"),
    [
        ("0.13.1", "pass", "served like Qwen Code 0.12"),
        ("1.0.0", "pass", "served like Qwen Code 0.15 and later"),
        ("0.0.14", "warn", "is older than those that are served"),
    ],
)
def test_the_generation_of_a_cli(environ: dict[str, str], version: str, status: str, text: str) -> None:
    program(environ, "qwen", f"echo {version}")
    (check,) = doctor.clis(environ)
    assert (check.status, check.text.endswith(text)) == (status, True)


@pytest.mark.parametrize(
    ("engines", "node", "problem"),
    [
        ('{"node": ">=22.0.0"}', "echo v18.20.4", "asks for Node.js 22 or later, and the one on the path is 18.20.4"),
        ('{"node": ">=22.0.0"}', "echo v22.0.1", None),
        ('{"node": ">=22.0.0"}', "exit 1", None),
        ('{"node": "22 || 24"}', "echo v18.20.4", None),
        ("[]", "echo v18.20.4", None),
    ],
)
def test_a_node_too_old_for_the_cli(
    environ: dict[str, str], tmp_path: Path, engines: str, node: str, problem: str | None
) -> None:
    """Qwen Code says its version with Node.js 18, and when it starts ends with a syntax error."""
    program(environ, "node", node)
    program(environ, "qwen", "echo 0.24.4")
    package = tmp_path / "package"
    (package / "bin").mkdir(parents=True)
    (package / "package.json").write_text(f'{{"engines": {engines}}}')
    found = Path(environ["PATH"], "qwen")
    found.rename(package / "bin/qwen.js")
    found.symlink_to(package / "bin/qwen.js")
    (check,) = doctor.clis(environ)
    if problem is None:
        assert check.status == "pass"
    else:
        assert (check.status, check.text) == ("warn", f"0.24.4 at {found} {problem}")
        assert check.remedy.startswith("install Node.js 22 or later")


def test_terminals_and_their_environment(tmp_path: Path) -> None:
    def said_of(told: Mapping[str, str], port: int | None, roots: list[str], connected: bool = False) -> str:
        # It is asked when it runs: the kernel has its environment only some time after the start.
        process = subprocess.Popen(
            ["sh", "-c", "echo; cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], **told},
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"\n"
            terminal = {"name": "*qwen: x*", "pid": process.pid, "directory": str(tmp_path), "connected": connected}
            (check,) = doctor.terminals([terminal], port, roots)
            return f"{check.status} {check.text} -> {check.remedy}"
        finally:
            process.communicate()

    here = {"QWEN_CODE_IDE_SERVER_PORT": str(PORT), "GEMINI_CLI_IDE_SERVER_PORT": str(PORT)}
    roots = [str(tmp_path)]
    assert said_of(here, PORT, roots, connected=True) == f"pass connected; its environment names {PORT} -> "
    assert said_of(here, PORT, roots) == "warn the CLI in there is not connected -> /ide enable in there"
    again = "/ide enable in there, or end it and M-x qwen-companion-run"
    other = said_of(here, 1, roots)
    assert other == f"warn not connected: its environment names {PORT}, and Emacs serves 1 -> {again}"
    before = said_of({}, PORT, roots)
    assert before == f"warn not connected: its environment names no port, and Emacs serves {PORT} -> {again}"
    outside = said_of(here, PORT, [str(tmp_path / "project")])
    assert outside == f"warn not connected: {tmp_path} is below none of the workspace roots -> visit a file in there"
    assert "and the mode is off" in said_of(here, None, [])


@pytest.mark.parametrize(
    ("content", "status", "text"),
    [
        ("{}", "pass", "the CLI asks whether to connect when it starts"),
        ('{"ide": {"enabled": true}}', "pass", "the CLI connects by itself"),
        ('{"ide": {"hasSeenNudge": true}}', "warn", "the CLI neither connects nor asks whether to"),
    ],
)
def test_whether_the_cli_connects(environ: dict[str, str], content: str, status: str, text: str) -> None:
    path = Path(environ["HOME"], ".qwen/settings.json")
    path.parent.mkdir()
    path.write_text(content)
    assert said(list(doctor.settings([], environ))) == [(status, text)]


def test_the_cli_connects_by_the_layer_unless_the_user_has_turned_that_off(
    environ: dict[str, str], tmp_path: Path
) -> None:
    layer = tmp_path / "layer.json"
    layer.write_text('{"ide": {"enabled": true}}')
    path = Path(environ["HOME"], ".qwen/settings.json")
    path.parent.mkdir()
    off = '{"ide": {"enabled": false, "hasSeenNudge": true}}'
    for content, status in (("{}", "pass"), ('{"ide": {"hasSeenNudge": true}}', "pass"), (off, "warn")):
        path.write_text(content)
        found = said(list(doctor.settings([], {**environ, VARIABLE: str(layer)})))
        assert found[0][0] == status
        assert found[1] == ("pass", str(layer))


def test_a_mode_without_reviews(environ: dict[str, str], tmp_path: Path) -> None:
    settings = tmp_path / "project/.qwen/settings.json"
    settings.parent.mkdir(parents=True)
    for mode, warned in (("yolo", True), ("default", False)):
        settings.write_text(json.dumps({"tools": {"approvalMode": mode}}))
        found = doctor.settings([str(tmp_path / "project")], environ)
        assert (f"Approval mode in {settings}" in {check.name for check in found}) is warned


def test_settings_that_keep_the_hooks_off_and_a_broken_layer(environ: dict[str, str], tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / ".qwen").mkdir(parents=True)
    (project / ".qwen/settings.json").write_text('{"disableAllHooks": true}')
    layer = tmp_path / "layer.json"
    layer.write_text("{")
    checks = list(doctor.settings([str(project)], environ | {VARIABLE: str(layer)}))
    assert ("fail", f"{layer} is not valid JSON") in said(checks)
    assert any(check.name == f"Hooks in {project}" and check.status == "warn" for check in checks)
    own = Path(environ["HOME"], ".qwen/settings.json")
    own.parent.mkdir()
    for file in (own, project / ".qwen/settings.json"):
        file.write_text('{"hooks": {}}')
    for version, warned in (("0.23.4", True), ("0.24.4", False), ("", False)):
        names = {check.name for check in doctor.settings([str(project)], environ, version)}
        assert (f"Hooks in {project}" in names) is warned
    own.write_text("[]")
    (check,) = doctor.settings([], environ)
    assert check.status == "fail"
    assert str(own) in check.text


def test_the_report_is_emacs_lisp_without_secrets(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Discovery(os.getpid(), PORT, TOKEN, environ).publish(["/project"])
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    program(environ, "qwen", "printf '1\"2\\\\3\\n'")
    request: dict[str, object] = {
        "editor_pid": os.getpid(),
        "starting": False,
        "port": PORT,
        "roots": [],
        "terminals": [],
    }
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(request)))
    doctor.main()
    report = capsys.readouterr().out
    assert TOKEN not in report
    assert report.startswith('("pass" "Python" ')
    assert '("pass" "qwen" "1\\"2\\\\3 at ' in report
    assert all(line.startswith('("') and line.endswith('")') for line in report.splitlines())


def test_registered_clis_and_the_token_for_them_are_shown(environ: dict[str, str]) -> None:
    assert said(list(doctor.registered(environ))) == [
        ("pass", "0 of 0 running Qwen Codes take them; Emacs has no token for that yet, and asks before it makes one")
    ]
    home = Path(environ["HOME"], ".qwen")
    home.mkdir()
    write(home, {"schemaVersion": 9, "pid": os.getpid()})
    program(environ, "qwen", f"""printf '{{"id": "c_1", "token": "qpc_{TOKEN}"}}'""")
    add_grant(environ, (f"{environ['PATH']}/qwen",))
    controller = {"id": "c_1", "tokenHash": hashlib.sha256(f"qpc_{TOKEN}".encode()).hexdigest()}
    home.joinpath("peer-controllers.json").write_text(json.dumps({"controllers": [controller]}))
    token, problem = doctor.registered(environ)
    assert "0 of 1 running" in token.text
    assert token.remedy == "qwen sessions controllers remove c_1 takes it back"
    assert problem.status == "warn"
    assert "newer Qwen Code" in problem.text
    assert TOKEN not in token.line() + problem.line()
    home.joinpath("peer-controllers.json").unlink()
    token, _ = doctor.registered(environ)
    assert "you have taken back the token" in token.text


def test_without_curl_it_warns_that_edits_are_not_held(tmp_path: Path) -> None:
    assert [check.status for check in doctor.guard({"PATH": str(tmp_path)})] == ["warn"]
    (tmp_path / "curl").touch(mode=0o700)
    assert list(doctor.guard({"PATH": str(tmp_path)})) == []
