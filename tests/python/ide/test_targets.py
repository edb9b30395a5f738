# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
from pathlib import Path

import pytest

from qwen_companion.ide.targets import TargetError, check_target


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/", "is a directory"),
        ("/nowhere/", "names a directory"),
        ("/dev/null", "regular"),
        ("/" + "x" * 300, "inspected"),
    ],
)
def test_what_is_no_file_is_refused_with_a_reason(path: str, reason: str) -> None:
    with pytest.raises(TargetError, match=reason):
        check_target(path, None)


def test_pipes_and_links_to_devices_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for name in ("pipe", "device"):
        with pytest.raises(TargetError, match="regular"):
            check_target(str(tmp_path / name), None)


def test_nothing_is_reviewed_where_no_root_is_known(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="knows no workspace root"):
        check_target(str(tmp_path / "new"), ())


def test_existing_files_new_files_and_dangling_links_can_be_reviewed(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for name in ("there", "new", "new-directory/new", "link", "there/below-a-file"):
        check_target(str(tmp_path / name), (str(tmp_path),))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        "naïve é😀\n".encode(),
        b"\xef\xbb\xbfwith a mark\n",
        "naïve\n".encode("latin-1"),
        "日本語\n".encode("shift-jis"),
        "日本語\n".encode("iso2022_jp"),
        "text\n".encode("utf-16"),
        b"\x1b[31mred\x1b[0m\x07\f\n",
        b"\x01 in UTF-8\n",
        b"x" * (1024 * 1024 - 1) + "é".encode(),
    ],
)
def test_text_in_any_encoding_can_be_reviewed(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)
    check_target(str(path), None)


@pytest.mark.parametrize(
    "content",
    [
        b"\x7fELF\0\0",
        b"x" * (1024 * 1024) + b"\0",
        b"\x89PNG\r\n\x1a\n",
        b"\x1f\x8b\x08compressed",
        b"\xff" + b"x" * (1024 * 1024) + b"\x02",
    ],
)
def test_what_no_encoding_makes_text_of_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "binary"
    path.write_bytes(content)
    with pytest.raises(TargetError, match="not a text file"):
        check_target(str(path), None)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("x")
    path.chmod(0)
    with pytest.raises(TargetError, match="cannot be read"):
        check_target(str(path), None)


class TestRoots:
    """Where a proposal may lie."""

    def check(self, path: Path | str, *roots: Path) -> None:
        check_target(str(path), [str(root) for root in roots])

    def test_files_and_new_directories_below_a_root(self, tmp_path: Path) -> None:
        root, other = tmp_path / "root", tmp_path / "other"
        root.mkdir()
        self.check(root / "new" / "directory" / "file", other, root)

    @pytest.mark.parametrize("name", ["elsewhere", "root-not", "root/../elsewhere"])
    def test_files_outside_are_refused_and_the_roots_named(self, name: str, tmp_path: Path) -> None:
        root = tmp_path / "root"
        root.mkdir()
        with pytest.raises(TargetError, match=str(root)):
            self.check(f"{tmp_path}/{name}", root)

    def test_a_link_in_a_root_belongs_to_it(self, tmp_path: Path) -> None:
        root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
        root.mkdir()
        elsewhere.mkdir()
        (root / "link").symlink_to(elsewhere)
        self.check(root / "link" / "file", root)
        with pytest.raises(TargetError, match="outside"):
            self.check(f"{root}/link/../file", root)

    def test_a_root_by_its_other_name(self, tmp_path: Path) -> None:
        root = tmp_path / "root"
        root.mkdir()
        (tmp_path / "alias").symlink_to(root)
        self.check(tmp_path / "alias" / "file", root)
        self.check(root / "file", tmp_path / "alias")
