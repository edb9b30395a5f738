# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the daemon's URL and token in the user's settings, else in the environment."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import field

from qwen_companion.daemon.address import clean_token, clean_url
from qwen_companion.daemon.authinfo import find_token
from qwen_companion.daemon.errors import SettingsError
from qwen_companion.frozen import frozen

URL_VARIABLE = "QWEN_IDE_DAEMON_URL"
"""Names the daemon where nothing else does (spec A2)."""

TOKEN_VARIABLE = "QWEN_SERVER_TOKEN"  # noqa: S105 - a name
"""Holds the token; `qwen serve` itself takes it from there."""

TOKEN_FILE_VARIABLE = "QWEN_SERVER_TOKEN_FILE"  # noqa: S105 - a name
"""Names the file that holds the token, readable by this user only."""

_LONGEST_FILE = 4096


@frozen
class DaemonAddress:
    """A daemon: its URL, with nothing secret in it and no slash at the end, and its token if it has one."""

    url: str
    token: str | None = field(default=None, repr=False)


def find_address(
    url: str | None, token: str | None, environment: Mapping[str, str], sources: Sequence[str] = ()
) -> DaemonAddress:
    """Return the daemon at `url`; `environment` replaces arguments that are None or "".

    Its token is read from the files `sources`, see `authinfo`, else it is `token`.

    :raises SettingsError: when no daemon is named, or its token is unusable
    :raises UnsafeUrlError: for plain HTTP to anything but loopback, and for what is no URL
    """
    wanted = url or environment.get(URL_VARIABLE)
    if not wanted:
        raise SettingsError(f"No daemon is named: set qwen-companion-daemon-url, or {URL_VARIABLE}.")
    clean = clean_url(wanted)
    return DaemonAddress(clean, clean_token(find_token(sources, clean) or token or _token_of(environment)))


def _token_of(environment: Mapping[str, str]) -> str | None:
    if token := environment.get(TOKEN_VARIABLE):
        return token
    file = environment.get(TOKEN_FILE_VARIABLE)
    return _read_token_file(file) if file else None


def _read_token_file(path: str) -> str:
    """Return the token in the file `path`.

    :raises SettingsError: when others can read it too, or it cannot be read
    """
    try:
        descriptor = os.open(os.path.expanduser(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, encoding="utf-8") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise SettingsError(f"The token file {path} is not a regular file.")
            if found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise SettingsError(f"The token file {path} is open to other users: it must be yours, with mode 600.")
            return file.read(_LONGEST_FILE + 1).strip()
    except OSError as error:
        raise SettingsError(f"The token file {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise SettingsError(f"The token file {path} holds no token.") from None
