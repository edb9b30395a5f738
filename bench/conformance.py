# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the official conformance scenarios of MCP that apply against the server of a backend: `make conformance`.

    .build/venv/bin/python bench/conformance.py

The program, npm's `@modelcontextprotocol/conformance`, knows no token, so it talks to a proxy that adds it.  The other
scenarios need tools, prompts and resources of a server made for them.  Prints a row for each scenario.
"""

from __future__ import annotations

import re
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(CHECKOUT / name) for name in ("python", "tests/helpers", "tests/e2e")]

from loopback import Table, new_home  # noqa: E402 - the path above
from support import Backend  # noqa: E402

PROGRAM = CHECKOUT / ".build/conformance/node_modules/.bin/conformance"

SCENARIOS = {
    "server-initialize": 0,
    "ping": 0,
    "tools-list": 0,
    "server-sse-multiple-streams": 0,
    # It wants a page of this machine to be served; here no page is.
    "dns-rebinding-protection": 1,
}
"""Those that need no tool, prompt or resource made for them, and how many of their checks do not apply."""


@contextmanager
def proxy(port: int, token: str) -> Generator[int]:
    """Listen on this machine for clients of the server at `port` and add `token` to their requests; yield the port."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            head: list[bytes] = []
            while (line := self.rfile.readline()) not in (b"\r\n", b""):
                # Each connection has one request.
                if not line.lower().startswith((b"connection:", b"authorization:")):
                    head.append(line)
            head = [line.replace(b"%d\r\n" % own, b"%d\r\n" % port) for line in head]
            head += [f"Authorization: Bearer {token}\r\n".encode(), b"Connection: close\r\n", b"\r\n"]
            with socket.create_connection(("127.0.0.1", port)) as server, suppress(OSError):
                server.sendall(b"".join(head))
                threading.Thread(target=self.pass_on, args=(server,), daemon=True).start()
                while data := server.recv(65536):
                    self.connection.sendall(data)

        def pass_on(self, server: socket.socket) -> None:
            """Send the rest of the request to `server`."""
            with suppress(OSError, ValueError):
                while data := self.rfile.read1(65536):
                    server.sendall(data)
                # The client does not listen any more.
                server.shutdown(socket.SHUT_RDWR)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as listener:
        listener.daemon_threads = True
        own = int(listener.server_address[1])
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        try:
            yield own
        finally:
            listener.shutdown()


def conformance(table: Table) -> None:
    """Add a row for each scenario; one that says so where the program is not installed."""
    if not PROGRAM.exists():
        table.add("3", "official conformance scenarios of MCP (make conformance)", "not installed", "all")
        return
    with new_home() as home, Backend(home, fresh=True) as backend:
        backend.greet()
        backend.emacs.wait_for("serving")
        with proxy(backend.port, backend.token) as port:
            for scenario, inapplicable in SCENARIOS.items():
                command = [str(PROGRAM), "server", "--url", f"http://127.0.0.1:{port}/mcp", "--scenario", scenario]
                done = subprocess.run(command, cwd=home.work, capture_output=True, text=True, check=False, timeout=120)
                said = done.stdout + done.stderr
                counted = re.search(r"Passed: (\d+)/(\d+), (\d+) failed, (\d+) warnings", said)
                what = f"official MCP conformance, {scenario}: checks that apply and pass"
                if counted is None:
                    table.add("3", what, f"status {done.returncode}", "all")
                else:
                    warned = f", {counted[4]} warned" if counted[4] != "0" else ""
                    table.add("3", what, f"{counted[1]} of {int(counted[2]) - inapplicable}{warned}", "all")
                if done.returncode and "--verbose" in sys.argv:
                    print(said)


if __name__ == "__main__":
    conformance(Table())
