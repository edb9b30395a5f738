# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules for the URL and the token of a daemon."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit, urlunsplit

from qwen_companion.daemon.errors import SettingsError, UnsafeUrlError

_LONGEST_TOKEN = 4096
_LOOKS_LIKE = "it should look like http://127.0.0.1:4170"


def clean_url(url: str) -> str:
    """Return `url` without parts that may be secret and without a slash at the end, to be shown.

    User, password, query and fragment are dropped: the link to the Web Shell has the token in it.

    :raises UnsafeUrlError: for plain HTTP to anything but loopback, and for what is no URL
    """
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname or "", parts.port
    except ValueError:
        # Its text would quote the URL.
        raise UnsafeUrlError(f"The URL of the daemon cannot be read; {_LOOKS_LIKE}.") from None
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise UnsafeUrlError(f"The URL of the daemon is not one of http or https; {_LOOKS_LIKE}.")
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
    """Return `token`, None for none.

    :raises SettingsError: when no header can carry it; its text does not quote it
    """
    if not token:
        return None
    if len(token) > _LONGEST_TOKEN or not all("!" <= character <= "~" for character in token):
        raise SettingsError("The token of the daemon has characters that no header can carry, or is too long.")
    return token
