# SPDX-License-Identifier: GPL-3.0-or-later
"""What may run without a question at a place is what may here: by the real relay there."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from anyio import to_thread

from qwen_companion.doors import layer
from qwen_companion.doors.conditions import is_inside, may_pass
from qwen_companion.doors.disk import Disk
from qwen_companion.remote.far_disk import FarDisk
from qwen_companion.remote.link import Link, LinkError
from qwen_companion.remote.place import Place
from relays import NODE, linked

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(not NODE.exists(), reason="there is no Node.js")]


class Counted:
    """The place behind `link`, and how many round trips it took."""

    def __init__(self, link: Link, home: Path) -> None:
        self.trips: list[str] = []
        self.layer = f"{home}/no-layer.json"
        self._link = link
        self.is_gone = False

    def link(self) -> Link:
        if self.is_gone:
            raise LinkError("it has gone")
        return cast(Link, SimpleNamespace(request=self._request))

    async def _request(self, name: str, **values: Any) -> dict[str, Any]:
        self.trips.append(name)
        return await self._link.request(name, **values)


def make_project(home: Path) -> Path:
    project = home / "project"
    names = ("a.txt", "b.txt", ".hidden", "src/x.py", "src/deep/y.py", "web/package.json", "bin/program", "closed/x")
    for name in (*names, *(f"many/{number}" for number in range(300))):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("text\n")
    (home / "outside").mkdir()
    (project / "out").symlink_to(home / "outside")
    (project / "dangling").symlink_to("src/none")
    (project / "hard").hardlink_to(project / "src/x.py")
    return project


async def test_edits_pass_as_here(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "_SYSTEM_DIRECTORY", str(home / "none"))
    project = make_project(home)
    settings = home / ".qwen/settings.json"
    settings.parent.mkdir()
    environ = {"HOME": str(home), "PATH": f"{project}/bin:/usr/bin:/bin", layer.SYSTEM_VARIABLE: f"{home}/none.json"}
    environ |= {"QWEN_HOME": str(settings.parent)}
    async with linked(home) as (link, _, _):
        place = Counted(link, home)

        def far() -> FarDisk:
            place.trips.clear()
            return FarDisk(environ, cast(Place, place))

        for rule in ('{"permissions": {"ask": ["Edit"]}}', "{", " " * 70_000 + "{}", "{}"):
            settings.write_text(rule)
            passed = await to_thread.run_sync(may_pass, "edit", f"{project}/a.txt", str(project), far())
            assert passed is (rule == "{}"), rule[:9]
            # As far as the relay tells so much.
            assert passed or len(rule) > 60_000 or not may_pass("edit", f"{project}/a.txt", str(project), Disk(environ))
        assert await to_thread.run_sync(is_inside, f"{project}/a.txt", str(project), far())
        place.is_gone = True
        # It is not known: the user is asked.
        assert not await to_thread.run_sync(may_pass, "edit", f"{project}/a.txt", str(project), far())


@pytest.mark.skipif(sys.platform != "linux", reason="the relay knows of processes there by /proc")
async def test_variables_too_long_for_the_pipe_are_unknown(home: Path) -> None:
    call = "s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); s.send(b'\\n'); s.recv(1)"
    async with linked(home, answer_bytes=1) as (link, _, server):
        port = (await link.request("serve", port=0))["port"]
        for length, is_known in ((100, True), (50_000, False)):
            environ = {"HOME": "/h", "PATH": f"/{'x' * length}", "SECRET": "swordfish"}
            await anyio.run_process([sys.executable, "-c", f"import socket, sys; {call}", str(port)], env=environ)
            (*_, who) = cast("list[dict[str, Any]]", server.callers)
            del environ["SECRET"]
            assert who["environ"] == (environ if is_known else {})
        assert await link.request("look", paths=[]) == {"files": []}


@pytest.mark.parametrize(
    "environ",
    [{}, {"HOME": "/h"}, {"HOME": "h", "PATH": "/bin"}, {"HOME": "/h", "PATH": "/bin", "QWEN_HOME": "~/.qwen"}],
)
def test_a_cli_without_known_variables_asks(environ: dict[str, str]) -> None:
    with pytest.raises(OSError, match="does not say"):
        FarDisk(environ, cast(Place, SimpleNamespace(layer="/etc/x")))


@pytest.mark.parametrize(
    "value",
    [
        *({}, {"error": "EACCES"}, {"kind": "pipe"}, {"real": "x"}, {"real": 3}, {"links": "x"}, {"names": 3}),
        *({"names": ["a"]}, {"names": ["/../a"]}, {"names": ["/a\ufffd"]}),
    ],
)
async def test_what_a_relay_may_say_instead(value: dict[str, Any]) -> None:
    """Whatever it is, nothing is taken from it."""
    right = {"kind": "directory", "real": "/w", "links": 2, "enter": True, "names": ["/a"]}
    told: list[dict[str, Any]] = [right]

    async def request(_name: str, **_values: Any) -> dict[str, Any]:
        return {"files": told}

    place = SimpleNamespace(layer="/etc/x", link=lambda: SimpleNamespace(request=request))

    def names() -> list[str]:
        return FarDisk({"HOME": "/h", "PATH": "/bin"}, cast(Place, place)).names("/w")

    assert await to_thread.run_sync(names) == ["a"]
    told[:] = [right | value if value else {}]
    with pytest.raises(OSError, match="does not say"):
        await to_thread.run_sync(names)
