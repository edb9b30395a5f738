# SPDX-License-Identifier: GPL-3.0-or-later
# What the backend uses of python-epc, which ships no types.

from collections.abc import Callable
from socket import socket
from socketserver import StreamRequestHandler
from typing import Any

class CallerUnknown(Exception): ...

def encode_message(name: str, *args: object) -> bytes: ...

class EPCCallManager:
    def handle_return(self, uid: object, reply: object) -> None: ...
    def handle_return_error(self, uid: object, reply: object) -> None: ...
    def handle_epc_error(self, uid: object, reply: object) -> None: ...

class EPCHandler(StreamRequestHandler):
    request: socket
    server: Any
    callmanager: EPCCallManager
    def call(
        self,
        name: str,
        args: list[Any],
        callback: Callable[[Any], None] | None = None,
        errback: Callable[[Exception], None] | None = None,
    ) -> None: ...
    def _send(self, *args: Any) -> None: ...
