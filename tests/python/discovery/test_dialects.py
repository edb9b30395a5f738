# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from qwen_companion.discovery.dialects import DIALECTS, ENVIRONMENT, Value


def test_no_two_rows_write_the_same_file() -> None:
    places = [(dialect.base, dialect.directories, dialect.file_name) for dialect in DIALECTS]
    assert len(set(places)) == len(places)


def test_every_row_has_what_every_cli_needs() -> None:
    for dialect in DIALECTS:
        values = {value for _, value in dialect.content}
        assert values >= {Value.WORKSPACE, Value.TOKEN, Value.EDITOR_INFO}
        assert values & {Value.PORT_NUMBER, Value.PORT_STRING}


def test_the_environment_never_holds_the_token() -> None:
    assert Value.TOKEN not in {value for _, value in ENVIRONMENT}
