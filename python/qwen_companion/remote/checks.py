# SPDX-License-Identifier: GPL-3.0-or-later
"""The doctor's checks of a place."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from qwen_companion.base.errors import CompanionError
from qwen_companion.doctor import Check, served
from qwen_companion.remote.commands import ADD_PATH
from qwen_companion.remote.link import Answer
from qwen_companion.remote.place import Place

CLOCK_S = 5.0
"""Seconds by which the clock there may be wrong."""

_AGAIN = "M-x qwen-companion-remote-retry"
_REFUSED = ("401", "421")


class _Found(Answer):
    """What the relay has found; `path` begins with ":" if the login shell has printed no PATH."""

    shell: str
    path: str
    node: str
    program: str
    version: str
    writable: bool
    exposed: str
    status: str
    time: float


async def checks(place: Place, program: str) -> list[Check]:
    """Return the checks of `place`, whose CLI is `program`; texts may be from there."""
    try:
        link = place.link()
        before = time.monotonic()
        await link.request("look", paths=[])
        trip = time.monotonic() - before
        found = await link.fetch(_Found, "examine", program=program, addPath=ADD_PATH)
        ahead = found.time / 1000 + trip / 2 - time.time()
    except CompanionError as error:
        return [Check("fail", "reach", str(error), _AGAIN)]
    reach = Check("pass", "reach", f"answers in {1000 * trip:.0f} ms")
    return [reach, *_examined(found, program, place.home), _clock(ahead)]


def _examined(found: _Found, program: str, home: str) -> Iterator[Check]:
    if os.path.basename(found.shell) in ("", "false", "nologin"):
        yield Check("warn", "shell", f"{found.shell or 'none'} runs no terminal", "give the user a login shell: chsh")
    else:
        yield Check("pass", "shell", found.shell)
    if found.path.startswith(":"):
        yield Check("warn", "PATH", "the login shell prints none", "mend its start files there")
    else:
        yield Check("pass", "PATH", found.path)
    yield Check("pass", "Node.js", found.node)
    if not found.program:
        remedy = "npm install -g @qwen-code/qwen-code there, or add its directory to PATH in ~/.profile"
        yield Check("fail", "CLI", f"{program} is not on PATH", remedy)
    elif os.path.basename(program) == "qwen":
        yield served("CLI", "Qwen Code", found.version, found.program)
    else:
        yield Check("pass", "CLI", f"{found.version} at {found.program}")
    if found.writable:
        yield Check("pass", "home", home)
    else:
        yield Check("fail", "home", f"{home} cannot be written to", "give the directory to the user")
    if found.exposed:
        remedy = "chmod go-rwx, or chown it to the user"
        yield Check("fail", "files", f"other users have access to {found.exposed}", remedy)
    else:
        yield Check("pass", "files", "only the user has access to the discovery file and the settings")
    if found.status.isdigit() and found.status not in _REFUSED:
        yield Check("pass", "forwarding", "CLIs there reach Emacs")
    else:
        yield Check("fail", "forwarding", f"CLIs there do not reach Emacs: {found.status}", _AGAIN)


def _clock(ahead: float) -> Check:
    if abs(ahead) < CLOCK_S:
        return Check("pass", "clock", "as here")
    text = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the one here"
    return Check("warn", "clock", text, "set it, for example by NTP")
