# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path

import pytest

from qwen_companion.daemon.authinfo import find_token

URL = "http://127.0.0.1:4170"


@pytest.mark.parametrize(
    ("text", "url", "token"),
    [
        ("machine 127.0.0.1 port 4170 login qwen password one", URL, "one"),
        ("host x\nmachine 127.0.0.1\n\tport 4170\n\tlogin qwen\n\tpassword one", URL, "one"),
        ("machine 127.0.0.1 login qwen port 4170 secret 'a b'", URL, "a b"),
        ('machine 127.0.0.1 password "a#b" # of the daemon', URL, "a#b"),
        ("# machine 127.0.0.1 password no\ndefault password any", URL, "any"),
        ("machine 127.0.0.1 port 4171 password no machine 127.0.0.1 port 4170 password yes", URL, "yes"),
        ("machine 127.0.0.1 port 4170 login somebody password no", URL, None),
        ("machine localhost port 4170 login qwen password no", URL, None),
        ("machine 127.0.0.1 port 4170 login qwen", URL, None),
        ("machine 127.0.0.1 port 4170 login qwen password", URL, None),
        ("machine example.org port 443 login qwen password other", "https://example.org", "other"),
        ("machine ::1 port 4170 login qwen password six", "http://[::1]:4170", "six"),
        ("", URL, None),
    ],
)
def test_an_entry_is_found_as_auth_source_does(tmp_path: Path, text: str, url: str, token: str | None) -> None:
    file = tmp_path / "authinfo"
    file.write_text(text)
    assert find_token([str(tmp_path / "none"), str(file)], url) == token


def test_the_first_file_counts(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"machine 127.0.0.1 password {name}")
    assert find_token([str(tmp_path / "a"), str(tmp_path / "b")], URL) == "a"
