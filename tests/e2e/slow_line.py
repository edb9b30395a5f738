# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a program with what it reads and writes late by a number of seconds, in order, however much is on its way."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from contextlib import suppress
from io import FileIO
from typing import IO


def carry(source: IO[bytes], sink: IO[bytes], delay: float) -> None:
    """Carry the bytes of `source` to `sink`, each `delay` seconds later, until it ends."""
    late: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
    threading.Thread(target=write, args=(late, sink)).start()
    data = b"-"
    while data:
        data = source.read(65536)
        late.put((time.monotonic() + delay, data))


def write(late: queue.SimpleQueue[tuple[float, bytes]], sink: IO[bytes]) -> None:
    """Write to `sink` what is in `late`, each when it is due; close it at the empty one."""
    while True:
        due, data = late.get()
        time.sleep(max(0, due - time.monotonic()))
        if not data:
            sink.close()
            return
        # As with a real line: nobody is told that the other end has gone.
        with suppress(BrokenPipeError):
            sink.write(data)


def main() -> None:
    """Run the program in the arguments, after the delay."""
    delay, command = float(sys.argv[1]), sys.argv[2:]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        threading.Thread(target=carry, args=(FileIO(0), program.stdin, delay), daemon=True).start()
        carry(program.stdout, FileIO(1, "wb"), delay)


if __name__ == "__main__":
    main()
