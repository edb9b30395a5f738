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
    runs_terminals = os.path.basename(found.shell) not in ("", "false", "nologin")
    problem = f"{found.shell or 'none'} runs no terminal", "give the user a login shell: chsh"
    yield _check(runs_terminals, "shell", found.shell, problem, "warn")
    problem = "the login shell prints none", "mend its start files there"
    yield _check(not found.path.startswith(":"), "PATH", found.path, problem, "warn")
    yield Check("pass", "Node.js", found.node)
    if found.program and os.path.basename(program) == "qwen":
        yield served("CLI", "Qwen Code", found.version, found.program)
    else:
        remedy = "npm install -g @qwen-code/qwen-code there, or add its directory to PATH in ~/.profile"
        problem = f"{program} is not on PATH", remedy
        yield _check(bool(found.program), "CLI", f"{found.version} at {found.program}", problem)
    problem = f"{home} cannot be written to", "give the directory to the user"
    yield _check(found.writable, "home", home, problem)
    problem = f"other users have access to {found.exposed}", "chmod go-rwx, or chown it to the user"
    private = "only the user has access to the discovery file and the settings"
    yield _check(not found.exposed, "files", private, problem)
    carried = found.status.isdigit() and found.status not in _REFUSED
    problem = f"CLIs there do not reach Emacs: {found.status}", _AGAIN
    yield _check(carried, "forwarding", "CLIs there reach Emacs", problem)


def _check(is_good: bool, name: str, text: str, problem: tuple[str, str], level: str = "fail") -> Check:
    """Return a passed check with `text`, or one that shows `problem` and its remedy."""
    return Check("pass", name, text) if is_good else Check(level, name, *problem)


def _clock(ahead: float) -> Check:
    problem = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the one here", "set it, for example by NTP"
    return _check(abs(ahead) < CLOCK_S, "clock", "as here", problem, "warn")
