# SPDX-License-Identifier: GPL-3.0-or-later
"""Everyday commands of agents in `auto`: with the settings layer they ask exactly as without it.

The model says of each command that it may run, where it is asked as the classifier of `auto`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import pytest

from clis import QWEN_SETTINGS
from scripted_model import CLASSIFICATION, MAIN_TOOL
from stage import Stage
from terminal import ScreenTimeoutError

pytestmark = [pytest.mark.interop, pytest.mark.long]

PROGRAMS: Final = ("qwen-0.21.2", "qwen-0.21.10", "qwen-0.23.4", "qwen")
QUESTION: Final = "Yes, allow once"


COMMANDS: Final = (
    "mkdir -p src/parts",
    "touch src/parts/a.txt",
    "echo one > src/parts/a.txt",
    "echo two >> src/parts/a.txt",
    "cat > src/b.py <<'EOF'\nprint('$HOME')\nEOF",
    "printf 'x\\n' | tee src/c.txt",
    "cp notes.txt src/copy.txt",
    "cp -r src backup",
    "mv src/copy.txt src/moved.txt",
    "rm src/moved.txt",
    "rm -rf backup",
    "sed -i 's/apples/oranges/' notes.txt",
    "ln -s notes.txt link.txt",
    "chmod +x src/b.py",
    "cd src && mkdir -p more && touch more/d.txt",
    "cat notes.txt | sort > sorted.txt 2>/dev/null",
    "git diff > change.patch",
    "git checkout notes.txt",
    "patch -p1 < change.patch",
    "npm test",
    "python3 -m pip install --no-index nothing",
    "make -n",
    "python3 -c 'print(6 * 7)'",
    "curl -s {url}/models",
    "find . -name '*.pyc' -delete",
    "tar czf src.tgz src",
    "tar xzf src.tgz",
    "grep -rn apples .",
    "touch ../outside.txt",
    "git add -A",
    "git commit -m work",
    "git stash",
    "python3 -c 'print(6 * 7)' > out.txt",
    "npm test > test.log 2>&1",
    "curl -so models.json {url}/models",
    "mkdir $(date +%F)",
    "echo x > package.json",
    "ls -la",
    "pwd",
    "git status --short",
    "git log --oneline -3",
    "head -3 notes.txt",
    "wc -l notes.txt",
    "mkdir -m 700 private",
    "rmdir private",
    "truncate -s 0 src/empty.txt",
    "dd if=notes.txt of=src/dd.txt",
    "install -m 644 notes.txt src/installed.txt",
    "sort -o sorted.txt sorted.txt",
    "npm test 2>&1 | tail",
    "for f in 1 2; do echo $f > src/$f.txt; done",
    "cd src && ls",
    "env | sort | head -3",
    "date > stamp.txt",
    "diff notes.txt sorted.txt",
    "rm -rf src",
    "python3 --version",
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


def classified(stage: Stage) -> int:
    """Return how often the model was asked as the classifier."""
    return sum(CLASSIFICATION in json.dumps(body) for body in list(stage.model.bodies))


@pytest.mark.parametrize("program", PROGRAMS)
def test_commands_ask_as_without_the_layer(program: str) -> None:
    found: list[tuple[set[str], int]] = []
    for layer in (False, True):
        with Stage() as stage:
            url = stage.model.environment()["OPENAI_BASE_URL"]
            start(stage, program, layer)
            asks = asked(stage, [command.replace("{url}", url) for command in COMMANDS])
            found.append(({command.replace(url, "{url}") for command in asks}, classified(stage)))
            stage.end()
    print(f"{program}: {found[0][1]} requests of the classifier, asks {sorted(found[0][0])}")
    assert found[0] == found[1]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("layer", [False, True])
def test_the_users_own_rules_count(stage: Stage, program: str, layer: bool) -> None:
    start(stage, program, layer, allow=["Bash(mkdir *)"], ask=["Bash(touch *)"])
    assert asked(stage, ["mkdir -m 700 private", "touch x"]) == {"touch x"}
    assert not any(CLASSIFICATION in json.dumps(body) for body in stage.model.bodies)
