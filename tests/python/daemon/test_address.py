# SPDX-License-Identifier: GPL-3.0-or-later
"""Which URLs and tokens are used, and how they are shown."""

from __future__ import annotations

import pytest

from qwen_companion.daemon.address import clean_token, clean_url
from qwen_companion.daemon.errors import SettingsError, UnsafeUrlError


@pytest.mark.parametrize(
    ("url", "clean"),
    [
        ("http://127.0.0.1:4170", "http://127.0.0.1:4170"),
        (" http://localhost:4170/ ", "http://localhost:4170"),
        ("http://[::1]:4170", "http://[::1]:4170"),
        ("https://daemon.example.org/qwen/", "https://daemon.example.org/qwen"),
        ("https://me:hidden@daemon.example.org", "https://daemon.example.org"),
        ("http://127.0.0.1:4170/?token=hidden#token=hidden", "http://127.0.0.1:4170"),
    ],
)
def test_a_url_loses_what_may_be_secret(url: str, clean: str) -> None:
    assert clean_url(url) == clean


@pytest.mark.parametrize(
    "url",
    [
        "http://me:hidden@192.0.2.1:4170",
        "http://me:hidden@daemon.example.org",
        "http://localhost.hidden.example.org@192.0.2.1",
        "http://127.0.0.1@192.0.2.1:4170",
        "http://192.0.2.1\\@127.0.0.1.example.org",
        "ftp://me:hidden@127.0.0.1",
        "http://me:hidden@",
        "http://me:hidden@127.0.0.1:port",
        "http://me:hidden@127.0.0.1:99999",
        "http://me:hidden@[::1",
        "127.0.0.1:4170",
        "",
    ],
)
def test_a_url_that_would_show_the_conversation_to_others_is_refused(url: str) -> None:
    with pytest.raises(UnsafeUrlError) as caught:
        clean_url(url)
    assert "hidden" not in str(caught.value)


def test_a_token_must_fit_into_a_header() -> None:
    assert clean_token("abc-123._~+/=") == "abc-123._~+/="
    assert clean_token("") is None
    for token in (
        "hidden\r\nHost: example.org",
        "hidden token",
        "hidden\N{LATIN SMALL LETTER E WITH ACUTE}",
        "x" * 5000,
    ):
        with pytest.raises(SettingsError) as caught:
            clean_token(token)
        assert token not in str(caught.value)
