# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the cost of a new session with that at a bare MCP server: `python bench/sessions.py [COUNT]`.

The bare one is the library's own, on the same HTTP server.  A session is what a CLI begins with: `initialize`, its
notification and `tools/list` on one connection, and a stream on another one.  Ours also looks for the process of the
CLI, makes its context of ten open files, sends it, and tells Emacs.  Both servers get twenty sessions in turns (COUNT,
if that is less), each twenty of another process, so that a change of the machine's load meets both; all stay open.
Prints the processor time of one session in ms, the ratio, and with forty or more how it grows; asserts nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
sys.path[:0] = [str(CHECKOUT / name) for name in ("python", "tests/helpers")]

import psutil  # noqa: E402 - the path above
from sexpdata import dumps  # noqa: E402

from support import Backend, Home  # noqa: E402
from table import compare, exponent, row  # noqa: E402

BLOCK = 20
"""How many sessions each server gets in a turn."""

BARE = """
import anyio, mcp_types, socket, uvicorn
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

async def list_tools(context, params):
    return mcp_types.ListToolsResult(tools=[])

async def main():
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    manager = StreamableHTTPSessionManager(Server("bare", on_list_tools=list_tools), json_response=True)
    async with manager.run():
        print(listener.getsockname()[1], flush=True)
        config = uvicorn.Config(
            manager.handle_request, interface="asgi3", lifespan="off", log_level="error", http="httptools", ws="none"
        )
        await uvicorn.Server(config).serve([listener])

anyio.run(main)
"""


CLIENT = """
import http.client, json, sys
port, token, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
headers = {
    "Host": f"127.0.0.1:{port}", "Authorization": f"Bearer {token}", "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
}
info = {"name": "bench", "version": "1"}
params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
first = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
second = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"})
third = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
streams = []
for _ in range(count):
    calls, stream = (http.client.HTTPConnection("127.0.0.1", port, timeout=60) for _ in range(2))
    calls.request("POST", "/mcp", first, headers)
    answer = calls.getresponse()
    answer.read()
    session = {**headers, "mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
    calls.request("POST", "/mcp", second, session)
    calls.getresponse().read()
    stream.request("GET", "/mcp", None, {**session, "Accept": "text/event-stream"})
    answer = stream.getresponse()
    # Ours sends the context; the library's own says nothing.
    while token and b"openFiles" not in answer.readline():
        pass
    calls.request("POST", "/mcp", third, session)
    assert b'"tools"' in calls.getresponse().read()
    streams.append((calls, stream, answer))
print(flush=True)
sys.stdin.read()
"""


def connect(port: int, token: str, count: int, clients: ExitStack) -> None:
    """Start a process with `count` sessions, which ends with `clients`."""
    command = [sys.executable, "-c", CLIENT, str(port), token, str(count)]
    client = clients.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    clients.callback(client.kill)
    assert client.stdout is not None
    if not client.stdout.readline():
        raise SystemExit("the sessions could not be opened")


def processor_ms(pid: int) -> float:
    """Return the processor time of the process `pid` in ms, exactly where the system has a clock of it."""
    if sys.platform == "linux":
        # CPUCLOCK_SCHED of a process, see clock_getcpuclockid(3).
        return time.clock_gettime(~pid << 3 | 2) * 1000
    return sum(psutil.Process(pid).cpu_times()[:2]) * 1000


def cost(pid: int, port: int, token: str, count: int, clients: ExitStack) -> float:
    """Return how many ms of processor time the server `pid` takes for one of `count` sessions."""
    before = processor_ms(pid)
    connect(port, token, count, clients)
    # What is done for them in the background.
    time.sleep(0.5)
    return (processor_ms(pid) - before) / count


def main() -> None:
    """Measure both servers in turns and print a table."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    if count < 1:
        raise SystemExit("COUNT is 1 at least")
    with tempfile.TemporaryDirectory() as directory, ExitStack() as servers, ExitStack() as clients:
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

        servers_at = ((bare.pid, port, ""), (backend.process.pid, backend.port, backend.token))
        for _, at, token in servers_at:
            connect(at, token, 1, clients)
        block = min(count, BLOCK)
        costs: list[tuple[float, float]] = []
        print(f"{'sessions open':>13} {'bare, ms':>9} {'ours, ms':>9}  ours/bare")
        for number in range(block, count + 1, block):
            theirs, ours = (cost(*server, block, clients) for server in servers_at)
            print(f"{number:13} {theirs:9.2f} {ours:9.2f}  {ours / theirs:.2f}", flush=True)
            costs.append((ours, theirs))
        compare("a session of a CLI, processor, beside a bare MCP server", costs, "-")
        if len(costs) > 1:
            grows = exponent([(block * number, ours) for number, (ours, _) in enumerate(costs, 1)])
            row("speed", "the same: exponent of the growth with the sessions open", f"{grows:.2f}", "0")


if __name__ == "__main__":
    main()
