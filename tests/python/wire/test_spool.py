# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen_companion.base.errors import SpoolError
from qwen_companion.wire.spool import Spool


def test_a_written_text_is_private_and_is_removed_when_read(spool: Spool) -> None:
    path = spool.write("a\r\nb")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert Path(path).read_bytes() == b"a\r\nb"
    assert spool.read(path) == "a\r\nb"
    assert not os.path.exists(path)


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives(text: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        spool = Spool(directory)
        assert spool.read(spool.write(text)) == text


def test_emacs_is_told_which_texts_are_ascii(spool: Spool) -> None:
    assert [os.path.basename(spool.write(text)).split("-")[0] for text in ("a\r\0", "é", "\ufeff")] == [
        *("ascii", "utf", "utf")
    ]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("a\r\n\r\r\nb\r", "ascii-crlf"),
        ("é\r\n", "utf-8-crlf"),
        ("a\r\nb\n", "ascii"),
        ("\na\r\n", "ascii"),
        ("a\rb", "ascii"),
        ("é\r\r", "utf-8"),
    ],
)
def test_emacs_is_told_in_which_texts_all_lines_end_in_crlf(spool: Spool, text: str, kind: str) -> None:
    path = spool.write(text)
    assert os.path.basename(path).rpartition("-")[0] == kind
    assert Path(path).read_bytes() == text.encode("utf-8")


def test_bytes_that_are_no_text_are_refused_and_removed(spool: Spool) -> None:
    path = Path(spool.directory, "bad")
    path.write_bytes(b"\xff")
    with pytest.raises(SpoolError, match="UTF-8"):
        spool.read(str(path))
    assert not path.exists()


def test_only_files_directly_inside_are_read(spool: Spool, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("x")
    for path in (str(outside), f"{spool.directory}/../{tmp_path.name}/outside", "outside", f"{spool.directory}/a/b"):
        with pytest.raises(SpoolError):
            spool.read(path)
    assert outside.exists()


def test_neither_links_nor_pipes_are_read(spool: Spool, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("x")
    link, pipe = f"{spool.directory}/link", f"{spool.directory}/pipe"
    os.symlink(outside, link)
    os.mkfifo(pipe)
    for path in (link, pipe, f"{spool.directory}/missing"):
        with pytest.raises(SpoolError):
            spool.read(path)
    assert outside.exists()


def test_a_directory_others_can_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(SpoolError, match="other users"):
        Spool(str(tmp_path))
    tmp_path.chmod(0o700)
    (tmp_path / "link").symlink_to(tmp_path)
    for path in (tmp_path / "missing", tmp_path / "link"):
        with pytest.raises(SpoolError):
            Spool(str(path))


def test_writing_to_a_directory_that_has_gone_is_an_error(spool: Spool) -> None:
    spool.remove()
    spool.remove()
    with pytest.raises(SpoolError):
        spool.write("x")


def test_a_text_cut_off_by_a_full_disk_leaves_no_file(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_full(*_arguments: object, **_options: object) -> object:
        return open("/dev/full", "wb")

    monkeypatch.setattr(os, "fdopen", open_full)
    with pytest.raises(SpoolError, match="No space left"):
        spool.write("x" * 100_000)
    monkeypatch.undo()
    assert list(Path(spool.directory).iterdir()) == []
