# SPDX-License-Identifier: GPL-3.0-or-later
"""Imports of the backend point downward only: no circle among modules or packages, and doors at the outside.

A door is a room in which something outside of this process is spoken with: CLIs, their hooks, the daemon, models,
other places, Emacs.  The other rooms are the core: what they do does not depend on who asks.  Doors know the core and
not each other, and the core knows no door, but for what `KNOWN_DOORS` has, with the reasons.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from support import PYTHON_DIRECTORY

PACKAGE = "qwen_companion"
DOORS = frozenset(("daemon", "doors", "wire", "ide", "remote", "tools"))

KNOWN_DOORS = {
    ("conversations", "doors"): "the events of hooks say where a conversation is recorded, and when a turn begins",
    ("daemon", "doors"): "a daemon that is started here gets a settings layer of its own",
    ("daemon", "wire"): "the daemon's messages to Emacs are declared as all messages are",
    ("doors", "ide"): "a proposal is the same, whether a tool of MCP or a hook has brought it",
    ("wire", "doors"): "the journal and the list of CLIs are answered here, and listen to hooks",
    ("journal", "doors"): "the events of hooks are facts of which turns are made",
    ("remote", "doors"): "the layers and the files of held edits are those of this machine, at another place",
    ("remote", "wire"): "Emacs asks for places by its own messages",
    ("remote", "ide"): "the context of a CLI at a place is computed as that of one here",
    ("tools", "doors"): "problems are reported to the model with the answers to hooks",
    ("tools", "wire"): "a call of the model becomes a message to Emacs",
    ("tools", "ide"): "the HTTP server and the processes of CLIs are those of the IDE protocol",
}
"""Doors that a room knows, each with the reason."""

MAY_START_PROGRAMS = {f"{PACKAGE}.base.programs", f"{PACKAGE}.daemon.supervisor"}
"""Modules that start programs: for the others, and a script of the standard library alone."""

STARTS_PROGRAM = re.compile(
    r"subprocess\.(Popen|run|call|check_\w+|get\w*output)|os\.(system|popen|startfile|exec\w+|spawn\w+|posix_spawn\w*|fork\w*)"
    r"|pty\.\w+|(anyio|to_process)\.(open_process|run_process|run_sync)|asyncio\.create_subprocess_\w+|shutil\.which"
    r"|multiprocessing\..*|runpy\..*"
)


def imports_of(source: str, modules: frozenset[str]) -> set[str]:
    """Return those of `modules` that `source` imports, at the top, in a function or for the type checker only."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            # `from package import module` imports the module, and `from module import name` the module as well.
            found.update(names & modules or {node.module})
    return found & modules


@pytest.fixture(scope="module")
def backend_graph() -> dict[str, set[str]]:
    return graph_of(PYTHON_DIRECTORY)


def graph_of(directory: Path) -> dict[str, set[str]]:
    """Return for each module of the backend in `directory` the modules of the backend that it imports."""
    paths = {_name(path.relative_to(directory)): path for path in (directory / PACKAGE).rglob("*.py")}
    return {name: imports_of(path.read_text(), frozenset(paths)) - {name} for name, path in paths.items()}


def packages_of(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return `graph` with each package as one node; modules at the top stand for themselves."""
    result: dict[str, set[str]] = {}
    for module, imported in graph.items():
        result.setdefault(_package(module), set()).update(_package(name) for name in imported)
    return {name: imported - {name} for name, imported in result.items()}


def _name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _package(module: str) -> str:
    return ".".join(module.split(".")[:2])


def test_neither_modules_nor_packages_import_each_other_in_a_circle(backend_graph: dict[str, set[str]]) -> None:
    assert f"{PACKAGE}.ide.server" in backend_graph[f"{PACKAGE}.companion"]
    for imports in (backend_graph, packages_of(backend_graph)):
        TopologicalSorter(imports).prepare()


def test_doors_know_not_each_other_and_the_core_no_door(backend_graph: dict[str, set[str]]) -> None:
    rooms = {path.name for path in (PYTHON_DIRECTORY / PACKAGE).iterdir() if (path / "__init__.py").exists()}
    packages = packages_of(backend_graph)
    known = {
        (room, door)
        for room in rooms
        for door in DOORS - {room}
        if f"{PACKAGE}.{door}" in packages[f"{PACKAGE}.{room}"]
    }
    assert known == KNOWN_DOORS.keys()


def starts_of(source: str) -> list[str]:
    """Return the calls in `source` that start or find programs."""
    nodes = ast.walk(ast.parse(source))
    calls = [ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)]
    names = [
        f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    return [name for name in (*calls, *names) if STARTS_PROGRAM.fullmatch(name)]


def test_one_module_starts_programs() -> None:
    paths = {_name(path.relative_to(PYTHON_DIRECTORY)): path for path in (PYTHON_DIRECTORY / PACKAGE).rglob("*.py")}
    starting = {name for name, path in paths.items() if starts_of(path.read_text())}
    assert starting == MAY_START_PROGRAMS


@pytest.mark.parametrize(
    "line",
    ["subprocess.run(['git'])", "from subprocess import Popen", "os.execvp('git', [])", "anyio.open_process('git')"],
)
def test_a_program_that_is_started_is_seen(line: str) -> None:
    assert starts_of(f"def f():\n    {line}")


def test_the_types_of_the_domain_import_nothing(backend_graph: dict[str, set[str]]) -> None:
    assert backend_graph[f"{PACKAGE}.domain"] == set()


@pytest.mark.parametrize(
    "line",
    [
        f"import {PACKAGE}.b.d",
        f"from {PACKAGE}.b import d",
        f"from {PACKAGE}.b.d import x",
        f"def f():\n    from {PACKAGE}.b import d",
    ],
)
def test_a_circle_is_seen_also_in_a_function_or_between_packages(line: str, tmp_path: Path) -> None:
    sources = {"a/__init__": "", "a/c": line, "a/e": "", "b/__init__": "", "b/d": f"from {PACKAGE}.a import e"}
    for name, source in sources.items():
        path = tmp_path / PACKAGE / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    graph = graph_of(tmp_path)
    TopologicalSorter(graph).prepare()
    with pytest.raises(CycleError):
        TopologicalSorter(packages_of(graph)).prepare()
