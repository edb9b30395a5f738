# SPDX-License-Identifier: GPL-3.0-or-later
"""`python -m qwen_companion`, started by Emacs.

Reads one hello line from standard input, prints the EPC port as one line on standard output, and serves until standard
input ends.  Both ports listen before any large import, so an early connection waits instead of being refused.

Python 3.6 and later must be able to parse this file and the package's `__init__`, to report that it is too old.
"""

import os
import sys
import traceback

EXIT_STOPPED = 0
EXIT_CRASHED = 1
EXIT_PACKAGE_MISSING = 3
EXIT_PYTHON_TOO_OLD = 4
EXIT_PORT_TAKEN = 5
EXIT_BAD_HELLO = 6
EXIT_NO_SPOOL = 7

OLDEST_PYTHON = (3, 10)
# What pyproject.toml demands, as it is imported.
PACKAGES = (
    *("anyio", "epc", "httptools", "httpx2", "mcp", "mcp_types", "merge3", "pathspec", "patiencediff", "psutil"),
    *("pydantic", "sexpdata", "starlette"),
)
DESCRIPTORS = 4096
HELLO_LIMIT_BYTES = 1024 * 1024


def say(text: str) -> None:
    """Print `text` for Emacs, which shows the last lines of standard error when this process ends."""
    sys.stderr.write("qwen-companion: " + text + "\n")
    sys.stderr.flush()


def main() -> int:
    """Run the backend; return the exit code."""
    if sys.version_info < OLDEST_PYTHON:
        found, needed = (".".join(str(part) for part in version) for version in (sys.version_info[:2], OLDEST_PYTHON))
        say(f"Python too old: {sys.executable} is version {found}, and at least {needed} is needed.")
        return EXIT_PYTHON_TOO_OLD
    # Standard output contains only the port, even if an imported package prints something.
    output = os.dup(1)
    os.dup2(2, 1)

    import importlib.util

    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        return report_missing(missing)
    try:
        return serve(output)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == __package__:
            raise
        return report_missing([error.name or str(error)])


def report_missing(names: "list[str]") -> int:
    """Print the missing modules; Emacs knows how to get them."""
    say(f"{sys.executable} lacks the Python module {', '.join(names)}.")
    return EXIT_PACKAGE_MISSING


def raise_descriptor_limit() -> None:
    """Allow this process more open files: with 256, as on macOS, some hundred connections use them up."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            pass  # Fewer connections must suffice.


def serve(output: int) -> int:
    """Read the hello line, print the EPC port to the descriptor `output` and serve; return the exit code."""
    raise_descriptor_limit()
    from qwen_companion.base.ending import limit_end_after_input

    limit_end_after_input(0)
    from qwen_companion.base.errors import HelloError, SpoolError
    from qwen_companion.base.listening import listen, listen_reserved
    from qwen_companion.wire.messages import Hello

    try:
        hello = Hello.parse(read_line(0))
    except HelloError as error:
        say(str(error))
        return EXIT_BAD_HELLO
    try:
        mcp_listener, epc_listener = listen_reserved(hello.port, hello.reserve), listen()
    except OSError as error:
        say(f"cannot listen on port {hello.port} of 127.0.0.1: {error.strerror}")
        return EXIT_PORT_TAKEN
    # The output stays open: Emacs spins on the closed output of a process that lives.
    os.write(output, b"%d\n" % epc_listener.getsockname()[1])

    import asyncio
    import logging
    import secrets

    from qwen_companion.companion import Companion

    # The user's interpreter may have that package.  anyio asks it for the kind of the event loop, and in a plain
    # callback it does not know.
    sniffed = getattr(sys.modules.get("sniffio"), "thread_local", None)
    if sniffed is not None:
        sniffed.name = "asyncio"
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")

    async def run() -> None:
        token = hello.token or secrets.token_hex(32)
        await Companion(hello, token, mcp_listener, epc_listener).run(input_descriptor=0)

    try:
        asyncio.run(run())
    except SpoolError as error:
        say(str(error))
        return EXIT_NO_SPOOL
    return EXIT_STOPPED


def read_line(descriptor: int) -> bytes:
    """Return the first line of `descriptor`, unbuffered so that its end can be seen later."""
    line = b""
    while not line.endswith(b"\n") and len(line) < HELLO_LIMIT_BYTES:
        piece = os.read(descriptor, 65536)
        if not piece:
            break
        line += piece
    return line


if __name__ == "__main__":
    code = EXIT_CRASHED
    try:
        code = main()
    except BaseException:  # noqa: BLE001 - printed as the interpreter does, which would wait for threads then
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        # Everything was shut down in order.  Do not wait for a thread with an import or an access to a dead disk.
        os._exit(code)
