# SPDX-License-Identifier: GPL-3.0-or-later
"""Time what a newcomer waits for: the Python environment of an installation, and the demo in a new clone.

    .build/venv/bin/python bench/start.py

Both from nothing, so all packages are downloaded, and again with what was downloaded.  Once each.  Asserts nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(CHECKOUT / name) for name in ("tests/e2e", "tests/helpers")]

from editor import PROGRAM  # noqa: E402  the path is set first
from table import row  # noqa: E402
from terminal import Screen  # noqa: E402

INSTALL = """
(let (made)
  (add-hook 'qwen-companion-environment-made-hook (lambda () (setq made t)))
  (qwen-companion-install-backend)
  (with-current-buffer qwen-companion-environment--buffer-name
    (while (get-buffer-process (current-buffer))
      (accept-process-output nil 0.1))
    (unless made
      (error "%s" (buffer-string)))))
"""

LIMIT_S = 600
"""How long one start may take, in seconds."""


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a user with the empty directory `home`, where downloads are kept too."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "EMACS") if name in os.environ}
    kept["PATH"] = ":".join(place for place in kept["PATH"].split(":") if not place.startswith(str(CHECKOUT)))
    return kept | {"HOME": str(home), "TERM": "xterm-256color", "QWEN_COMPANION_CACHE": str(home / "downloads")}


def install(home: Path, variables: Mapping[str, str]) -> float:
    """Make the Python environment below `home`, as an installed package does; return the seconds."""
    target = f'(setq user-emacs-directory "{tempfile.mkdtemp(dir=home)}/")'
    command = [PROGRAM, "-Q", "--batch", "--eval", target, "-l", str(CHECKOUT / "scripts/checkout.el")]
    began = time.monotonic()
    subprocess.run(
        [*command, "--eval", INSTALL],
        env=variables,
        check=True,
        capture_output=True,
        timeout=LIMIT_S,
    )
    return time.monotonic() - began


def demo(home: Path, variables: Mapping[str, str]) -> float:
    """Run the demo in a new clone below `home` until the CLI can be typed to; return the seconds."""
    place = Path(tempfile.mkdtemp(dir=home))
    subprocess.run(["git", "clone", "--quiet", str(CHECKOUT), str(place / "clone")], check=True)
    screen = Screen(place, variables, 200, 50)
    began = time.monotonic()
    screen.start(["make", "demo"], place / "clone")
    try:
        screen.wait_for("Type your message", LIMIT_S)
        taken = time.monotonic() - began
        screen.keys("C-x", "C-c")
        screen.wait_until(lambda: not any((place / "clone/.build/demo").iterdir()), "the end of the demo", LIMIT_S)
    finally:
        screen.close()
    return taken


def main() -> None:
    """Measure both and print a row for each."""
    for what, start, goal in (
        ("first installation: the Python environment", install, "15 s + download"),
        ("the demo in a new clone, until the CLI can be typed to", demo, "60 s"),
    ):
        with tempfile.TemporaryDirectory() as directory:
            home = Path(directory)
            first, again = (start(home, environment(home)) for _ in range(2))
            row("speed", what, f"{first:.0f} s; {again:.0f} s with what was downloaded", goal)


if __name__ == "__main__":
    main()
