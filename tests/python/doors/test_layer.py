# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qwen_companion.doors.layers import FILE_NAME, FORMAT_VERSION, Layer, merge
from qwen_companion.doors.user_settings import VARIABLE, LayerError, read_settings, replaced_file

OURS = {"permissions": {"ask": ["Edit(/**)"]}, "hooks": {"Stop": [{"hooks": [{"type": "http"}]}]}}


@pytest.fixture
def administrator(environ: dict[str, str]) -> Path:
    """Return the administrator's file, which is not there yet."""
    return Path(environ["QWEN_CODE_SYSTEM_SETTINGS_PATH"]).with_name("system-defaults.json")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return the private directory."""
    directory = tmp_path / "spool"
    directory.mkdir(mode=0o700)
    return directory


@pytest.fixture
def layer(place: Path, environ: dict[str, str]) -> Layer:
    return Layer(str(place), environ)


def content(directory: Path) -> dict[str, Any]:
    return json.loads((directory / FILE_NAME).read_text())


def test_the_file_is_private_and_named_by_the_variable(layer: Layer, place: Path) -> None:
    installed = layer.install(OURS)
    path = place / FILE_NAME
    assert installed.environment == {VARIABLE: str(path)}
    assert installed.warnings == ()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert content(place) == {**OURS, "$version": FORMAT_VERSION}
    assert list(place.iterdir()) == [path]


def test_a_reader_sees_the_old_file_or_the_new_one(layer: Layer, place: Path) -> None:
    layer.install(OURS)
    seen: list[dict[str, Any]] = []

    def read() -> None:
        seen.extend(content(place) for _ in range(100))

    reader = threading.Thread(target=read)
    reader.start()
    number = 0
    while reader.is_alive():
        number += 1
        layer.install({**OURS, "number": number})
    assert len(seen) == 100
    assert all(item["hooks"] == OURS["hooks"] for item in seen)


def test_the_administrators_settings_stay_in_force(layer: Layer, place: Path, administrator: Path) -> None:
    theirs = {
        "permissions": {"ask": ["Bash(git push *)"], "deny": ["Read(.env)"]},
        "hooks": {"Stop": [{"hooks": [{"type": "command", "command": "true"}]}]},
        "mcpServers": {"theirs": {"command": "x"}},
    }
    administrator.write_text(json.dumps(theirs))
    before = administrator.read_bytes()
    assert layer.install(OURS).warnings == ()
    merged = content(place)
    assert merged["permissions"] == {"ask": ["Bash(git push *)", "Edit(/**)"], "deny": ["Read(.env)"]}
    assert merged["hooks"]["Stop"] == [*theirs["hooks"]["Stop"], *OURS["hooks"]["Stop"]]
    assert merged["mcpServers"] == theirs["mcpServers"]
    assert administrator.read_bytes() == before


def test_a_file_that_the_variable_named_takes_the_administrators_place(
    place: Path, tmp_path: Path, environ: dict[str, str], administrator: Path
) -> None:
    administrator.write_text('{"ui": {"theme": "theirs"}}')
    own = tmp_path / "own.json"
    own.write_text('{"ui": {"theme": "mine"}}')
    Layer(str(place), {**environ, VARIABLE: str(own)}).install(OURS)
    assert content(place)["ui"] == {"theme": "mine"}


def test_without_a_word_of_the_user_it_is_that_of_the_machine() -> None:
    directory = "/Library/Application Support/QwenCode" if sys.platform == "darwin" else "/etc/qwen-code"
    assert replaced_file({}) == f"{directory}/system-defaults.json"


@pytest.mark.parametrize(
    "text",
    [
        '{"ui": {"theme": "x" /* y */}} // end',
        '// first\n{"ui": {"theme": "x"}}\n',
        '\ufeff{"ui": {"theme": "x"}}',
        '{"ui": /* a\n"quote */ {"theme": "x"}}',
    ],
)
def test_comments_are_taken_as_the_cli_takes_them(layer: Layer, place: Path, administrator: Path, text: str) -> None:
    administrator.write_text(text)
    assert layer.install(OURS).warnings == ()
    assert content(place)["ui"] == {"theme": "x"}


def test_what_looks_like_a_comment_in_a_string_stays(layer: Layer, place: Path, administrator: Path) -> None:
    administrator.write_text('{"a": {"url": "http://x/*y*/", "quote": "\\"//"}}')
    layer.install(OURS)
    assert content(place)["a"] == {"url": "http://x/*y*/", "quote": '"//'}


def test_half_a_surrogate_pair_stays(layer: Layer, place: Path, administrator: Path) -> None:
    """JSON can escape half a surrogate pair, which UTF-8 cannot encode."""
    administrator.write_text('{"a": {"half": "\\ud83d", "whole": "\u00e9"}}')
    assert layer.install(OURS).warnings == ()
    assert content(place)["a"] == {"half": "\ud83d", "whole": "\u00e9"}


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', '{"a": 1,}', "[" * 100_000])
def test_terminals_start_although_the_administrators_file_is_broken(
    layer: Layer, place: Path, administrator: Path, text: str
) -> None:
    administrator.write_text(text)
    installed = layer.install(OURS)
    assert installed.environment == {VARIABLE: str(place / FILE_NAME)}
    assert content(place) == {**OURS, "$version": FORMAT_VERSION}
    (warning,) = installed.warnings
    assert str(administrator) in warning
    assert "start without it" in warning
    assert administrator.read_text() == text


def test_a_directory_in_its_place_is_said(layer: Layer, place: Path, administrator: Path) -> None:
    administrator.mkdir()
    (warning,) = layer.install(OURS).warnings
    assert f"{administrator} cannot be read" in warning


@pytest.mark.parametrize(
    "theirs", [{"permissions": 3, "hooks": []}, {"permissions": {"ask": "Edit"}, "hooks": {"Stop": 1}}]
)
def test_settings_of_a_wrong_type_give_way(theirs: dict[str, Any]) -> None:
    assert {key: merge(theirs, OURS)[key] for key in OURS} == OURS


def test_the_version_of_the_format_is_theirs() -> None:
    # One in an older format has to be converted by the CLI, which goes by the version, or without one by the shape.
    assert merge({"$version": 2, "ui": {}}, OURS)["$version"] == 2
    assert merge({"ui": {}}, OURS)["$version"] == FORMAT_VERSION
    assert "$version" not in merge({"theme": "x"}, OURS)


def test_it_is_not_named_where_it_cannot_be_written(layer: Layer, place: Path) -> None:
    place.rmdir()
    installed = layer.install(OURS)
    assert installed.environment == {}
    (warning,) = installed.warnings
    assert "is not written: No such file or directory; CLIs work without it" in warning


def test_a_full_disk_leaves_neither_half_a_file_nor_a_variable(
    layer: Layer, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer.install(OURS)
    real: Callable[..., Any] = os.fdopen

    def full(*arguments: Any) -> Any:
        file = real(*arguments)
        file.close()
        return open("/dev/full", "r+b", buffering=0)

    monkeypatch.setattr(os, "fdopen", full)
    installed = layer.install({**OURS, "more": 1})
    assert installed.environment == {}
    assert "No space left" in installed.warnings[0]
    # The old one would name what is no longer so.
    assert list(place.iterdir()) == []


def test_what_is_not_read_back_as_it_was_written_is_not_used(
    layer: Layer, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., Any] = os.fdopen

    class Forgetful:
        def __init__(self, *arguments: Any) -> None:
            self._file = real(*arguments)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def read(self) -> bytes:
            return b""

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    monkeypatch.setattr(os, "fdopen", Forgetful)
    assert layer.install(OURS).environment == {}
    assert list(place.iterdir()) == []


def test_each_emacs_has_a_file_of_its_own(tmp_path: Path, environ: dict[str, str]) -> None:
    places = [tmp_path / name for name in "ab"]
    layers: list[Layer] = []
    for directory in places:
        directory.mkdir()
        layers.append(Layer(str(directory), environ))
        layers[-1].install(OURS)
    layers[0].remove()
    layers[0].remove()
    assert not (places[0] / FILE_NAME).exists()
    assert content(places[1])["hooks"] == OURS["hooks"]


def test_a_link_in_its_place_is_replaced_and_not_followed(layer: Layer, place: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("theirs")
    (place / FILE_NAME).symlink_to(other)
    layer.install(OURS)
    assert other.read_text() == "theirs"
    assert not (place / FILE_NAME).is_symlink()


@pytest.mark.parametrize(
    ("proxies", "added"),
    [
        ({}, {}),
        ({"NO_PROXY": "x"}, {}),
        ({"HTTP_PROXY": "http://p"}, {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}),
        ({"https_proxy": "http://p", "no_proxy": "a, b"}, {"no_proxy": "a,b,127.0.0.1,localhost"}),
        (
            {"ALL_PROXY": "p", "NO_PROXY": "127.0.0.1", "no_proxy": "c"},
            {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "c,127.0.0.1,localhost"},
        ),
        ({"HTTP_PROXY": "p", "NO_PROXY": "*"}, {}),
        ({"HTTP_PROXY": "p", "NO_PROXY": "localhost,127.0.0.1"}, {}),
    ],
)
def test_a_proxy_is_not_asked_for_this_machine(
    place: Path, environ: dict[str, str], proxies: dict[str, str], added: dict[str, str]
) -> None:
    environment = Layer(str(place), {**environ, **proxies}).install(OURS).environment
    assert environment == {VARIABLE: str(place / FILE_NAME), **added}


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    path.write_text(json.dumps({"a": "0" * 4 * 1024 * 1024}))
    with pytest.raises(LayerError, match="larger"):
        read_settings(str(path))
