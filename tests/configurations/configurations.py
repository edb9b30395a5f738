# SPDX-License-Identifier: GPL-3.0-or-later
"""Go through the main job with the real CLI in each configuration of Emacs: `make configurations`.

A configuration is a file beside this one: Lisp that Emacs loads after the checkout, or NAME.sh, which a shell reads
before it starts Emacs.  Its first line says what it is; lines below that may say

    Packages: NAME...         Debian packages of Lisp, without "elpa-": unpacked into .build, never installed
    Terminal: COLUMNSxROWS    the size of the terminal
    Without STEP: REASON      a step that this configuration rules out

The table goes to docs/configurations.org; with names of configurations as arguments only these run, and it is printed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
CHECKOUT: Final = HERE.parents[1]
sys.path[:0] = [str(CHECKOUT / name) for name in ("python", "tests/e2e", "tests/helpers")]

import limit  # noqa: E402  the path is set first

LIMIT_S: Final = 30
"""How long a step may wait for something, in seconds."""
os.environ.setdefault(limit.VARIABLE, str(LIMIT_S))

from editor import PROGRAM, Emacs, lisp_string  # noqa: E402  the limit is set first
from main_job import PREPARE, STEPS, MainJob  # noqa: E402
from records import UNCAUGHT, keep_records  # noqa: E402
from sandbox import BUILD  # noqa: E402
from stage import Stage  # noqa: E402
from terminal import Screen  # noqa: E402

LISP: Final = BUILD / "configurations/lisp"
FAILURES: Final = BUILD / "configurations/failures"
TABLE: Final = CHECKOUT / "docs/configurations.org"
BEGIN: Final = "# Table: written by make configurations\n"
END: Final = "# End of table\n"
HELD: Final = "yes"
FAILED: Final = "NO"


@dataclass(frozen=True)
class Configuration:
    """The head of the file `path`."""

    path: Path
    title: str
    packages: tuple[str, ...]
    size: tuple[int, int]
    without: Mapping[str, str] = field(hash=False)


def read_configuration(path: Path) -> Configuration:
    """Return the configuration in the file `path`."""
    text = path.read_text(encoding="utf-8")
    title = re.match(r"[;#]+ (?:\S+ --- )?(.*?)(?: +-\*-.*)?\n", text)
    assert title is not None, f"{path.name} does not say what it is"
    fields = dict(re.findall(r"^[;#]+ ([A-Z][\w ]*): +(.*)$", text, re.MULTILINE))
    columns, rows = map(int, fields.get("Terminal", "130x50").split("x"))
    return Configuration(
        path,
        title[1],
        tuple(fields.get("Packages", "").split()),
        (columns, rows),
        {step: fields[f"Without {step}"] for step in STEPS if f"Without {step}" in fields},
    )


# --- Packages


def unpack(name: str) -> bool:
    """Unpack the Debian package `name` and all that it needs; return whether there is one."""
    if not directories_of(name):
        LISP.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=LISP) as folder:
            for package in _needed(name):
                download = ["apt-get", "download", "--quiet=2", f"elpa-{package}"]
                subprocess.run(download, cwd=folder, capture_output=True, check=False)
            for file in Path(folder).glob("*.deb"):
                subprocess.run(["dpkg-deb", "--extract", file, folder], check=True)
            for source in Path(folder).glob("usr/share/emacs/site-lisp/elpa-src/*"):
                if not (LISP / source.name).exists():
                    shutil.move(source, LISP / source.name)
        # Interpreted, some would need seconds for a key.
        directories = directories_of(name)
        where = [argument for path in directories for argument in ("-L", str(path))]
        files = [file for path in directories for file in path.glob("*.el")]
        compile_all = [PROGRAM, "-Q", "--batch", *where, "-f", "batch-byte-compile", *files]
        subprocess.run(compile_all, capture_output=True, check=False)
    return bool(list(LISP.glob(f"{name}-[0-9]*")))


def directories_of(name: str) -> list[Path]:
    """Return the directories of the unpacked package `name` and of those that it needs; nothing if it is not there."""
    if not list(LISP.glob(f"{name}-[0-9]*")):
        return []
    return [path for each in _needed(name) for path in LISP.glob(f"{each}-[0-9]*")]


def _needed(name: str) -> list[str]:
    """Return the names of the packages of Lisp that `name` needs, with its own."""
    weak = [f"--no-{kind}" for kind in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")]
    told = subprocess.run(
        ["apt-cache", "depends", "--recurse", *weak, f"elpa-{name}"], capture_output=True, encoding="utf-8", check=False
    )
    return sorted({name, *re.findall(r"^elpa-(\S+)$", told.stdout, re.MULTILINE)})


# --- One configuration


class _ConfiguredScreen(Screen):
    """A screen that reads the shell script `script`, if any, before it starts a program."""

    script: Path | None = None

    def start(self, command: Sequence[str], directory: Path) -> None:
        if self.script is not None:
            command = ["sh", "-c", '. "$0"; exec "$@"', str(self.script), *command]
        super().start(command, directory)


def start(stage: Stage, configuration: Configuration) -> None:
    """Start Emacs on `stage`, which has none, with `configuration`."""
    screen = _ConfiguredScreen(stage.sandbox.run, stage.here, *configuration.size)
    stage.screen, stage.emacs = screen, Emacs(stage.sandbox, screen, stage.here)
    directories = [path for name in configuration.packages for path in directories_of(name)]
    forms = [f"(add-to-list 'load-path {lisp_string(str(path))})" for path in directories]
    if configuration.path.suffix == ".el":
        forms.append(f"(setq main-job-configured (load {lisp_string(str(configuration.path))}))")
    else:
        screen.script = configuration.path
    stage.emacs.start(stage.sandbox.greeting, forms=(PREPARE, *forms))
    if configuration.path.suffix == ".el":
        assert stage.emacs.eval("main-job-configured") == "t", stage.emacs.buffer_text("*Messages*").splitlines()[-1]


def run(configuration: Configuration) -> dict[str, str]:
    """Go through the main job; return for each step whether it held, why not, or why it was left out.

    Steps after one that failed are not there.
    """
    results: dict[str, str] = {}
    with Stage() as stage:
        step = "start"
        try:
            start(stage, configuration)
            for step, act in MainJob(stage).steps.items():
                if step not in configuration.without:
                    act()
                results[step] = configuration.without.get(step, HELD)
            step = "end"
            uncaught = UNCAUGHT.findall(stage.emacs.buffer_text("*Messages*"))
            assert not uncaught, uncaught
            stage.end()
            results[step] = HELD
        except Exception as error:  # noqa: BLE001  whatever it is, the table says so
            results[step] = f"{FAILED}: {error or type(error).__name__}"
            keep_records(stage, FAILURES / configuration.path.stem)
            for process in stage.sandbox.processes():
                process.kill()
            stage.model.unscripted.clear()
    return results


# --- All of them


def run_apart(configuration: Configuration) -> dict[str, str]:
    """Return what `run` does in a process of its own, and print the first failure."""
    begun = time.monotonic()
    if missing := [name for name in configuration.packages if not unpack(name)]:
        return {"start": f"no Debian package elpa-{missing[0]}"}
    # No pipe: what outlives the run would keep it open.
    with tempfile.NamedTemporaryFile() as output:
        subprocess.run([sys.executable, __file__, "--one", str(configuration.path)], stdout=output, check=False)
        results: dict[str, str] = json.loads(Path(output.name).read_text() or f'{{"start": "{FAILED}: it broke off"}}')
    failed = next((f"{step}: {result}" for step, result in results.items() if result.startswith(FAILED)), "held")
    print(f"{configuration.path.stem}, {time.monotonic() - begun:.0f} s: {failed}", file=sys.stderr, flush=True)
    return results


def table(results: Mapping[Configuration, Mapping[str, str]]) -> str:
    """Return the table of `results`, and a list of the reasons where it says no, or nothing was tried."""
    columns = [*STEPS, "end"]
    lines = ["| configuration | " + " | ".join(columns) + " |", "|---" + "+---" * len(columns) + "|"]
    for configuration, of_it in results.items():
        # Nothing in the columns of steps that were not reached.
        cells = [of_it.get(column, "").split(":")[0] for column in columns]
        cells = [cell if cell in ("", HELD, FAILED) else "-" for cell in cells]
        lines.append(f"| {configuration.title} | " + " | ".join(cells) + " |")
    lines.append("")
    lines += [
        f"- {configuration.title}, {step} :: {result.removeprefix(FAILED + ': ').splitlines()[0]}"
        for configuration, of_it in results.items()
        for step, result in of_it.items()
        if result != HELD
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Run the configurations named in `arguments`, or all; return the exit status."""
    if arguments[:1] == ["--one"]:
        print(json.dumps(run(read_configuration(Path(arguments[1])))))
        return 0
    paths = sorted(path for path in HERE.iterdir() if path.suffix in (".el", ".sh"))
    chosen = [read_configuration(path) for path in paths if not arguments or path.stem in arguments]
    # Most of the time they wait.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = dict(zip(chosen, pool.map(run_apart, chosen), strict=True))
    if arguments:
        print(table(results))
    else:
        before, rest = TABLE.read_text(encoding="utf-8").split(BEGIN)
        date = datetime.now(timezone.utc).date()
        TABLE.write_text(f"{before}{BEGIN}On {date}:\n\n{table(results)}{END}{rest.split(END)[1]}", encoding="utf-8")
    return int(any(result.startswith(FAILED) for of_it in results.values() for result in of_it.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
