# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest

from qwen_companion.discovery.dialects import DIALECTS, GEMINI_FILE, LOCK_FILE, Dialect, Pids, Value, in_effect


def test_no_two_files_have_the_same_place() -> None:
    files, _ = in_effect(DIALECTS)
    places = [(file.base, file.directories, file.name) for file in files]
    assert len(set(places)) == len(places)


def test_a_name_holds_a_process_where_the_reader_looks_for_one() -> None:
    files, _ = in_effect(DIALECTS)
    assert all(("{pid}" in file.name) == (file.pids is not Pids.NONE) for file in files)
    assert all("{port}" in file.name for file in files)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.generation)
def test_every_row_has_what_every_cli_needs(dialect: Dialect) -> None:
    values = {value for _, value in dialect.file.content}
    assert values >= {Value.WORKSPACE, Value.TOKEN, Value.EDITOR_INFO}
    assert values & {Value.PORT_NUMBER, Value.PORT_STRING}
    assert {value for _, value in dialect.variables} >= {Value.WORKSPACE, Value.PORT_STRING}


def test_the_environment_never_holds_the_token() -> None:
    _, variables = in_effect(DIALECTS)
    assert Value.TOKEN not in {value for _, value in variables}


def test_generations_that_share_a_file_share_one() -> None:
    files, variables = in_effect(DIALECTS)
    assert files.count(LOCK_FILE) == 1
    assert files.count(GEMINI_FILE) == 1
    names = [name for name, _ in variables]
    assert len(set(names)) == len(names)
