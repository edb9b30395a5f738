# SPDX-License-Identifier: GPL-3.0-or-later
"""The listening sockets, and how the port of the MCP server stays the user's while nobody listens on it.

When a backend is killed, its port is free until the next one has bound it.  A program of another user that takes it in
between is handed the token by every CLI that reconnects, and answers in the place of Emacs.

On Linux the port is therefore never free while Emacs lives, and no process is needed to hold it.  The first backend
binds a second socket to the port, one that never listens, and sends its descriptor to a Unix socket in a private
directory: the *reserve*, on which Emacs listens but never accepts.  The message stays in the queue of that socket, and
the descriptor in it open, until Emacs closes the socket or ends.  SO_REUSEPORT then lets the next backend bind the same
port, and keeps out other users; without SO_REUSEADDR on the reserved socket, nothing else is let in either.

A connection made between two backends is refused, not queued.  Emacs can neither keep a listening socket for a child
nor pass one to it.  A duplicate by pidfd_getfd needs the right to debug Emacs, which many systems deny.  Only Linux has
a reserve: other systems may deliver connections to such a socket.  There, a lost port costs the token and the sessions.
"""

from __future__ import annotations

import array
import socket
import sys

LOOPBACK = "127.0.0.1"

BACKLOG = 128
"""Connections the system keeps until they are accepted."""

RESERVE_TIMEOUT_S = 2.0


def listen(port: int = 0, *, shared: bool = False) -> socket.socket:
    """Return a socket that listens on `port`, 0 for any; `shared` with the reserved socket.

    :raises OSError: if the port is taken
    """
    listener = _bound(port, shared=shared, reuse=True)
    listener.listen(BACKLOG)
    return listener


def listen_reserved(port: int, reserve: str | None) -> socket.socket:
    """Return a socket that listens on `port`, which stays with the user when this process ends.

    With `port` 0, reserve a port at the Unix socket `reserve`.  If that is None or fails, use any port, which is not
    reserved.

    :raises OSError: if `port` belongs to another program
    """
    if sys.platform != "linux" or reserve is None:
        return listen(port)
    if port != 0:
        return listen(port, shared=True)
    with _bound(0, shared=True, reuse=False) as reserved:
        try:
            _deposit(reserved, reserve)
        except OSError:
            return listen()
        return listen(reserved.getsockname()[1], shared=True)


def _bound(port: int, *, shared: bool, reuse: bool) -> socket.socket:
    # asyncio turns Nagle's algorithm off only if the socket says that it is TCP: 40 ms on each answer.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if reuse:
            # After a restart, connections of the previous process may remain on the port.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((LOOPBACK, port))
    except OSError:
        bound.close()
        raise
    return bound


def _deposit(reserved: socket.socket, path: str) -> None:
    """Leave a descriptor of `reserved` in the queue of the Unix socket at `path`.

    :raises OSError: if nobody listens there
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(RESERVE_TIMEOUT_S)
        connection.connect(path)
        descriptors = array.array("i", [reserved.fileno()])
        connection.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
