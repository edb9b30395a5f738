# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen_companion.base.errors import PatternError, RuleFileError
from qwen_companion.privacy.patterns import Line, Patterns, check, escape, read


class Git:
    """Git's own answer about the names of files that do not exist."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environ = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        subprocess.run(["git", "init", "-q", "."], cwd=directory, env=self.environ, check=True)
        # It is how the library of the CLIs reads the files.
        subprocess.run(["git", "config", "core.ignoreCase", "true"], cwd=directory, env=self.environ, check=True)

    def ignored(self, rules: bytes, names: list[str]) -> dict[str, tuple[int, str] | None]:
        """Return the line, number and text, that excludes each of `names`."""
        (self.directory / ".gitignore").write_bytes(rules)
        done = subprocess.run(
            ["git", "check-ignore", "--no-index", "-z", "-v", "-n", "--stdin"],
            cwd=self.directory,
            env=self.environ,
            input=b"".join(b"./" + os.fsencode(name) + b"\0" for name in names),
            stdout=subprocess.PIPE,
            check=False,
        )
        assert done.returncode in (0, 1)
        fields = [os.fsdecode(field) for field in done.stdout.split(b"\0")]
        answers: dict[str, tuple[int, str] | None] = {}
        for _, number, pattern, name in zip(*(fields[start:-1:4] for start in range(4)), strict=True):
            answers[name[2:]] = (int(number), pattern) if number and not pattern.startswith("!") else None
        return answers


@pytest.fixture(scope="module")
def git() -> Iterator[Git]:
    with tempfile.TemporaryDirectory() as directory:
        yield Git(Path(directory))


def ours(rules: bytes, names: list[str], directory: Path) -> dict[str, tuple[int, str] | None]:
    file = directory / "rules"
    file.write_bytes(rules)
    lines = read(str(file))
    assert lines is not None
    patterns = Patterns(lines)
    found = {name: patterns.match(name) for name in names}
    return {name: (line.number, line.text) if line else None for name, line in found.items()}


NAMES = st.lists(
    st.sampled_from(["a", "b", "ab", "a.b", "B", "c d", "#a", "!b", "[a]", "a\nb", "*"]), min_size=1, max_size=4
)
PIECES = (
    *(
        "a",
        "b",
        "B",
        "ab",
        "a.b",
        "*",
        "**",
        "***",
        "?",
        "*b",
        "a*",
        "*a*b*",
        "[ab]",
        "[!a]",
        "[^b]*",
        "a[!b]b",
        "[a-c]",
    ),
    *("\\a", "\\*", "c\\ d", "c d", "#a", "\\#a", "[", "]", "[[]a]", "\\", "{a,b}", "^a", "$", "+", "(", "|"),
)


@st.composite
def lines(draw: st.DrawFn) -> str:
    parts = (
        draw(st.sampled_from(["", "", "", "!", "#", "\\!", "!!"])),
        draw(st.sampled_from(["", "", "/", "**/"])),
        "/".join(draw(st.lists(st.sampled_from(PIECES), min_size=1, max_size=3))),
        draw(st.sampled_from(["", "", "/", "/**", "/*", "/**/"])),
        draw(st.sampled_from(["", "", "", " ", "\\ ", "\\  "])),
    )
    return "".join(parts)


def is_wider_by_design(rules: list[str]) -> bool:
    """Return sets of characters that a regular expression reads otherwise, and more asterisks than are safe."""
    return any(re.search(r"\[[^\]]*[\[/\\]", line) or line.count("*") > 4 for line in rules)


@given(st.lists(lines(), min_size=1, max_size=5), st.lists(NAMES, min_size=1, max_size=8))
def test_a_file_of_patterns_means_what_it_means_to_git(git: Git, rules: list[str], paths: list[list[str]]) -> None:
    names = sorted({"/".join(path) for path in paths})
    data = "\n".join(rules).encode()
    expected = git.ignored(data, names)
    found = ours(data, names, git.directory)
    if is_wider_by_design(rules):
        assert all(found[name] for name in names if expected[name])
    else:
        assert {name: line and line[0] for name, line in found.items()} == {
            name: line and line[0] for name, line in expected.items()
        }


@pytest.mark.parametrize(
    ("rules", "excluded", "told"),
    [
        ("secrets/\n!docs/\n", "docs/secrets/a", "docs/a"),
        ("secrets/\n!secrets/a\n", "secrets/a", "a"),
        ("/*\n!/src/\n", "a", "src/a"),
        ("Secrets/\n", "secrets/a", "secrets"),
        ("a.txt\r\nb.txt\r\n", "b.txt", "c.txt"),
        ("\ufeffa.txt\n", "a.txt", "b.txt"),
        ("\\#a\n", "#a", "a"),
        ("a\\ \n", "a ", "a"),
        ("x\n", "a\nb/x", "a\nb/y"),
    ],
)
def test_a_file_of_patterns_is_read_as_its_author_meant_it(
    rules: str, excluded: str, told: str, git: Git, tmp_path: Path
) -> None:
    found = ours(rules.encode(), [excluded, told], tmp_path)
    assert found[excluded] is not None
    assert found[told] is None
    assert {name: bool(line) for name, line in git.ignored(rules.encode(), [excluded, told]).items()} == {
        excluded: True,
        told: False,
    }


@pytest.mark.parametrize("inside", ["[:digit:]", "\\]0", "]0", "a&&0", "0[", "+-9"])
def test_a_set_of_characters_only_git_can_read_excludes_more_rather_than_less(inside: str, tmp_path: Path) -> None:
    pattern = f"[{inside}].txt"
    assert ours(pattern.encode(), ["0.txt", "0.py"], tmp_path) == {"0.txt": (1, pattern), "0.py": None}
    # As an exception it would let out more than was meant.
    assert ours(b"*.txt\n!" + pattern.encode(), ["0.txt"], tmp_path) == {"0.txt": (1, "*.txt")}


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("*a*a*a*a*a*a*a*a*a*a*b", "a" * 255),
        ("**/a/**/a/**/a/**/a/**/b", "a/" * 2000 + "a"),
        ("*a*a*/*a*a*/*a*a*/*a*a*/b", "/".join(["a" * 250] * 16)),
        ("[" * 999, "a" * 255),
    ],
)
def test_no_line_takes_long(pattern: str, name: str) -> None:
    patterns = Patterns([Line(1, pattern)])
    started = time.process_time()
    patterns.match(name)
    assert time.process_time() - started < 10  # Without a limit: hours.


def test_a_line_with_many_asterisks_excludes_more_rather_than_less() -> None:
    assert Patterns([Line(1, "x*a*b*c*d*e")]).match("x-a-b-c-d-e")
    assert not Patterns([Line(1, "x*a*b*c*d*e")]).match("y-a-b-c-d-e")
    assert Patterns([Line(1, "*"), Line(2, "!x*a*b*c*d*e")]).match("x-a-b-c-d-e")


def test_a_file_that_cannot_be_used_is_told_from_one_that_is_not_there(tmp_path: Path) -> None:
    assert read(str(tmp_path / "none")) is None
    with pytest.raises(RuleFileError, match="not a regular file"):
        read(str(tmp_path))
    (tmp_path / "long").write_text("a" * 1001)
    with pytest.raises(RuleFileError, match="line of more than 1000 characters"):
        read(str(tmp_path / "long"))


@given(st.text(alphabet="ab*?[]!#\\ /", min_size=1).filter(lambda name: "//" not in name and name.strip("/") == name))
def test_an_escaped_name_means_itself(name: str) -> None:
    assert Patterns([Line(1, "/" + escape(name))]).match(name)
    assert not Patterns([Line(1, "/" + escape(name))]).match("b" + name)


@pytest.mark.parametrize("text", ["", "#a", "!a", "/", "a\\", "a["])
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(PatternError):
        check(text)
