# SPDX-License-Identifier: GPL-3.0-or-later
"""Opens Emacs with the companion on, a small project, and the CLI beside it; see `demo/run`.

In a window where there is a display and the Emacs can draw one, else in this terminal.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

DEMO = Path(__file__).resolve().parent
CHECKOUT = DEMO.parent
sys.path[:0] = [str(CHECKOUT / "tests/e2e"), str(CHECKOUT / "tests/helpers")]

import demo_script  # noqa: E402  the path is set first
from sandbox import BUILD, LeftoverError, Sandbox  # noqa: E402
from scripted_model import ModelServer, side_answer  # noqa: E402

DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
TERMINAL_VARIABLES = ("TERM", "COLORTERM", *DISPLAYS, "XAUTHORITY", "LANG", "LC_ALL", "LC_CTYPE")


def own_terminal() -> dict[str, str]:
    """Return the variables that tell Emacs of its terminal or display."""
    return {name: os.environ[name] for name in TERMINAL_VARIABLES if name in os.environ}


def users_environment() -> dict[str, str]:
    """Return the user's own environment, without the programs of this checkout that make has put first."""
    path = [directory for directory in os.environ.get("PATH", "").split(":") if directory != str(BUILD / "bin")]
    return {**os.environ, "PATH": ":".join(path)}


def run_emacs(sandbox: Sandbox, guide: str, environment: Mapping[str, str]) -> int:
    """Run Emacs in the project of `sandbox` with `guide` beside it until the user ends it; return its exit status."""
    emacs = os.environ.get("EMACS") or "emacs"
    command = [emacs, "-Q", "-l", str(CHECKOUT / "scripts/checkout.el"), "-l", str(DEMO / "demo.el")]
    return subprocess.call(
        [*command, "--eval", f'(demo-start "{sandbox.greeting}" "{DEMO / guide}")'],
        cwd=sandbox.project,
        # See there: else it would write into ~/.emacs.d.
        env={**environment, "EMACSLOADPATH": f"{CHECKOUT / 'scripts/startup'}:{environment.get('EMACSLOADPATH', '')}"},
    )


def closed(_signal: int, _frame: FrameType | None) -> None:
    """Go on when the terminal window is closed: that ends Emacs, and only cleaning up is left."""


def told_to_end(_signal: int, _frame: FrameType | None) -> None:
    """End Emacs, and clean up."""
    sys.exit(1)


def main() -> int:
    """Run the demo; return Emacs's exit status."""
    parser = argparse.ArgumentParser(description="Emacs, the companion and the CLI, to try.")
    parser.add_argument("--real", action="store_true", help="the qwen on PATH with its own configuration and model")
    options = parser.parse_args()
    if not (sys.stdin.isatty() or any(name in os.environ for name in DISPLAYS)):
        print("demo: this needs a terminal or a display", file=sys.stderr)
        return 2
    environment = users_environment()
    if options.real and shutil.which("qwen", path=environment["PATH"]) is None:
        print("demo: no qwen on PATH; get it with: npm install -g @qwen-code/qwen-code", file=sys.stderr)
        return 2
    signal.signal(signal.SIGHUP, closed)
    signal.signal(signal.SIGTERM, told_to_end)
    parent = BUILD / "demo"
    parent.mkdir(exist_ok=True)
    sandbox = Sandbox(parent)
    try:
        if options.real:
            return run_emacs(sandbox, "guide-real.org", environment)
        server = ModelServer(lambda request: side_answer(request) or demo_script.respond(request))
        try:
            return run_emacs(sandbox, "guide.org", {**sandbox.environment(), **own_terminal(), **server.environment()})
        finally:
            server.close()
            sandbox.wait_for_end()
    except LeftoverError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    finally:
        sandbox.remove()


if __name__ == "__main__":
    sys.exit(main())
