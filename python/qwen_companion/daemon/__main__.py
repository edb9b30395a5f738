# SPDX-License-Identifier: GPL-3.0-or-later
"""`python -m qwen_companion.daemon chat`: one prompt to a `qwen serve`, and its turn as it streams.

An aid for finding out what a daemon does, without Emacs.  Ctrl-C cancels the turn, a second one leaves.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

import anyio

from qwen_companion.daemon.client import DaemonClient
from qwen_companion.daemon.errors import DaemonError, NotFoundError
from qwen_companion.daemon.models import (
    AgentMessageChunk,
    AgentThoughtChunk,
    Envelope,
    Payload,
    PermissionRequest,
    Plan,
    TextBlock,
    ToolFields,
    TurnComplete,
    TurnError,
)
from qwen_companion.daemon.sanitize import clean, line, reveal
from qwen_companion.daemon.settings import (
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    URL_VARIABLE,
    DaemonAddress,
    find_address,
)
from qwen_companion.daemon.stream import Disconnected, Ended, EventStream, Frame, ReplayDone, Resync
from qwen_companion.tasks import Tasks
from qwen_companion.threads import in_thread

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_LEFT = 130


class _Turn:
    """A turn, printed as it comes.  Questions and what goes wrong go to standard error."""

    def __init__(self, client: DaemonClient, session: str) -> None:
        self._client = client
        self._session = session
        self._tools: dict[str, ToolFields] = {}
        self._thinking: bool | None = None

    async def run(self, prompt: str) -> int:
        """Send `prompt` and return the exit code when its turn has ended."""
        cursor = (await self._client.load(self._session)).cursor
        mine: str | None = None
        async with EventStream(self._client, self._session, cursor) as stream:
            async for item in stream:
                if isinstance(item, ReplayDone) and mine is None:
                    mine = (await self._client.prompt(self._session, [TextBlock(prompt)])).prompt_id
                elif isinstance(item, Frame) and mine is not None:
                    code = await self._take(item.envelope, mine)
                    if code is not None:
                        return code
                elif isinstance(item, Disconnected):
                    _say(f"{item.reason}  Again in {item.retry_in_s:.1f} s.")
                elif isinstance(item, Ended):
                    raise item.error
                elif isinstance(item, Resync):
                    _say(f"Events were lost ({clean(item.reason)}); the turn may go on.")
        return EXIT_FAILED

    async def _take(self, envelope: Envelope, mine: str) -> int | None:
        """Show an event; the exit code if it is the end of the turn of the prompt `mine`."""
        payload = envelope.payload
        if isinstance(payload, TurnComplete) and payload.prompt_id == mine:
            print(flush=True)
            _say(f"The turn has ended: {clean(payload.stop_reason or 'no reason given')}.")
            return EXIT_DONE
        if isinstance(payload, TurnError) and payload.prompt_id == mine:
            print(flush=True)
            _say(f"The turn has failed: {clean(payload.message)}")
            return EXIT_FAILED
        if isinstance(payload, PermissionRequest):
            await self._ask(payload)
        else:
            self._show(payload)
        return None

    def _show(self, payload: Payload) -> None:
        if isinstance(payload, AgentMessageChunk | AgentThoughtChunk):
            thinking = isinstance(payload, AgentThoughtChunk)
            if thinking != self._thinking and payload.content.text:
                self._thinking = thinking
                print("\n[thinking]" if thinking else "\n[answer]")
            print(clean(payload.content.text), end="", flush=True)
        elif isinstance(payload, ToolFields):
            self._show_tool(payload)
        elif isinstance(payload, Plan):
            for entry in payload.entries:
                print(f"\n[plan] {clean(entry.status or '')}: {line(entry.content)}", end="", flush=True)

    def _show_tool(self, update: ToolFields) -> None:
        before = self._tools.get(update.tool_call_id)
        named = {name: getattr(update, name) for name in update.model_fields_set}
        tool = before.model_copy(update=named) if before else update
        self._tools[update.tool_call_id] = tool
        if before is None or (before.title, before.status) != (tool.title, tool.status):
            self._thinking = None
            print(f"\n[tool] {line(tool.title or tool.tool_call_id)}: {clean(tool.status or '')}", flush=True)

    async def _ask(self, request: PermissionRequest) -> None:
        """Let the user choose; without a terminal the answer is no."""
        self._show_tool(request.tool_call)
        option = None
        title = reveal(request.tool_call.title or request.tool_call.tool_call_id)
        if os.isatty(0):
            _say(f"\nAllow this?  {title}")
            for number, choice in enumerate(request.options, 1):
                _say(f"  {number}  {line(choice.name or choice.option_id)}")
            _say("A number, or anything else for no:")
            answer = (await in_thread(os.read, 0, 100)).strip()
            with suppress(ValueError, IndexError):
                option = request.options[max(0, int(answer)) - 1].option_id if int(answer) > 0 else None
        else:
            _say(f"\nNobody can be asked, so no: {title}")
        # Another client may have answered meanwhile.
        with suppress(NotFoundError):
            await self._client.answer_permission(self._session, request.request_id, option)


async def chat(address: DaemonAddress, root: str, shared: bool, prompt: str) -> int:
    """Send `prompt` to a session of the workspace `root`, a new one or the one all share; return the exit code."""
    async with DaemonClient(address.url, address.token) as client:
        found = await client.capabilities(root)
        _say(f"qwen serve {found.qwen_code_version} at {client.url}: files, commands and credentials are the host's.")
        session = (await client.create_or_attach(root, "single" if shared else "thread")).session_id
        code = EXIT_LEFT
        try:
            async with Tasks() as tasks:
                with anyio.CancelScope() as turn:
                    tasks.start(_take_interrupts, client, session, tasks, turn)
                    code = await _Turn(client, session).run(prompt)
        finally:
            with suppress(DaemonError):
                await client.detach(session)
        return code


async def _take_interrupts(client: DaemonClient, session: str, tasks: Tasks, turn: anyio.CancelScope) -> None:
    """Cancel the turn of the daemon at the first Ctrl-C, and the scope `turn` at the second."""
    with anyio.open_signal_receiver(signal.SIGINT) as interrupts:
        await anext(interrupts)
        tasks.start(_cancel, client, session)
        await anext(interrupts)
        turn.cancel()


async def _cancel(client: DaemonClient, session: str) -> None:
    try:
        await client.cancel(session)
    except DaemonError as error:
        _say(str(error))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m qwen_companion.daemon",
        description="Send one prompt to a qwen serve and print its turn: an aid for debugging.",
        epilog=f"The token comes from the environment variable {TOKEN_VARIABLE}, or from the file that "
        f"{TOKEN_FILE_VARIABLE} names.",
    )
    parser.add_argument("--url", help=f"of the daemon; else {URL_VARIABLE} says it")
    parser.add_argument("--workspace", default=os.getcwd(), help="of the daemon; else the current directory")
    command = parser.add_subparsers(required=True).add_parser("chat", help="send one prompt")
    command.add_argument("--shared", action="store_true", help="in the session of the workspace that all clients share")
    command.add_argument("prompt", nargs="*", help="else what comes from standard input")
    options = parser.parse_args(arguments)
    try:
        address = find_address(options.url, None, os.environ)
        prompt = " ".join(options.prompt) or sys.stdin.read()
        return anyio.run(chat, address, options.workspace, options.shared, prompt)
    except DaemonError as error:
        _say(str(error))
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_LEFT


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # A thread may wait for an answer of the user.
    os._exit(code)
