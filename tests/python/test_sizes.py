# SPDX-License-Identifier: GPL-3.0-or-later
"""A class or function of the backend that grows beyond these limits holds several ideas: split it by idea."""

from __future__ import annotations

import ast

import pytest

from support import PYTHON_DIRECTORY

CLASS_LINES = 320
FUNCTION_LINES = 60


@pytest.mark.parametrize(
    ("kinds", "limit"),
    [((ast.ClassDef,), CLASS_LINES), ((ast.FunctionDef, ast.AsyncFunctionDef), FUNCTION_LINES)],
    ids=["classes", "functions"],
)
def test_nothing_is_larger_than_one_idea(kinds: tuple[type[ast.AST], ...], limit: int) -> None:
    package = PYTHON_DIRECTORY / "qwen_companion"
    found = [
        f"{file.relative_to(package)}: {node.name}"
        for file in sorted(package.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and isinstance(node, kinds)
        if (node.end_lineno or 0) - node.lineno >= limit
    ]
    assert found == []
