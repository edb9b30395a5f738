# SPDX-License-Identifier: GPL-3.0-or-later
"""Admit requests to the MCP server (spec D5): each is checked before any other processing."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from qwen_companion.ide.replies import refuse

HOSTS = ("127.0.0.1", "localhost", "host.docker.internal")
"""Names that CLIs connect to: the second in old versions, the third in a container."""


@dataclass(frozen=True)
class Keys:
    """The `port` and `token` that admit a request; on some paths one of `secrets` replaces the token."""

    port: int
    token: str
    secrets: Mapping[str, str]

    def hosts(self) -> frozenset[bytes]:
        """Return the values of the header Host that are valid for the server."""
        return frozenset(f"{host}:{self.port}".encode("ascii") for host in HOSTS)


class Guard:
    """Pass on requests that name one of `HOSTS`, do not come from a web page and have the token."""

    def __init__(self, app: ASGIApp, keys: Keys, keys_of: Callable[[int], Keys | None] = lambda _port: None) -> None:
        """Require `keys`, unless `keys_of` returns others for the port of the connection's client."""
        self._app = app
        self._keys = keys
        self._keys_of = keys_of
        self._hosts = keys.hosts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        hosts = [value for name, value in headers if name == b"host"]
        other = self._keys_of(scope["client"][1]) if scope.get("client") else None
        if len(hosts) != 1 or hosts[0].lower() not in (self._hosts if other is None else other.hosts()):
            # A web page whose name resolves to 127.0.0.1 sends that name here.
            await refuse(send, 421, "This server does not answer to that host name.")
        elif any(name == b"origin" for name, _ in headers):
            # CLIs never send it; browsers do for calls by pages of another origin.
            await refuse(send, 403, "Requests from web pages are refused.")
        elif not _authorised(
            other or self._keys, scope["path"], [value for name, value in headers if name == b"authorization"]
        ):
            await refuse(
                send,
                401,
                "The token is missing or wrong; it is in the discovery file of this server.",
                headers=[(b"www-authenticate", b"Bearer")],
            )
        else:
            await self._app(scope, receive, send)


def _authorised(keys: Keys, path: str, values: list[bytes]) -> bool:
    if len(values) != 1:
        return False
    scheme, _, token = values[0].partition(b" ")
    wanted = keys.secrets.get(path, keys.token).encode("ascii")
    return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), wanted)
