# SPDX-License-Identifier: GPL-3.0-or-later
"""The real `qwen serve`, and a network in front of it that fails when it is told to."""

from __future__ import annotations

import asyncio
import re
import secrets
import socket
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType

import psutil

from sandbox import Sandbox, has_ended
from terminal import PATIENCE

_LISTENING = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")


class Serve:
    """A daemon of the project of `sandbox`; started again, it has the same port and the same token."""

    def __init__(self, sandbox: Sandbox, environment: Mapping[str, str], program: str = "qwen") -> None:
        self.token = secrets.token_hex(16)
        self._sandbox = sandbox
        self._environment = environment
        self._program = program
        self._port = 0
        self._process: subprocess.Popen[str] | None = None
        self._output: list[str] = []
        self._reader: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    @property
    def log(self) -> str:
        """Return the daemon's output and its log."""
        return "".join(self._output) + (self._sandbox.home / ".qwen/debug/daemon/daemon.log").read_text()

    @property
    def pid(self) -> int:
        """Of the daemon, which must run."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def write_authinfo(self, token: str | None = None, port: int | None = None) -> None:
        """Store `token`, or else the right one, as the user's token for `port`, or else for the daemon's own port."""
        file = self._sandbox.home / ".authinfo"
        file.write_text(f"machine 127.0.0.1 port {port or self._port} login qwen password {token or self.token}\n")
        file.chmod(0o600)

    def start(self, *arguments: str) -> None:
        """Start it with `arguments`; returns when it listens."""
        # Else an agent that takes longer than 10 s to start, as on a busy machine, is killed each time.
        patience = ("--initialize-timeout-ms", f"{1000 * PATIENCE:.0f}")
        command = [
            self._program,
            "serve",
            "--port",
            str(self._port),
            "--require-auth",
            "--no-web",
            *patience,
            *arguments,
        ]
        self._process = subprocess.Popen(
            command,
            cwd=self._sandbox.project,
            env={**self._environment, "QWEN_SERVER_TOKEN": self.token},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._output.append(line)
            if found := _LISTENING.search(line):
                self._port = int(found[1])
                break
        else:
            raise AssertionError(f"qwen serve did not start:\n{''.join(self._output)}")
        self._reader = threading.Thread(target=self._output.extend, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def kill(self) -> None:
        """End it as a crash does; returns when nothing of it is left."""
        if self._process is not None:
            agents = psutil.Process(self.pid).children(recursive=True)
            self._process.kill()
            self._wait()
            for agent in agents:
                assert has_ended(agent, PATIENCE), "an agent outlives its daemon"

    def kill_agents(self) -> None:
        """Kill the daemon's agents, as a crash would; the daemon goes on."""
        for agent in psutil.Process(self.pid).children(recursive=True):
            agent.kill()

    def close(self) -> None:
        """Tell it to end, if it runs; returns when it has."""
        if self._process is not None:
            self._process.terminate()
            self._wait()

    def _wait(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.wait(PATIENCE)
        if self._reader is not None:
            self._reader.join()
        self._process.stdout.close()
        self._process = self._reader = None


class Network:
    """Connections to a port of 127.0.0.1 through one of its own; it can cut them, and stop carrying."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._marker = b""
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._broken = False
        self.cuts = 0
        """How often a connection was cut."""

    async def __aenter__(self) -> Network:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        await self.break_down()
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        assert self._server is not None
        return self._server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut_at(self, marker: bytes) -> None:
        """Cut the next connection on which the daemon sends `marker`, in the middle of that."""
        self._marker = marker

    async def break_down(self) -> None:
        """Cut all connections and let nobody through."""
        self._broken = True
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def mend(self) -> None:
        """Let everybody through again."""
        self._broken = False

    def stall(self) -> None:
        """Carry nothing more to the clients: they seem to have stopped reading."""
        self._flowing.clear()

    def flow(self) -> None:
        """Carry again."""
        self._flowing.set()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._broken:
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        upstream = socket.socket()
        # Small, so that what does not flow stands still at the daemon and not in here.
        upstream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        upstream.setblocking(False)
        other: asyncio.StreamWriter | None = None
        try:
            await asyncio.get_running_loop().sock_connect(upstream, ("127.0.0.1", self._port))
            source, other = await asyncio.open_connection(sock=upstream, limit=4096)
            up = asyncio.create_task(self._carry_up(reader, other))
            down = asyncio.create_task(self._carry_down(source, writer))
            try:
                await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
            finally:
                up.cancel()
                down.cancel()
                await asyncio.gather(up, down, return_exceptions=True)
        except OSError:
            # Nobody listens there: the client sees the end of its connection.
            pass
        except asyncio.CancelledError:
            # The end of the test.
            pass
        finally:
            writer.close()
            if other is None:
                upstream.close()
            else:
                other.transport.abort()
            self._connections.discard(task)

    async def _carry_up(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        # The daemon answers to its own port only, as it is in the header Host.
        here, there = self.url.removeprefix("http://").encode(), f"127.0.0.1:{self._port}".encode()
        with suppress(ConnectionError):
            while data := await source.read(65536):
                sink.write(data.replace(here, there))
                await sink.drain()

    async def _carry_down(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        before = b""
        with suppress(ConnectionError):
            while data := await source.read(65536):
                await self._flowing.wait()
                end = (before + data).find(self._marker) if self._marker else -1
                if end >= 0:
                    # In the middle of an event: half of the marker has been sent, or less.
                    sink.write(data[: max(0, end - len(before) + len(self._marker) // 2)])
                    self._marker = b""
                    self.cuts += 1
                    return
                before = data[-len(self._marker) :] if self._marker else b""
                sink.write(data)
                await sink.drain()
