# SPDX-License-Identifier: GPL-3.0-or-later
"""Look up a daemon's token in files like `~/.authinfo`, in the netrc format that Emacs's auth-source uses."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlsplit

_log = logging.getLogger(__name__)

USER = "qwen"
"""The user name of a daemon's entry."""

_TOKEN = re.compile(r"""#[^\n]*|'([^'\n]*)'|"([^"\n]*)"|(\S+)""")
_KEYS = {
    "machine": "host",
    "host": "host",
    "port": "port",
    "protocol": "port",
    "login": "user",
    "user": "user",
    "account": "user",
    "password": "secret",
    "secret": "secret",
}
_DEFAULT_PORTS = {"http": 80, "https": 443}
_LARGEST_FILE = 1024 * 1024


def find_token(files: Sequence[str], url: str) -> str | None:
    """Return the token for the host and port of `url` from the first of `files` with a match, else None.

    An entry without host, port or user matches any, as in auth-source.
    """
    parts = urlsplit(url)
    wanted = {"host": parts.hostname, "port": str(parts.port or _DEFAULT_PORTS.get(parts.scheme)), "user": USER}
    for file in files:
        for entry in _entries(_read(file)):
            if "secret" in entry and all(entry.get(key, value) == value for key, value in wanted.items()):
                return entry["secret"]
    return None


def _read(file: str) -> str:
    try:
        with open(file, encoding="utf-8", errors="replace") as opened:
            return opened.read(_LARGEST_FILE)
    except FileNotFoundError:
        return ""
    except OSError as error:
        _log.warning("a file of auth-sources cannot be read: %s", error.strerror)
        return ""


def _entries(text: str) -> Iterator[Mapping[str, str]]:
    entry: dict[str, str] = {}
    key: str | None = None
    for match in _TOKEN.finditer(text):
        word = match[1] or match[2] or match[3]
        if word is None:
            # A comment or an empty string.
            continue
        if key is not None:
            entry[key] = word
            key = None
        elif word in ("machine", "default"):
            yield entry
            entry = {}
            key = _KEYS.get(word)
        else:
            key = _KEYS.get(word, "other")
    yield entry
