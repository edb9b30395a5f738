# SPDX-License-Identifier: GPL-3.0-or-later
"""A place of its own for one run of Emacs and the CLI: home, temporary directory, a small project, an environment.

Nothing of the user's own configuration is read and nothing outside the place is written.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final

import psutil

import limit
from clis import QWEN_SETTINGS_FILE, SETTINGS
from leftovers import MARKER, end_with_this_process, marked, new_mark

CHECKOUT: Final = Path(__file__).resolve().parents[2]
BUILD: Final = CHECKOUT / ".build"

GREETING: Final = """\
# A small program to talk about.


def greet(name: str) -> str:
    return "hello " + name


def main() -> None:
    print(greet("world"))
"""
NOTES: Final = """\
shopping list
apples
pears
"""
EDITED: Final = GREETING.replace('"hello "', '"good day "')
NEW_NOTES: Final = NOTES.replace("pears", "plums")

# A start fills the usual 16 MB many times over, and each time all that is in use is copied.
NODE_OPTIONS: Final = f'--max-semi-space-size=64 --require="{Path(__file__).with_name("quick_cli.cjs")}"'
"""Options of Node.js with which the CLIs take less time."""

_CLI_SCRIPTS: Final = ("qwen", "cli-entry.js", "cli.js")
"""The scripts that a process of Qwen Code runs."""


class LeftoverError(AssertionError):
    """Something of a run is still there that should be gone."""


def has_ended(process: psutil.Process, timeout: float) -> bool:
    """Wait until `process`, any process, has ended, reaped by its parent or not; false after `timeout` seconds."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout)[0])
    finally:
        os.close(descriptor)


class Sandbox:
    """The directories and the environment of one run, below one short-named temporary directory.

    Short, because a Unix socket's name may have 107 bytes.
    """

    def __init__(
        self, parent: Path | None = None, relaunch: bool = False, elsewhere: bool = False, cli: str = "qwen"
    ) -> None:
        self._relaunch = relaunch
        self._cli = cli
        self.root = Path(tempfile.mkdtemp(prefix="qc-", dir=parent)).resolve()
        self.here = self.root / "home"
        """The home directory of Emacs."""
        self.home = self.root / "home user" if elsewhere else self.here
        """That of the CLIs, which is another one if they run `elsewhere`."""
        self.tmp = self.root / "tmp"
        self.projects = self.root / "projéts" if elsewhere else self.root
        self.project = self.projects / "project"
        self.run = self.root / "run"
        if MARKER not in os.environ:
            # In the demo or a measurement.
            end_with_this_process()
        self._mark = new_mark()
        for directory in (self.here, self.home, self.tmp, self.projects, self.project, self.run):
            directory.mkdir(mode=0o700, exist_ok=True)
        # Who has used the companion before is not welcomed.
        (self.here / ".local/state/qwen-companion").mkdir(mode=0o700, parents=True)
        if cli != "qwen":
            (self.run / "cli").mkdir()
            (self.run / "cli/qwen").symlink_to(BUILD / "bin" / cli)
        for name, settings in SETTINGS.items():
            self.write_cli_settings(settings, name)
        self.greeting = self.project / "greeting.py"
        self.notes = self.project / "notes.txt"
        self._make_project()

    def _make_project(self) -> None:
        self.greeting.write_text(GREETING)
        self.notes.write_text(NOTES)
        self._make_repository(self.project)

    def write_cli_settings(self, settings: Mapping[str, Any], name: str = QWEN_SETTINGS_FILE) -> None:
        """Make `settings` the user's of the CLI that has them in the file `name` below the home directory."""
        path = self._settings_path(name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(settings, indent=2))

    def _settings_path(self, name: str) -> Path:
        return self.home / name

    def make_project(self, name: str) -> Path:
        """Return a second project, with nothing in it."""
        directory = self.projects / name
        directory.mkdir(mode=0o700)
        self._make_repository(directory)
        return directory

    def _make_repository(self, directory: Path) -> None:
        identity = ("-c", "user.name=Test", "-c", "user.email=test@localhost")
        for arguments in (
            ("init", "--quiet"),
            ("add", "."),
            (*identity, "commit", "--quiet", "--allow-empty", "-m", "Start"),
        ):
            subprocess.run(["git", *arguments], cwd=directory, env=self.environment(), check=True)

    def environment(self, home: Path | None = None) -> dict[str, str]:
        """Return the whole environment for programs of this run with `home`, by default that of the CLIs."""
        home = home or self.home
        older = f"{self.run / 'cli'}:" if self._cli != "qwen" else ""
        return {
            MARKER: self._mark,
            "PATH": f"{older}{BUILD / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(home),
            "TMPDIR": str(self.tmp),
            "XDG_CONFIG_HOME": str(home / ".config"),
            "XDG_CACHE_HOME": str(home / ".cache"),
            "XDG_DATA_HOME": str(home / ".local/share"),
            "XDG_STATE_HOME": str(home / ".local/state"),
            "XDG_RUNTIME_DIR": str(self.run),
            "GIT_CONFIG_NOSYSTEM": "1",
            "LANG": "C.UTF-8",
            "SHELL": "/bin/sh",
            "TERM": "screen-256color",
            "QWEN_DEBUG_LOG_FILE": "1",
            limit.VARIABLE: f"{limit.limit_s():.0f}",
            # As with every start of a user's but the first.  Not shared with programs that run without these options:
            # what was compiled with others is thrown away.
            "NODE_COMPILE_CACHE": str(BUILD / "cache/node-compiled-for-tests"),
            "NODE_OPTIONS": NODE_OPTIONS,
            # Each CLI would start itself again, for more memory.
            **({} if self._relaunch else {"QWEN_CODE_NO_RELAUNCH": "true", "GEMINI_CLI_NO_RELAUNCH": "true"}),
        }

    def reset_files(self) -> bool:
        """Make the project, the only one, and the settings of CLIs as at first; return whether these still were."""
        kept = {self.here, self.home, self.tmp, self.projects, self.project, self.run, self.root / "far"}
        others = {*self.root.iterdir(), *self.projects.iterdir()} - kept
        for path in (*self.project.iterdir(), *others):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        self._make_project()
        changed = {name: settings for name, settings in SETTINGS.items() if self._read_cli_settings(name) != settings}
        for name, settings in changed.items():
            self.write_cli_settings(settings, name)
        return not changed

    def _read_cli_settings(self, name: str) -> Mapping[str, Any]:
        # The CLI adds the version of the format.
        settings = json.loads(self._settings_path(name).read_text())
        return {key: value for key, value in settings.items() if key != "$version"}

    # --- What is there

    @property
    def discovery_files(self) -> list[Path]:
        """Return all discovery files: all CLIs look for them in directories of the same name."""
        # Unlike a glob, it passes over a directory that goes meanwhile.
        folders = [(Path(path), names) for path, *names in os.walk(self.root) if os.path.basename(path) == "ide"]
        return sorted(folder / name for folder, names in folders for name in chain(*names))

    @property
    def lock_files(self) -> list[Path]:
        """The files from which Qwen Code of today learns of a companion."""
        return sorted((self.home / ".qwen" / "ide").glob("*.lock"))

    @property
    def spool_directories(self) -> list[Path]:
        """The private directories through which Emacs and its backend pass long texts."""
        return sorted(self.tmp.glob("qwen-companion-*"))

    def processes(self) -> list[psutil.Process]:
        """All live processes that were started in this run, directly or not."""
        return marked(self._mark)

    def backends(self) -> list[psutil.Process]:
        """Return the companion's Python processes."""
        found = [process for process in self.processes() if self._arguments(process)[-1:] == ["qwen_companion"]]
        # A child looks the same until it runs a program of its own.
        return [process for process in found if self._parent(process) not in {other.pid for other in found}]

    def backend(self) -> psutil.Process:
        """Return the companion's Python process; there must be exactly one."""
        (found,) = self.backends()
        return found

    def clis(self) -> list[psutil.Process]:
        """Return the processes of all CLIs; one CLI has several."""
        return [process for process in self.processes() if self._runs_cli(process)]

    def _runs_cli(self, process: psutil.Process) -> bool:
        # Not what starts one in a container, which has its name among its arguments.
        script = next((argument for argument in self._arguments(process) if not argument.startswith("-")), "")
        return os.path.basename(script) in _CLI_SCRIPTS

    @staticmethod
    def _parent(process: psutil.Process) -> int:
        try:
            return process.ppid()
        except psutil.NoSuchProcess:
            return 0

    @staticmethod
    def _arguments(process: psutil.Process) -> list[str]:
        try:
            return process.cmdline()[1:]
        except psutil.NoSuchProcess:
            return []

    # --- Ending

    def kill_clis(self) -> None:
        """Kill all CLIs by SIGKILL, children first: with its parent gone one would still end in its own way."""
        for process in sorted(self.clis(), key=psutil.Process.create_time, reverse=True):
            # The parent ends by itself when its child has.
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def wait_for_end(self, keep: tuple[str, ...] = ()) -> None:
        """Wait until no process of this run is left but those with a name in `keep`.

        What does not end in time is killed and raises LeftoverError.
        """
        timeout = limit.limit_s()
        deadline = time.monotonic() + timeout
        # One that is ending may still have started another: look again until nothing is seen.
        while left := [process for process in self.processes() if self._name(process) not in keep]:
            commands = [self._command(process) for process in left]
            alive = [process for process in left if not has_ended(process, max(0, deadline - time.monotonic()))]
            if alive:
                for process in alive:
                    process.kill()
                raise LeftoverError(f"still running after {timeout:.0f} s: {commands}")

    @staticmethod
    def _name(process: psutil.Process) -> str:
        try:
            return process.name()
        except psutil.NoSuchProcess:
            return ""

    @staticmethod
    def _command(process: psutil.Process) -> str:
        try:
            return f"{process.pid} {' '.join(process.cmdline())}"
        except psutil.NoSuchProcess:
            return f"{process.pid} (ended)"

    def assert_no_files(self) -> None:
        """Raise LeftoverError when a companion that ended has left files."""
        left = self.discovery_files + self.spool_directories
        if left:
            raise LeftoverError(f"files left behind: {', '.join(map(str, left))}")

    def remove(self) -> None:
        """Delete the directories."""
        try:
            shutil.rmtree(self.root)
        except OSError:
            # A program that was killed a moment ago has made a file meanwhile.
            shutil.rmtree(self.root)
