# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from qwen_companion.base.errors import PromptError
from qwen_companion.doors.terminal_files import append_prompt


def test_prompts_are_lines_of_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts-1"
    prompts = ["one", 'two\n"lines" \N{GRINNING FACE}', ""]
    for prompt in prompts:
        append_prompt(str(tmp_path), str(path), prompt)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"type": "submit", "text": prompt} for prompt in prompts
    ]
    assert path.read_bytes().endswith(b"\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["../outside", "link", "below/it", "missing-directory/it"])
def test_nothing_else_is_written_to(tmp_path: Path, name: str) -> None:
    private = tmp_path / "private"
    (private / "below").mkdir(parents=True)
    (tmp_path / "outside").write_text("mine")
    (private / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(PromptError):
        append_prompt(str(private), f"{private}/{name}", "text")
    assert (tmp_path / "outside").read_text() == "mine"
    assert not list((private / "below").iterdir())
