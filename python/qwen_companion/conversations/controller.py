# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller token with which the user's CLIs accept prompts from Emacs, made and revoked by `qwen`.

It is made only with the user's consent, in one file for all Emacsen of the user, and sent only to CLIs: never to Emacs,
a log, an argument or an environment.  All functions block on disk I/O; never call them on the event loop.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from qwen_companion.base.errors import CompanionError
from qwen_companion.base.json_objects import as_object, read_object
from qwen_companion.base.programs import DIRECTORY, run_within
from qwen_companion.base.state import read_own, state_home, write_private
from qwen_companion.doors.user_settings import user_settings_file

NONE, VALID, REVOKED = "none", "valid", "revoked"
"""States of the token: never made, accepted by CLIs, or revoked by the user."""

_LABEL = "Emacs"
_ADD_S = 30.0
_MAX_BYTES = 64 * 1024


class GrantError(CompanionError):
    """No token is available; the text says why."""


@dataclass(frozen=True)
class Grant:
    """The `token` of a controller, which `qwen sessions controllers` lists as `id`."""

    id: str
    token: str


def controllers_file(environ: Mapping[str, str]) -> str:
    """Return the file in which Qwen Code stores the controllers, without their tokens."""
    return os.path.join(os.path.dirname(user_settings_file(environ)), "peer-controllers.json")


def grant_file(environ: Mapping[str, str]) -> str:
    """Return our own file with the token."""
    return os.path.join(state_home(environ), "controller.json")


def read_grant(environ: Mapping[str, str]) -> tuple[str, Grant | None]:
    """Return the state of the token, see `NONE`, and the token, or None if the user owns none."""
    values: dict[str, Any] = {}
    known: object = None
    with suppress(OSError):
        values = read_object(read_own(grant_file(environ), _MAX_BYTES, hidden=0o077)) or {}
        with open(controllers_file(environ), "rb") as file:
            known = (read_object(file.read(_MAX_BYTES)) or {}).get("controllers")
    identifier, token = values.get("id"), values.get("token")
    if not isinstance(identifier, str) or not isinstance(token, str):
        return NONE, None
    digest = hashlib.sha256(token.encode()).hexdigest()
    controllers = cast("list[object]", known) if isinstance(known, list) else []
    is_valid = any(as_object(each).get("tokenHash") == digest for each in controllers)
    return VALID if is_valid else REVOKED, Grant(identifier, token)


def add_grant(environ: Mapping[str, str], program: Sequence[str]) -> Grant:
    """Return a valid token; without one, have Qwen Code, the command `program`, make it, and store it.

    :raises GrantError: when that fails; then there is none
    """
    path = grant_file(environ)
    try:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        os.chmod(os.path.dirname(path), 0o700)
        directory = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            # The user may consent in two Emacsen at once.
            fcntl.flock(directory, fcntl.LOCK_EX)
            state, grant = read_grant(environ)
            return grant if grant is not None and state == VALID else _make_grant(environ, program, path)
        finally:
            os.close(directory)
    except OSError as error:
        raise GrantError(f"it cannot be kept in {path}: {error.strerror}") from None


def _make_grant(environ: Mapping[str, str], program: Sequence[str], path: str) -> Grant:
    """Have `program` make a token, and write it to `path`.

    :raises GrantError, OSError: when it cannot be made or written
    """
    values = _run(environ, program, "add", "--label", _LABEL, "--json")
    grant = Grant(str(values.get("id")), str(values.get("token")))
    if not grant.token.startswith("qpc_"):
        raise GrantError("this Qwen Code makes no controllers; 0.23 and later do")
    try:
        write_private(f"{path}.new", json.dumps({"id": grant.id, "token": grant.token}).encode())
        os.replace(f"{path}.new", path)
    except OSError:
        with suppress(GrantError):
            _run(environ, program, "remove", grant.id)
        raise
    return grant


def _run(environ: Mapping[str, str], program: Sequence[str], *arguments: str) -> dict[str, Any]:
    """Return the JSON object that `qwen sessions controllers` with `arguments` prints, or {}.

    :raises GrantError: when it fails; the text quotes no output, which may contain a token
    """
    try:
        command = [*program, "sessions", "controllers", *arguments]
        status, output = run_within(_ADD_S, command, environ, environ.get("HOME") or DIRECTORY)
        if status:
            raise OSError(f"{shlex.join(command)}: exit status {status}")
    except OSError as error:
        raise GrantError(f"no token can be made: {error}; run that in a terminal to see why") from None
    return next(filter(None, map(read_object, output.splitlines())), None) or {}
