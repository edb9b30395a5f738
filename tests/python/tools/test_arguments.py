# SPDX-License-Identifier: GPL-3.0-or-later
"""A model's arguments for tools, and the errors for wrong ones."""

from __future__ import annotations

from typing import Any

import pytest

from qwen_companion.domain import ToolArgument, ToolDefinition
from qwen_companion.tools.arguments import ToolError, check_arguments, input_schema

TOOL = ToolDefinition(
    "look",
    "Look at a place.",
    (
        ToolArgument("path", "path", "The file.", required=True),
        ToolArgument("line", "line", "The line."),
        ToolArgument("all", "boolean", "Whether all."),
        ToolArgument("how", "string", "How.", choices=("near", "far")),
    ),
    paged=True,
)


def test_the_schema_says_what_is_checked() -> None:
    schema = input_schema(TOOL)
    assert schema["required"] == ["path"]
    properties = schema["properties"]
    # A CLI would refuse what is below a minimum in words that help no model.
    assert properties["line"] == {"type": "integer", "description": "The line."}
    assert properties["how"]["enum"] == ["near", "far"]
    assert list(properties) == ["path", "line", "all", "how", "limit", "offset"]


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"path": "a", "line": "7", "all": "True"}, {"path": "a", "line": 7, "all": True}),
        ({"path": "a", "line": 7.0, "how": None}, {"path": "a", "line": 7}),
        ({"path": "a", "offset": 0, "how": "far"}, {"path": "a", "offset": 0, "how": "far"}),
    ],
)
def test_habits_of_small_models_are_understood(given: dict[str, Any], values: dict[str, Any]) -> None:
    assert check_arguments(TOOL, given) == values


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"path": "a", "line": 0}, "counts from 1"),
        ({"path": "a", "line": -3}, "counts from 1"),
        ({"path": "a", "line": "x"}, "whole number"),
        ({"path": "a", "line": True}, "whole number"),
        ({"path": "a", "line": 1e99}, "too large"),
        ({"path": "a", "offset": -1}, "negative"),
        ({"path": "a", "all": "maybe"}, "true or false"),
        ({"path": "a", "how": "deep"}, "one of near, far"),
        ({"path": 7}, "a string"),
        ({}, "needs `path`: The file."),
        ({"file_path": "a"}, "no argument `file_path`. It takes `path`"),
        ({"file_path": "a"}, "the name of a file is called `path`"),
    ],
)
def test_an_error_tells_what_to_do_instead(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ToolError) as caught:
        check_arguments(TOOL, given)
    assert words in str(caught.value)
