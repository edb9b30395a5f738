# SPDX-License-Identifier: GPL-3.0-or-later
"""Carries connections between a port and a Unix socket, so that they get out of a network namespace."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress


async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Carry all of `source` to `sink`."""
    with suppress(ConnectionError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
        sink.write_eof()


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to `address`, a port of this network or the path of a socket."""
    if address.isdigit():
        return await asyncio.open_connection("127.0.0.1", int(address))
    return await asyncio.open_unix_connection(address)


async def main(listen: str, target: str) -> None:
    """Carry each connection to `listen` to `target`; with `--wait`, return once something listens at `target`."""
    if listen == "--wait":
        while True:
            with suppress(OSError):
                await connect(target)
                return
            await asyncio.sleep(0.02)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other_writer = await connect(target)
        await asyncio.gather(carry(reader, other_writer), carry(other_reader, writer))
        for each in (writer, other_writer):
            each.close()

    start = asyncio.start_server(serve, "127.0.0.1", int(listen)) if listen.isdigit() else None
    async with await (start or asyncio.start_unix_server(serve, listen)) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
