# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes pictures of reviews in all states, themes and sizes, to be looked at: part of `make screenshots`.

Needs an Emacs that draws windows with Cairo, Xvfb, tmux and tic.  The pictures go to .build/contact-sheet, with a page
of all.
"""

from __future__ import annotations

import html
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

DEMO = Path(__file__).resolve().parent
CHECKOUT = DEMO.parent
SHEET = CHECKOUT / ".build" / "contact-sheet"
sys.path[:0] = [str(CHECKOUT / "tests/e2e"), str(CHECKOUT / "tests/helpers")]

from display import display  # noqa: E402  the path is set first
from editor import lisp_string  # noqa: E402
from sandbox import Sandbox  # noqa: E402

PATIENCE_S = 300.0
THEMES = ("default", "modus-operandi", "modus-vivendi", "leuven", "wombat")
WINDOWS = ((800, 600), (1400, 900))
TERMINALS = {"xterm": 8, "xterm-16color": 16, "xterm-256color": 256}
SIXTEEN_COLOURS = r"""xterm-16color|an xterm of 16 colours,
 colors#16, pairs#256,
 setaf=\E[%?%p1%{8}%<%t%p1%{30}%+%e%p1%{82}%+%;%dm,
 setab=\E[%?%p1%{8}%<%t%p1%{40}%+%e%p1%{92}%+%;%dm,
 use=xterm,
"""
SCREENS = ((80, 24), (120, 40))


def emacs_command(*forms: str) -> list[str]:
    """Return the command that runs Emacs with the checkout and evaluates `forms`."""
    loads = ["-Q", "-l", str(CHECKOUT / "scripts/checkout.el"), "-l", str(DEMO / "contact-sheet.el")]
    return [os.environ.get("EMACS") or "emacs", *loads, *(argument for form in forms for argument in ("--eval", form))]


def run_form(name: str, sizes: tuple[tuple[int, int], ...]) -> str:
    """Return the form that takes the pictures `name` in `sizes`."""
    pairs = " ".join(f"({width} . {height})" for width, height in sizes)
    return f"(contact-sheet-run {lisp_string(str(SHEET))} {lisp_string(name)} '({pairs}))"


def take_windows(environment: Mapping[str, str]) -> None:
    """Take the pictures of each theme in a window."""
    for theme in THEMES:
        sandbox = Sandbox()
        try:
            load = "(ignore)" if theme == "default" else f"(load-theme '{theme} t)"
            subprocess.run(
                [*emacs_command(load, run_form(theme, WINDOWS)), "-fn", "DejaVu Sans Mono-10"],
                cwd=sandbox.project,
                env={**sandbox.environment(), **environment},
                timeout=PATIENCE_S,
                check=True,
            )
        finally:
            sandbox.remove()


def take_terminals(environment: Mapping[str, str]) -> None:
    """Take the pictures of each number of colours in a text terminal, and draw them."""
    descriptions = SHEET / "terminfo"
    subprocess.run(["tic", "-x", "-o", str(descriptions), "-"], input=SIXTEEN_COLOURS, text=True, check=True)
    environment = {**environment, "TERMINFO_DIRS": f"{descriptions}:"}
    for term, colours in TERMINALS.items():
        for columns, lines in SCREENS:
            sandbox = Sandbox()
            try:
                socket = str(sandbox.run / "tmux")
                command = emacs_command(run_form(f"tty{colours}", ((columns, lines),)))
                server = ["tmux", "-S", socket, "-f", "/dev/null"]
                size = ["-x", str(columns), "-y", str(lines)]
                ended = "sheet-ended"
                subprocess.run(
                    [
                        *(*server, "new-session", "-d", *size, "-c", str(sandbox.project)),
                        *("-e", f"TERM={term}", "env", f"TERM={term}", command[0], "-nw", *command[1:]),
                        *(";", "set-hook", "-g", "session-closed", f"wait-for -S {ended}"),
                        *(";", "set-option", "-g", "exit-empty", "off"),
                    ],
                    env={**sandbox.environment(), **environment},
                    timeout=PATIENCE_S,
                    check=True,
                )
                subprocess.run([*server, "wait-for", ended], timeout=PATIENCE_S, check=True)
                subprocess.run([*server, "kill-server"], timeout=PATIENCE_S, check=False)
            finally:
                sandbox.remove()
    files = " ".join(lisp_string(str(path)) for path in sorted(SHEET.glob("*.ansi")))
    subprocess.run(
        [*emacs_command(f"(contact-sheet-draw '({files}))"), "-fn", "DejaVu Sans Mono-10"],
        env={**os.environ, **environment},
        timeout=PATIENCE_S,
        check=True,
    )


def main() -> int:
    """Take all pictures; return the exit status."""
    missing = [program for program in ("Xvfb", "tmux", "tic") if shutil.which(program) is None]
    if missing:
        print(f"contact sheet: not installed: {', '.join(missing)} (packages xvfb, tmux, ncurses-bin)", file=sys.stderr)
        return 1
    shutil.rmtree(SHEET, ignore_errors=True)
    SHEET.mkdir(parents=True)
    with display(1500, 1000) as where:
        environment = {"DISPLAY": where.name}
        take_windows(environment)
        take_terminals(environment)
    pictures = sorted(SHEET.glob("*.png"))
    figures = "".join(
        f'<figure><img src="{html.escape(path.name)}"><figcaption>{html.escape(path.stem)}</figcaption></figure>\n'
        for path in pictures
    )
    (SHEET / "index.html").write_text(f"<!doctype html><title>Reviews</title>\n{figures}")
    print(f"contact sheet: {len(pictures)} pictures, see {SHEET / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
