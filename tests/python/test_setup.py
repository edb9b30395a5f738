# SPDX-License-Identifier: GPL-3.0-or-later
"""What `make build` installs is shown before it is installed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

SETUP = Path(__file__).parents[2] / "scripts/setup"


def test_each_command_that_installs_packages_is_shown_before_it_runs(tmp_path: Path) -> None:
    for name, script in (("apt-get", 'echo "ran: apt-get $*" >&2'), ("sudo", 'shift; exec "$@"')):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o700)
    environment = {**os.environ, "EMACS": "no-such-emacs", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([SETUP], env=environment, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert "ran: apt-get install" in done.stderr
    for command in re.findall(r"^ran: (.*)", done.stderr, re.MULTILINE):
        assert re.search(rf"^setup: \$ .*{re.escape(command)}\nran: ", done.stderr, re.MULTILINE)
