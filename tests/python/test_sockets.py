# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel's tables of real connections, in both ways they can be read."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from qwen_companion.base import sockets
from qwen_companion.base.sockets import ClientSocket, Connection, client_socket, is_of_another_user

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whose a connection is")


@pytest.fixture(params=["netlink", "tables"])
def asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_netlink_answers", lambda: request.param == "netlink")


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::ffff:127.0.0.1")])
def test_the_socket_at_the_other_end(family: int, host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(family) as client:
        client.connect((host, listener.getsockname()[1]))
        accepted, address = listener.accept()
        with accepted:
            connection = Connection(address, accepted.getsockname())
            assert client_socket(connection) == ClientSocket(os.getuid(), os.fstat(client.fileno()).st_ino)
            assert not is_of_another_user(connection)
            assert not is_of_another_user(sockets.connection_of(accepted))
            client.close()
            found = client_socket(connection)
            assert found is not None
            assert found.inode == 0
            assert is_of_another_user(connection)


@pytest.mark.usefixtures("asked")
def test_nothing_is_known_of_a_connection_that_is_not_on_this_machine() -> None:
    for client in (("192.0.2.1", 4711), ("::1", 4711)):
        connection = Connection(client, ("127.0.0.1", 1))
        assert client_socket(connection) is None
        assert not is_of_another_user(connection)


def test_the_tables_are_used_where_netlink_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    uncached = sockets._netlink_answers.__wrapped__  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(sockets, "_netlink_answers", uncached)
    # No kernel has a protocol of that number.
    monkeypatch.setattr(sockets, "_NETLINK_SOCK_DIAG", 31)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        connection = Connection(client.getsockname(), client.getpeername())
        assert client_socket(connection) == ClientSocket(os.getuid(), os.fstat(client.fileno()).st_ino)
