# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the URL and token of a daemon, in the user's settings or else the environment, and check them."""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

from qwen_companion.daemon.authinfo import find_token
from qwen_companion.daemon.errors import SettingsError, UnsafeUrlError

URL_VARIABLE = "QWEN_IDE_DAEMON_URL"
"""The environment variable with the daemon's URL, used when no setting gives one (spec A2)."""

TOKEN_VARIABLE = "QWEN_SERVER_TOKEN"  # noqa: S105 - a name
"""The environment variable with the token; `qwen serve` reads it too."""

TOKEN_FILE_VARIABLE = "QWEN_SERVER_TOKEN_FILE"  # noqa: S105 - a name
"""The environment variable with the name of a token file, which only this user may read."""

_LONGEST_FILE = 4096
_LONGEST_TOKEN = 4096
_LOOKS_LIKE = "it should look like http://127.0.0.1:4170"


def clean_url(url: str) -> str:
    """Return `url` for display: without secret parts and without a slash at the end.

    User, password, query and fragment are dropped: the link to the Web Shell has the token in it.

    :raises UnsafeUrlError: for plain HTTP to anything but loopback, and for an invalid URL
    """
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname or "", parts.port
    except ValueError:
        # The text of this ValueError would quote the URL.
        raise UnsafeUrlError(f"The URL of the daemon cannot be read; {_LOOKS_LIKE}.") from None
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise UnsafeUrlError(f"The URL of the daemon is neither http nor https; {_LOOKS_LIKE}.")
    if parts.scheme == "http" and not _is_loopback(host):
        raise UnsafeUrlError(
            f"Plain HTTP to {host} would show the token and the conversation to the network: use https, or a tunnel "
            "to this machine and its URL http://127.0.0.1:PORT."
        )
    name = f"[{host}]" if ":" in host else host
    return urlunsplit((parts.scheme, name if port is None else f"{name}:{port}", parts.path.rstrip("/"), "", ""))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def clean_token(token: str | None) -> str | None:
    """Return `token` if a header can carry it; None if it is empty.

    :raises SettingsError: otherwise; the message does not quote the token
    """
    if not token:
        return None
    if len(token) > _LONGEST_TOKEN or not all("!" <= character <= "~" for character in token):
        raise SettingsError("The token of the daemon has characters that no header can carry, or is too long.")
    return token


@dataclass(frozen=True)
class DaemonAddress:
    """A daemon's URL, without secrets and without a slash at the end, and its token or None."""

    url: str
    token: str | None = field(default=None, repr=False)


def find_address(
    url: str | None, token: str | None, environment: Mapping[str, str], sources: Sequence[str] = ()
) -> DaemonAddress:
    """Return the daemon at `url`; `environment` replaces arguments that are None or "".

    Look up its token in the files `sources`, see `authinfo`; use `token` where they have none.

    :raises SettingsError: when no daemon is named, or its token is unusable
    :raises UnsafeUrlError: for plain HTTP to anything but loopback, and for an invalid URL
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

    :raises SettingsError: when it is unreadable, or readable by others too
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
