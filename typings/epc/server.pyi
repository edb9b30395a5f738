# SPDX-License-Identifier: GPL-3.0-or-later
# What the backend uses of python-epc, which ships no types.

from socketserver import TCPServer
from typing import Any

from epc.handler import EPCHandler

class EPCServer(TCPServer):
    def __init__(
        self, server_address: Any, RequestHandlerClass: type[EPCHandler] = ..., bind_and_activate: bool = True
    ) -> None: ...
