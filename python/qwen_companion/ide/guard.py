# SPDX-License-Identifier: GPL-3.0-or-later
"""Admit requests to the MCP server (spec D5): each is checked before anything else looks at it."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import TYPE_CHECKING

from qwen_companion.ide.replies import refuse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

HOSTS = ("127.0.0.1", "localhost", "host.docker.internal")
"""Names that CLIs connect to: the second one by old versions, the third one in a container."""


class Guard:
    """Pass on requests that name one of `HOSTS`, do not come from a web page and have the token.

    Some paths have a secret of their own instead of the token.
    """

    def __init__(self, app: ASGIApp, token: str, port: int, secrets: Mapping[str, str] | None = None) -> None:
        """`secrets` maps paths to their own secrets."""
        self._app = app
        self._token = token.encode("ascii")
        self._secrets = {path: secret.encode("ascii") for path, secret in (secrets or {}).items()}
        self._hosts = frozenset(f"{host}:{port}".encode("ascii") for host in HOSTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            # A web page that has its own name resolve to 127.0.0.1 shows that name here.
            await refuse(send, 421, "This server does not answer to that host name.")
        elif any(name == b"origin" for name, _ in headers):
            # No CLI sends one; a browser does whenever a page of another origin calls.
            await refuse(send, 403, "Requests from web pages are refused.")
        elif not self._authorised(scope["path"], [value for name, value in headers if name == b"authorization"]):
            await refuse(
                send,
                401,
                "The token is missing or wrong; it is in the discovery file of this server.",
                headers=[(b"www-authenticate", b"Bearer")],
            )
        else:
            await self._app(scope, receive, send)

    def _authorised(self, path: str, values: list[bytes]) -> bool:
        if len(values) != 1:
            return False
        scheme, _, token = values[0].partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._secrets.get(path, self._token))
