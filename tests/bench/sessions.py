# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the cost of a new session with that at a bare MCP server: `python tests/bench/sessions.py [COUNT]`.

The bare one is the library's own, on the same HTTP server.  A session is what a CLI begins with: `initialize`, its
notification, and a stream.  Ours also looks for the process of the CLI, makes its context of ten open files, sends it,
and tells Emacs.  Both servers get twenty sessions in turns, so that a change of the machine's load meets both; all stay
open.  Prints the processor time of one session in ms, and the ratio; asserts nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
sys.path[:0] = [str(CHECKOUT / name) for name in ("python", "tests", "tests/python")]

import psutil  # noqa: E402 - the path above
from sexpdata import dumps  # noqa: E402

from support import Backend, Cli, Home, Stream  # noqa: E402

BLOCK = 20

BARE = """
import anyio, socket, uvicorn
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

async def main():
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    manager = StreamableHTTPSessionManager(Server("bare"), json_response=True)
    async with manager.run():
        print(listener.getsockname()[1], flush=True)
        config = uvicorn.Config(
            manager.handle_request, interface="asgi3", lifespan="off", log_level="error", http="h11", ws="none"
        )
        await uvicorn.Server(config).serve([listener])

anyio.run(main)
"""


def cost(process: psutil.Process, connect: Callable[[], Stream], streams: ExitStack) -> float:
    """Return how many ms of processor time `process` takes for one of `BLOCK` sessions."""
    before = sum(process.cpu_times()[:2])
    for _ in range(BLOCK):
        streams.enter_context(connect())
    # What is done for them in the background.
    time.sleep(0.5)
    return (sum(process.cpu_times()[:2]) - before) * 1000 / BLOCK


def main() -> None:
    """Measure both servers in turns and print a table."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as directory, ExitStack() as servers, ExitStack() as streams:
        bare = servers.enter_context(subprocess.Popen([sys.executable, "-c", BARE], stdout=subprocess.PIPE))
        servers.callback(bare.kill)
        assert bare.stdout is not None
        port = int(bare.stdout.readline())
        home = Home(Path(directory))
        os.chdir(home.work)
        files = [home.work / f"{number}.txt" for number in range(10)]
        for file in files:
            file.write_text("text\n")
        backend = servers.enter_context(Backend(home, fresh=True))
        backend.greet()
        # Only the roots count, as for most users.
        backend.emacs.call("settings", "(:reviews t)")
        opened = [{"path": str(file), "timestamp": number} for number, file in enumerate(files, 1)]
        backend.emacs.call("context", dumps({"files": opened, "active": str(files[0]), "line": 1, "character": 1}))
        backend.emacs.wait_for("serving")

        def connect_bare() -> Stream:
            cli = Cli(port, "")
            cli.initialize()
            return cli.stream()

        def connect_ours() -> Stream:
            stream = backend.cli().stream()
            stream.event()
            return stream

        connect_bare().close()
        connect_ours().close()
        print(f"{'sessions open':>13} {'bare, ms':>9} {'ours, ms':>9}  ours/bare")
        for number in range(BLOCK, count + 1, BLOCK):
            theirs = cost(psutil.Process(bare.pid), connect_bare, streams)
            ours = cost(psutil.Process(backend.process.pid), connect_ours, streams)
            print(f"{number:13} {theirs:9.2f} {ours:9.2f}  {ours / theirs if theirs else 0:.2f}", flush=True)


if __name__ == "__main__":
    main()
