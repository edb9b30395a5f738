# SPDX-License-Identifier: GPL-3.0-or-later
"""The docstrings of our Python files are written in one way."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]

CAPITALS = re.compile(r"\b[A-Z][A-Z0-9_]+\b")


def functions(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the functions in `file`."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the names of the parameters of `function` in capitals, without words that are written so anyway."""
    all_of = function.args
    found = [*all_of.posonlyargs, *all_of.args, *all_of.kwonlyargs, *filter(None, (all_of.vararg, all_of.kwarg))]
    return {argument.arg.upper() for argument in found} - {"CLI", "ID", "URL"}


@pytest.mark.parametrize("directory", ["python/qwen_companion", "scripts", "demo", "bench", "tests"])
def test_parameters_are_named_as_in_the_code(directory: str) -> None:
    found = [
        f"{file.relative_to(CHECKOUT)}:{function.lineno}: {word}"
        for file in sorted((CHECKOUT / directory).rglob("*.py"))
        for function in functions(file)
        for word in CAPITALS.findall(ast.get_docstring(function) or "")
        if word in parameters(function)
    ]
    assert found == []


DOCSTRING = re.compile(r'^  "((?:[^"\\\n]|\\.)+)', re.MULTILINE)
"""The first line of a string two columns into a form of the top: of a docstring, but for few others."""

RELATIVE = re.compile(r"\b(?:[Ww]hat|[Ww]ho|[Ww]hose|[Ww]hom|of which|that which)\b")
FRAGMENT = re.compile(r"(?:Also|And|But|However|Nor|Or|Whoever)\b")


def first_lines(pattern: str) -> list[tuple[str, str]]:
    """Return pairs of a name of a Lisp file that matches `pattern` and the first line of a docstring in it."""
    return [
        (file.name, line)
        for file in sorted(CHECKOUT.glob(pattern))
        for line in DOCSTRING.findall(file.read_text(encoding="utf-8"))
    ]


def test_the_tests_in_lisp_say_in_sentences_what_they_test() -> None:
    lines = first_lines("tests/elisp/*.el")
    assert len(lines) > 500
    assert [pair for pair in lines if RELATIVE.search(pair[1]) or FRAGMENT.match(pair[1])] == []


def test_names_of_tests_in_lisp_are_no_riddles() -> None:
    names = [
        name
        for file in sorted((CHECKOUT / "tests/elisp").glob("*.el"))
        for name in re.findall(r"^\(ert-deftest (\S+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(names) > 500
    riddle = re.compile(r"-test-(?:what|who)-|-(?:whose|whom|whoever|whatever|of-which|that-which)-")
    assert [name for name in names if riddle.search(name)] == []


def test_docstrings_in_lisp_name_their_value() -> None:
    # "Return the text at point", not "Return what is at point".
    lines = first_lines("lisp/*/*.el")
    assert len(lines) > 1000
    riddle = re.compile(r"(?:Return )?(?:what|who)\b", re.IGNORECASE)
    assert [pair for pair in lines if riddle.match(pair[1])] == []


RIDDLE = re.compile(r"\b(?:that which|what is (?:its|theirs|ours))\b")
SENTENCE_END = re.compile(r"(?<=[.;:?!])\s+|\n\s*\n|\n\s*[-*:]|\\\\\[")
LONGEST = 35
LISP_STRING = re.compile(r'^  "((?:[^"\\]|\\.)*)"', re.MULTILINE)
# In Org: blocks, tables, headings, settings and code; then all of a link but its text.
NO_PROSE = re.compile(
    r"^\s*#\+begin_(\w+).*?#\+end_\1|^[ \t]*[|#*][^\n]*|=\S[^\n]*?=|\[\[[^]]*\](?:\[([^]]*)\])?\]",
    re.DOTALL | re.MULTILINE,
)


def prose(file: Path) -> list[str]:
    """Return the text of a document, or the docstrings in `file`, in Python those of attributes and constants too."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".org":
        return [NO_PROSE.sub(r"\2", text)]
    if file.suffix == ".el":
        return LISP_STRING.findall(text)
    strings = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr)]
    return [node.value for node in strings if isinstance(node, ast.Constant) and isinstance(node.value, str)]


@pytest.mark.parametrize("pattern", ["lisp/*/*.el", "python/**/*.py", "*.org", "docs/*.org"])
def test_sentences_can_be_read_once(pattern: str) -> None:
    found = [
        f"{file.relative_to(CHECKOUT)}: {' '.join(sentence.split())}"
        for file in sorted(CHECKOUT.glob(pattern))
        for text in prose(file)
        for sentence in SENTENCE_END.split(text)
        if len(sentence.split()) > LONGEST or RIDDLE.search(sentence)
    ]
    assert found == []


def test_functions_in_lisp_have_a_verb_that_says_what_they_do() -> None:
    vague = re.compile(r"^\(defun (qwen-companion-\S*-(?:take|look|hear|tell)) ", re.MULTILINE)
    assert [name for file in CHECKOUT.glob("lisp/*/*.el") for name in vague.findall(file.read_text())] == []
