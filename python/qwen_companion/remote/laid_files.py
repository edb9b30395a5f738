# SPDX-License-Identifier: GPL-3.0-or-later
"""The files by which CLIs at a place find Emacs: discovery file, settings layer, terminals' variables."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from qwen_companion.discovery.dialects import QWEN_VARIABLES, Value
from qwen_companion.discovery.files import EDITOR_INFO
from qwen_companion.doors.door_settings import CommandHook, header_line
from qwen_companion.doors.layers import merge
from qwen_companion.doors.user_settings import VARIABLE, JsonObject, LayerError, parse_settings
from qwen_companion.ide.guard import Keys
from qwen_companion.remote.link import Answer, FileName, Greeting, Link
from qwen_companion.wire.messages import Notification

LayerOf = Callable[[Keys, CommandHook | None], "JsonObject | None"]
"""Returns the settings layer for the keys of a server and the command before edits; None for no layer."""


@dataclass(frozen=True)
class Callbacks:
    """The other parts of this process, as the places need them.

    - `layer_of` returns the settings layer.
    - `tell` sends a message to Emacs.
    - `roots_changed` is called when projects were opened or closed.
    - `set_reachable` is called with the name of a place and whether a line leads there.
    """

    layer_of: LayerOf
    tell: Callable[[Notification], None]
    roots_changed: Callable[[], None]
    set_reachable: Callable[[str, bool], None]


class _Text(Answer):
    text: str | None = None


class _Texts(Answer):
    texts: list[_Text]


class Laid(Answer):
    """The name of a file that was written there."""

    path: FileName


async def lay(
    link: Link,
    greeting: Greeting,
    keys: Keys,
    roots: Sequence[str],
    layer_of: LayerOf,
    warn: Callable[[str], None],
) -> tuple[str, Mapping[str, str]]:
    """Write the files for `roots` there; return the path of the file of terminals' variables, and the variables.

    `warn` is called with the reason why the layer is incomplete.

    :raises RequestError: when the relay fails
    :raises LinkError: when the pipe is broken
    """
    layer = await _lay_layer(link, greeting, keys, layer_of, warn)
    workspace = os.pathsep.join(roots)
    values = {Value.PORT_STRING: str(keys.port), Value.WORKSPACE: workspace}
    variables = {name: values[value] for name, value in QWEN_VARIABLES}
    if layer is not None:
        variables[VARIABLE] = layer
    lock = {
        "port": str(keys.port),
        "workspacePath": workspace,
        "authToken": keys.token,
        # A CLI deletes the discovery file of a process that does not exist.
        "ppid": greeting.pid,
        "ideName": EDITOR_INFO["displayName"],
        "ideInfo": EDITOR_INFO,
        "emacsRelay": {"pid": greeting.pid, "started": greeting.started},
    }
    await link.request("lay", kind="lock", port=keys.port, text=json.dumps(lock, ensure_ascii=False))
    laid = await link.fetch(Laid, "lay", kind="sh", port=keys.port, text=_shell(variables, greeting.node))
    return laid.path, variables


async def _lay_layer(
    link: Link, greeting: Greeting, keys: Keys, layer_of: LayerOf, warn: Callable[[str], None]
) -> str | None:
    """Write the settings layer; return its path, or None."""
    command = None
    if greeting.curl:
        laid = await link.fetch(Laid, "lay", kind="header", port=keys.port, text=header_line(keys))
        command = CommandHook(greeting.curl, laid.path)
    ours = layer_of(keys, command)
    if ours is None:
        return None
    texts = (await link.fetch(_Texts, "texts", paths=[greeting.layer])).texts
    text = texts[0].text if texts else None
    try:
        theirs = {} if text is None else parse_settings(greeting.layer, text.encode("utf-8", "replace"))
    except LayerError as error:
        warn(f"{error}; CLIs there start without it")
        theirs = {}
    text = json.dumps(merge(theirs, ours), indent=1)
    return (await link.fetch(Laid, "lay", kind="json", port=keys.port, text=text)).path


def _shell(variables: Mapping[str, str], node: str) -> str:
    """Return shell code that sets `variables` there, and adds the directory of Node.js to PATH."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    proxies = [f'export {name}="127.0.0.1,localhost${{{name}:+,${name}}}"' for name in ("NO_PROXY", "no_proxy")]
    return "\n".join([*lines, *proxies, f"PATH=$PATH:{shlex.quote(node)}", ""])
