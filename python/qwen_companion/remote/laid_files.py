# SPDX-License-Identifier: GPL-3.0-or-later
"""The files by which CLIs at a place find Emacs: discovery file, settings layer, terminals' variables."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence

from qwen_companion.discovery.dialects import QWEN_VARIABLES, Value
from qwen_companion.discovery.files import EDITOR_INFO
from qwen_companion.doors.door_settings import CommandHook, header_line
from qwen_companion.doors.layers import merge
from qwen_companion.doors.user_settings import VARIABLE, JsonObject, LayerError, parse_settings
from qwen_companion.ide.guard import Keys
from qwen_companion.remote.link import Greeting, Link, objects

LayerOf = Callable[[Keys, CommandHook | None], "JsonObject | None"]
"""Returns the settings layer for the keys of a server and the command before edits; None for no layer."""


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
    laid = await link.request("lay", kind="sh", port=keys.port, text=_shell(variables, greeting.node))
    return str(laid.get("path", "")), variables


async def _lay_layer(
    link: Link, greeting: Greeting, keys: Keys, layer_of: LayerOf, warn: Callable[[str], None]
) -> str | None:
    """Write the settings layer; return its path, or None."""
    command = None
    if greeting.curl:
        laid = (await link.request("lay", kind="header", port=keys.port, text=header_line(keys))).get("path")
        command = CommandHook(greeting.curl, laid) if isinstance(laid, str) else None
    ours = layer_of(keys, command)
    if ours is None:
        return None
    texts = objects((await link.request("texts", paths=[greeting.layer])).get("texts"))
    try:
        text = texts[0].get("text") if texts else None
        theirs = parse_settings(greeting.layer, text.encode("utf-8", "replace")) if isinstance(text, str) else {}
    except LayerError as error:
        warn(f"{error}; CLIs there start without it")
        theirs = {}
    text = json.dumps(merge(theirs, ours), indent=1)
    path = (await link.request("lay", kind="json", port=keys.port, text=text)).get("path")
    return path if isinstance(path, str) else None


def _shell(variables: Mapping[str, str], node: str) -> str:
    """Return shell code that sets `variables` there, and adds the directory of Node.js to PATH."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    proxies = [f'export {name}="127.0.0.1,localhost${{{name}:+,${name}}}"' for name in ("NO_PROXY", "no_proxy")]
    return "\n".join([*lines, *proxies, f"PATH=$PATH:{shlex.quote(node)}", ""])
