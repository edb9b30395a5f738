# SPDX-License-Identifier: GPL-3.0-or-later
"""The choice of the daemon's address and token, and how they are shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qwen_companion.daemon.address import (
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    URL_VARIABLE,
    DaemonAddress,
    find_address,
)
from qwen_companion.daemon.errors import DaemonError, SettingsError, UnsafeUrlError

LOCAL = "http://127.0.0.1:4170"
SECRET = "a-secret-nobody-sees"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(SECRET + "\n")
    file.chmod(0o600)
    return file


def refusal(error: type[DaemonError], url: str | None, token: str | None = None, **environment: str) -> str:
    with pytest.raises(error) as caught:
        find_address(url, token, environment)
    assert caught.value.__cause__ is None
    return str(caught.value)


def test_what_the_user_set_comes_before_the_environment(token_file: Path) -> None:
    environment = {
        URL_VARIABLE: "http://127.0.0.1:1",
        TOKEN_VARIABLE: "from-environment",
        TOKEN_FILE_VARIABLE: str(token_file),
    }
    assert find_address(LOCAL, "given", environment) == DaemonAddress(LOCAL, "given")
    assert find_address("", "", environment) == DaemonAddress("http://127.0.0.1:1", "from-environment")
    assert find_address(None, None, {**environment, TOKEN_VARIABLE: ""}).token == SECRET


def test_a_daemon_without_a_token_is_shown_none() -> None:
    assert find_address(LOCAL, None, {}).token is None


def test_no_daemon_is_named() -> None:
    assert URL_VARIABLE in refusal(SettingsError, None)


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://127.0.0.1:4170/", LOCAL),
        (" http://localhost:4170 ", "http://localhost:4170"),
        ("http://127.8.0.1", "http://127.8.0.1"),
        ("http://[::1]:4170", "http://[::1]:4170"),
        ("HTTPS://Example.org:443/daemon/", "https://example.org:443/daemon"),
    ],
)
def test_urls_that_are_used(given: str, used: str) -> None:
    assert find_address(given, None, {}).url == used


@pytest.mark.parametrize("extra", ["/?token={}", "/#token={}"])
def test_a_secret_in_the_url_is_used_as_nothing(extra: str) -> None:
    address = find_address(f"http://{SECRET}:{SECRET}@127.0.0.1:4170{extra.format(SECRET)}", None, {})
    assert address == DaemonAddress(LOCAL)


@pytest.mark.parametrize(
    "host",
    [
        "example.org",
        "192.168.1.2",
        "169.254.1.1",
        "[fe80::1]",
        "127.0.0.1.example.org",
        "localhost.example.org",
        "2130706433",
    ],
)
def test_plain_http_to_anything_but_loopback_is_refused(host: str) -> None:
    text = refusal(UnsafeUrlError, f"http://user:{SECRET}@{host}:4170")
    assert "https" in text
    assert SECRET not in text


@pytest.mark.parametrize("url", ["127.0.0.1:4170", "ftp://127.0.0.1", "http://", "http://127.0.0.1:0", "file:///etc"])
def test_what_is_no_url_of_a_daemon_is_refused(url: str) -> None:
    assert LOCAL in refusal(UnsafeUrlError, url)


@pytest.mark.parametrize("place", ["[127.0.0.1", "127.0.0.1:port", "127.0.0.1:99999"])
def test_what_cannot_be_read_is_not_quoted(place: str) -> None:
    assert SECRET not in refusal(UnsafeUrlError, f"http://user:{SECRET}@{place}")


def test_the_token_is_in_no_representation() -> None:
    assert SECRET not in repr(find_address(LOCAL, SECRET, {}))


@pytest.mark.parametrize("bad", [f"{SECRET}\r\nX-Header: 1", f"{SECRET} two", f"{SECRET}ü", SECRET * 1000])
def test_a_token_that_no_header_can_carry_is_refused_unseen(bad: str) -> None:
    assert SECRET not in refusal(SettingsError, LOCAL, bad)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_token_file_that_others_can_reach_is_refused(token_file: Path, mode: int) -> None:
    token_file.chmod(mode)
    text = refusal(SettingsError, LOCAL, **{TOKEN_FILE_VARIABLE: str(token_file)})
    assert "mode 600" in text
    assert SECRET not in text


def test_a_token_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    missing, binary, pipe = tmp_path / "missing", tmp_path / "binary", tmp_path / "pipe"
    binary.write_bytes(b"\xff\xfe")
    binary.chmod(0o600)
    os.mkfifo(pipe, 0o600)
    for file in (missing, binary, pipe, tmp_path):
        assert str(file) in refusal(SettingsError, LOCAL, **{TOKEN_FILE_VARIABLE: str(file)})
