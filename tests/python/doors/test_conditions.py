# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
from pathlib import Path

import pytest

from qwen_companion.doors import conditions, layer
from qwen_companion.doors.conditions import may_pass, why_hooks_are_off
from qwen_companion.doors.disk import Disk


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    (directory / ".qwen").mkdir(parents=True)
    return directory


def is_inside(path: str, directory: str) -> bool:
    return conditions.is_inside(path, directory, Disk({}))


def user_file(environ: dict[str, str]) -> Path:
    return Path(environ["HOME"]) / ".qwen/settings.json"


def passes(path: Path, project: Path, environ: dict[str, str], tool: str = "edit") -> bool:
    return may_pass(tool, str(path), str(project), Disk(environ))


def test_a_file_of_the_project_passes(project: Path, environ: dict[str, str]) -> None:
    assert passes(project / "src/main.py", project, environ)
    assert passes(project / "src/main.py", project, environ, "write_file")
    # For this one `auto` asks its classifier.
    assert not passes(project / "x.ipynb", project, environ, "notebook_edit")
    assert not passes(project / "x", project, environ, "run_shell_command")


@pytest.mark.parametrize(
    "name",
    [
        *(".git", ".git/config", "sub/.git/hooks/x", ".husky/pre-commit", "package.json", "sub/Package.JSON", ".npmrc"),
        *("Makefile", "sub/GNUmakefile", "justfile", ".justfile", "Taskfile.yml", "taskfile.yaml"),
        *(".github/workflows/x.yml", ".qwen/settings.json", ".qwen/settings.local.json", ".qwen/rules/x", "QWEN.md"),
        *("sub/AGENTS.md", ".qwen/commands/x", ".qwen/agents/x", ".qwen/skills/x", ".qwen/hooks/x", ".mcp.json"),
        *("QWEN.local.md", "src/../package.json"),
    ],
)
def test_what_auto_would_have_classified_does_not(project: Path, environ: dict[str, str], name: str) -> None:
    assert not passes(project / name, project, environ)


@pytest.mark.parametrize("name", ["package.json.md", "my-makefile", "git/config", "agents.md.txt", ".github/x"])
def test_what_only_looks_like_it_does(project: Path, environ: dict[str, str], name: str) -> None:
    assert passes(project / name, project, environ)


def test_a_link_to_a_protected_file_does_not_pass(project: Path, environ: dict[str, str]) -> None:
    (project / "package.json").write_text("{}")
    (project / "link").symlink_to("package.json")
    assert not passes(project / "link", project, environ)


def test_a_context_file_of_the_users_own_name_is_protected(project: Path, environ: dict[str, str]) -> None:
    user_file(environ).write_text('{"context": {"fileName": ["CONTEXT.md", "docs/AI.txt"]}}')
    assert not passes(project / "sub/context.md", project, environ)
    assert not passes(project / "docs/ai.txt", project, environ)
    assert passes(project / "ai.txt", project, environ)
    (project / ".qwen/settings.json").write_text('{"context": {"fileName": "ONE.md"}}')
    assert not passes(project / "one.md", project, environ)


def test_the_directory_of_the_cli_is_protected_wherever_it_is(project: Path, environ: dict[str, str]) -> None:
    assert not passes(project / "own/x", project, {**environ, "QWEN_HOME": str(project / "own")})


@pytest.mark.parametrize("rule", ["Edit", "Edit(/src/**)", "Write", "write_file", "*", "notebook_edit", "edit(//x)"])
def test_a_question_the_user_wants_is_not_taken_away(project: Path, environ: dict[str, str], rule: str) -> None:
    settings = json.dumps({"permissions": {"ask": ["Bash(rm *)", rule]}})
    for file in (
        user_file(environ),
        project / ".qwen/settings.json",
        Path(layer.system_settings_file(environ)),
        Path(layer.replaced_file(environ)),
    ):
        file.write_text(settings)
        assert not passes(project / "x", project, environ)
        file.unlink()
    assert passes(project / "x", project, environ)


@pytest.mark.parametrize("rule", ["Bash(rm *)", "run_shell_command", "Read(.env)", "mcp__x__y", "WebFetch", "Agent"])
def test_rules_about_other_tools_do_not_matter(project: Path, environ: dict[str, str], rule: str) -> None:
    user_file(environ).write_text(json.dumps({"permissions": {"ask": [rule]}}))
    assert passes(project / "x", project, environ)


def test_settings_that_cannot_be_read_let_nothing_pass(project: Path, environ: dict[str, str]) -> None:
    user_file(environ).write_text("{")
    assert not passes(project / "x", project, environ)


def test_inside_is_by_name_and_really(project: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (project / "out").symlink_to(tmp_path / "outside")
    (tmp_path / "in").symlink_to(project)
    assert is_inside(f"{project}/a/b", str(project))
    assert is_inside(f"{project}/../project/a", f"{project}/")
    assert not is_inside(f"{project}/out/a", str(project))
    assert not is_inside(f"{tmp_path}/in/a", str(project))
    assert not is_inside(f"{project}/../a", str(project))
    assert not is_inside(f"{project}-b/a", str(project))
    assert not is_inside(str(project), str(project))
    assert not is_inside("a", str(project))
    assert not is_inside(f"{project}/a", "")


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
