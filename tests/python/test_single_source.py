# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts that have to be written in several places agree; the place named first is the source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import qwen_companion
from qwen_companion import __main__ as entry
from qwen_companion.ide import context
from qwen_companion.wire import messages, plists

CHECKOUT = Path(__file__).parents[2]


def found(name: str, pattern: str) -> set[str]:
    """Return the different matches of `pattern` in the file `name`; there is at least one."""
    matches = set(re.findall(pattern, (CHECKOUT / name).read_text(encoding="utf-8"), re.MULTILINE))
    assert matches, f"{name} has no {pattern}"
    return matches


def constant(name: str, file: str) -> str:
    """Return the value of the constant `name` in the Lisp `file`, as it is written there."""
    [value] = found(file, rf"^\(defconst {re.escape(name)}\s+([^\s)]+|'\(\(.*\)\))$")
    return value


def test_the_version_is_the_same_in_each_package_description() -> None:
    [version] = found("pyproject.toml", r'^version = "(.+)"$')
    assert {
        qwen_companion.__version__,
        *found("qwen-companion.el", r"^;; Version: (.+)$"),
        *found("Eask", r'^\(package "qwen-companion"\s+"(.+)"$'),
    } == {version}


def test_the_oldest_python_is_the_same_everywhere() -> None:
    [oldest] = found("pyproject.toml", r'^requires-python = ">=(.+)"$')
    major, minor = (int(part) for part in oldest.split("."))
    assert entry.OLDEST_PYTHON == (major, minor)
    named: Mapping[str, str] = {
        "pyproject.toml": r'^pythonVersion = "(.+)"$',
        "lisp/backend/qwen-companion-environment.el": r'-oldest-python "(.+)"$',
        "scripts/lock": r"--python-version (\S+)",
        "README.org": r"Python (3\.\d+) or newer",
        "scripts/setup": r"Python (3\.\d+) or newer",
    }
    assert {name: found(name, pattern) for name, pattern in named.items()} == {name: {oldest} for name in named}
    assert found("lisp/backend/qwen-companion-environment.el", r"Python interpreter \((.+) or later\)") == {oldest}
    assert found("scripts/setup", r"sys\.version_info < \((.+)\)\)") == {f"{major}, {minor}"}


@pytest.mark.parametrize(
    ("value", "name", "file"),
    [
        (messages.PROTOCOL, "qwen-companion-backend--protocol", "lisp/backend/qwen-companion-backend.el"),
        (plists.INLINE_TEXT_BYTES, "qwen-companion-spool--inline-limit", "lisp/backend/qwen-companion-spool.el"),
        (
            context.MAX_SELECTION_UNITS,
            "qwen-companion-context--selection-limit",
            "lisp/context/qwen-companion-context.el",
        ),
    ],
)
def test_emacs_and_the_process_go_by_the_same_number(value: int, name: str, file: str) -> None:
    assert constant(name, file) == str(value)


def test_emacs_knows_the_exit_codes_of_the_process() -> None:
    codes = constant("qwen-companion-backend--exit-codes", "lisp/backend/qwen-companion-backend.el")
    known = {name.replace("-", "_").upper(): int(code) for code, name in re.findall(r"\((\d+) \. ([a-z-]+)\)", codes)}
    assert len(known) == codes.count(" . ") > 0
    assert known == {name: getattr(entry, f"EXIT_{name}") for name in known}
