# SPDX-License-Identifier: GPL-3.0-or-later
"""Which everyday commands of agents ask in `auto`, with the settings layer and without it: the table of the manual.

The model says of each command that it may run, where it is asked as the classifier of `auto`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pytest

from clis import QWEN_SETTINGS
from scripted_model import CLASSIFICATION, MAIN_TOOL
from stage import Stage
from terminal import ScreenTimeoutError

pytestmark = [pytest.mark.interop, pytest.mark.long]

PROGRAMS: Final = ("qwen-0.21.2", "qwen-0.21.10", "qwen-0.23.4", "qwen")
QUESTION: Final = "Yes, allow once"


@dataclass(frozen=True)
class Command:
    """A command, and whether the layer makes the CLI ask about it."""

    text: str
    asks: bool = False


COMMANDS: Final = (
    Command("mkdir -p src/parts"),
    Command("touch src/parts/a.txt"),
    Command("echo one > src/parts/a.txt"),
    Command("echo two >> src/parts/a.txt"),
    Command("cat > src/b.py <<'EOF'\nprint('$HOME')\nEOF"),
    Command("printf 'x\\n' | tee src/c.txt"),
    Command("cp notes.txt src/copy.txt"),
    Command("cp -r src backup"),
    Command("mv src/copy.txt src/moved.txt"),
    Command("rm src/moved.txt"),
    Command("rm -rf backup"),
    Command("sed -i 's/apples/oranges/' notes.txt"),
    Command("ln -s notes.txt link.txt"),
    Command("chmod +x src/b.py"),
    Command("cd src && mkdir -p more && touch more/d.txt"),
    Command("cat notes.txt | sort > sorted.txt 2>/dev/null"),
    Command("git diff > change.patch"),
    Command("git checkout notes.txt"),
    Command("patch -p1 < change.patch"),
    Command("npm test"),
    Command("python3 -m pip install --no-index nothing"),
    Command("make -n"),
    Command("python3 -c 'print(6 * 7)'"),
    Command("curl -s {url}/models"),
    Command("find . -name '*.pyc' -delete"),
    Command("tar czf src.tgz src"),
    Command("tar xzf src.tgz"),
    Command("grep -rn apples ."),
    Command("touch ../outside.txt"),
    Command("git add -A"),
    Command("git commit -m work"),
    Command("git stash"),
    # A program that is nobody's but the classifier's to judge, whose output goes into the project.
    Command("python3 -c 'print(6 * 7)' > out.txt", asks=True),
    Command("npm test > test.log 2>&1", asks=True),
    Command("curl -so models.json {url}/models", asks=True),
    Command("mkdir $(date +%F)", asks=True),
    # What `auto` protects.
    Command("echo x > package.json", asks=True),
)


def start(stage: Stage, program: str, layer: bool, **permissions: Sequence[str]) -> None:
    """Start Emacs and `program` in `auto`, with the settings `layer` or without, with `permissions` of the user's."""
    settings: dict[str, Any] = copy.deepcopy(dict(QWEN_SETTINGS))
    settings["tools"] = {"useRipgrep": False}
    settings["permissions"] = permissions
    stage.sandbox.write_cli_settings(settings)
    forms = (
        f'(setq qwen-companion-qwen-command (list "{program}"))',
        f"(setq qwen-companion-settings-layer {'t' if layer else 'nil'})",
    )
    stage.start_emacs(stage.sandbox.greeting, forms=forms)
    stage.start_cli()


def asked(stage: Stage, commands: Sequence[str]) -> set[str]:
    """Have the model call the `commands` in one turn, allow each that asks, and return these."""

    def has_ended(number: int) -> bool:
        # The classifier's requests offer no tool that writes.
        return sum(f'"{MAIN_TOOL}"' in json.dumps(body.get("tools")) for body in list(stage.model.bodies)) >= number + 2

    def asks(number: int) -> bool:
        screen = stage.screen.capture()
        return QUESTION in screen and f"(step {number})" in screen

    found: set[str] = set()
    for number, command in enumerate(commands):
        stage.model.call("run_shell_command", command=command, description=f"step {number}", is_background=False)
    stage.model.say("All done.")
    stage.ask("work")
    for number, command in enumerate(commands):
        stage.screen.wait_until(lambda n=number: has_ended(n) or asks(n), f"the end of {command}, or a question")
        while not has_ended(number):
            found.add(command)
            stage.screen.keys("Enter")
            with suppress(ScreenTimeoutError):
                stage.screen.wait_until(lambda n=number: has_ended(n), f"the end of {command}", 5)
    stage.screen.wait_for("All done.")
    return found


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("layer", [False, True])
def test_the_users_own_rules_count(stage: Stage, program: str, layer: bool) -> None:
    start(stage, program, layer, allow=["Bash(mkdir *)"], ask=["Bash(touch *)"])
    # By itself, the hook does not permit the option.
    assert asked(stage, ["mkdir -m 700 private", "touch x"]) == {"touch x"}
    assert not any(CLASSIFICATION in json.dumps(body) for body in stage.model.bodies)
