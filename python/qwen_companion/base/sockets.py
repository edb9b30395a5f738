# SPDX-License-Identifier: GPL-3.0-or-later
"""The other end of a local TCP connection, from the kernel: its user and its socket.

Linux reports both, for one connection by netlink (`sock_diag`) and for all in /proc/net.  Netlink takes the same 20
microseconds for any number of connections, but a system may lack it.  macOS reports neither except to root.
"""

from __future__ import annotations

import functools
import os
import socket
import struct
import sys
from dataclasses import dataclass

KERNEL_TELLS = sys.platform == "linux"

SocketAddress = tuple[str, int]
"""Host and port."""

_MAPPED = "::ffff:"
"""Prefix of an IPv4 address on a socket that speaks both versions."""

# From linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_HEADER = struct.Struct("=IHHII")
_ANY_STATE = _ANY_COOKIE = 0xFFFFFFFF
_UID_AND_INODE = struct.Struct("=II")
_UID_AND_INODE_AT = _HEADER.size + 64


@dataclass(frozen=True)
class Connection:
    """Both ends of a TCP connection on this machine, as the server sees it."""

    client: SocketAddress
    server: SocketAddress


@dataclass(frozen=True)
class ClientSocket:
    """The client's end of a connection.  `inode` is 0 once its process has closed it; `uid` may then be 0 as well."""

    uid: int
    inode: int


def client_socket(connection: Connection) -> ClientSocket | None:
    """Return the socket at the client's end of `connection`; None without one or a report by the system."""
    if not KERNEL_TELLS:
        return None
    try:
        return _ask_netlink(connection) if _netlink_answers() else _search_tables(connection)
    except OSError:
        return None


def is_of_another_user(connection: Connection) -> bool:
    """Return whether the client's end of `connection` belongs to another user, and not to root.

    Refusing root, who can read the memory of this process, would protect nothing.  A connection already closed by its
    client counts as another user's: the system has no better data, and nobody waits for an answer.
    """
    found = client_socket(connection)
    return found is not None and (found.inode == 0 or found.uid not in (0, os.geteuid()))


def connection_of(accepted: socket.socket) -> Connection:
    """Return both ends of `accepted`, a connection that was accepted.

    :raises OSError: when it has ended
    """
    return Connection(accepted.getpeername()[:2], accepted.getsockname()[:2])


def _ask_netlink(connection: Connection) -> ClientSocket | None:
    (client, client_port), (server, server_port) = connection.client, connection.server
    # The ports and addresses of the queried end come first; an address has room for IPv6.
    ends = struct.pack("!HH16s16s", client_port, server_port, _packed(client), _packed(server))
    query = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, _ANY_STATE) + ends
    query += struct.pack("=III", 0, _ANY_COOKIE, _ANY_COOKIE)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as netlink:
        netlink.send(_HEADER.pack(_HEADER.size + len(query), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0) + query)
        answer = netlink.recv(4096)
    if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    return ClientSocket(*_UID_AND_INODE.unpack_from(answer, _UID_AND_INODE_AT))


@functools.cache
def _netlink_answers() -> bool:
    """Return whether netlink answers, tested on a connection of our own."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname()) as client,
        ):
            found = _ask_netlink(Connection(client.getsockname(), client.getpeername()))
            return found is not None and found.inode == os.fstat(client.fileno()).st_ino
    except (OSError, struct.error):
        return False


def _search_tables(connection: Connection) -> ClientSocket | None:
    for table, prefix in (("tcp", b""), ("tcp6", bytes(10) + b"\xff\xff")):
        ends = f" {_hexadecimal(prefix, connection.client)} {_hexadecimal(prefix, connection.server)} "
        with open(f"/proc/net/{table}", encoding="ascii") as file:
            for line in file:
                if ends in line:
                    fields = line.split()
                    return ClientSocket(int(fields[7]), int(fields[9]))
    return None


def _hexadecimal(prefix: bytes, address: SocketAddress) -> str:
    """Return `address` as in /proc/net: words in the byte order of the machine, the port in that of the network."""
    data = prefix + _packed(address[0])
    words = struct.unpack(f"={len(data) // 4}I", data)
    return "".join(f"{word:08X}" for word in words) + f":{address[1]:04X}"


def _packed(host: str) -> bytes:
    return socket.inet_aton(host.removeprefix(_MAPPED))
