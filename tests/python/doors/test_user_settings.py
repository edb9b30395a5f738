# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from qwen_companion.doors.user_settings import session_token_limit, why_hooks_are_off


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    (directory / ".qwen").mkdir(parents=True)
    return directory


def user_file(environ: dict[str, str]) -> Path:
    return Path(environ["HOME"]) / ".qwen/settings.json"


def test_why_hooks_are_off(project: Path, environ: dict[str, str]) -> None:
    def why() -> str | None:
        return why_hooks_are_off(str(project), environ, "0.24.4")

    assert why() is None
    (project / ".qwen/settings.json").write_text('{"security": {"allowedHttpHookUrls": ["https://x/*"]}}')
    assert why() == f"security.allowedHttpHookUrls in {project}/.qwen/settings.json"
    user_file(environ).write_text('{"disableAllHooks": true}')
    assert why() == f"disableAllHooks in {user_file(environ)}"
    user_file(environ).write_text("{")
    assert why() == f"{user_file(environ)} is not valid JSON"


def test_hooks_in_both_files_switch_ours_off_before_a_version(project: Path, environ: dict[str, str]) -> None:
    def why(version: str) -> str | None:
        return why_hooks_are_off(str(project), environ, version)

    of_project = project / ".qwen/settings.json"
    user_file(environ).write_text('{"hooks": {"Stop": []}}')
    assert why("0.23.4") is None
    of_project.write_text('{"hooks": {}}')
    assert why("0.23.4") == (
        f"hooks in {user_file(environ)} and in {of_project} switch off all others: "
        "move them into one of the files, or update Qwen Code"
    )
    assert why("0.21.10") == why("0.24.0") == why("0.23.4")
    assert why("0.24.2") is why("0.24.4") is why("1.0") is why("") is None
    user_file(environ).unlink()
    assert why("0.23.4") is None


def test_hooks_of_the_user_switch_ours_off_in_a_folder_that_is_not_trusted(
    project: Path, environ: dict[str, str]
) -> None:
    def why(version: str = "0.23.4") -> str | None:
        return why_hooks_are_off(str(project), environ, version)

    trusted = user_file(environ).with_name("trustedFolders.json")
    user_file(environ).write_text('{"hooks": {"Stop": []}, "security": {"folderTrust": {"enabled": true}}}')
    # What the project has does not count, and moving it is no way out.
    for of_project in ("{}", '{"hooks": {}}', '{"disableAllHooks": true}'):
        (project / ".qwen/settings.json").write_text(of_project)
        trusted.write_text(json.dumps({str(project.parent): "TRUST_FOLDER", str(project): "DO_NOT_TRUST"}))
        assert why() == (
            f"hooks in {user_file(environ)} switch off all others in a folder that is not trusted: "
            "trust it, or update Qwen Code"
        )
        assert why("0.24.2") is why("") is None
    (project / ".qwen/settings.json").unlink()
    for rules in ({}, {str(project / "sub"): "DO_NOT_TRUST"}, {str(project / "sub"): "TRUST_PARENT"}):
        trusted.write_text(json.dumps({str(project.parent): "DO_NOT_TRUST", str(project): "TRUST_FOLDER"} | rules))
        assert why() is None
    trusted.write_text(json.dumps({str(project.parent): "DO_NOT_TRUST"}))
    assert why() is not None
    user_file(environ).write_text('{"hooks": {"Stop": []}}')
    assert why() is None


def test_the_limit_of_tokens(project: Path, environ: dict[str, str]) -> None:
    def limit() -> float:
        return session_token_limit(str(project), environ)

    assert limit() == math.inf
    files = user_file(environ), project / ".qwen/settings.json", Path(environ["QWEN_CODE_SYSTEM_SETTINGS_PATH"])
    for number, file in enumerate(files, 1):
        file.write_text(json.dumps({"model": {"sessionTokenLimit": number}}))
        assert limit() == number
    for value, expected in (("", math.inf), ("-1", math.inf), ('"many"', math.inf), ("0.5", 0.5)):
        files[2].write_text(f'{{"model": {{"sessionTokenLimit": {value}}}}}')
        assert limit() == expected
