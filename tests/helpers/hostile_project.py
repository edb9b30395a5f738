# SPDX-License-Identifier: GPL-3.0-or-later
"""A project that runs its own programs wherever somebody lets it: `python hostile_project.py DIRECTORY MARKERS`.

Each trap that goes off makes a file in the directory MARKERS, with the name of the trap.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

MODULES = ("csv", "json", "textwrap", "sitecustomize", "usercustomize", "runpy", "mcp", "qwen_companion", "typing")
"""Modules that Python imports from the working directory where it is not isolated."""

PROGRAMS = ("git", "python3", "node", "qwen", "uv", "find", "diff", "env", "head", "stat", "sh", "rg", "grep", "ssh")
"""Programs in node_modules/.bin, which some users have on their path by that relative name."""

HOOKS = ("post-checkout", "post-index-change", "reference-transaction", "post-commit", "pre-commit", "post-rewrite")

RELATIVE = "node_modules/.bin"


def make_hostile_project(directory: Path, markers: Path) -> None:
    """Make the repository `directory` with traps, whose files are written to `markers`."""
    markers.mkdir(parents=True, exist_ok=True)
    directory.mkdir(parents=True)

    def git(*words: str, at: Path = directory) -> None:
        variables = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        author = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
        subprocess.run(["git", *author, *words], cwd=at, env=os.environ | variables, check=True, capture_output=True)

    git("init", "--quiet")
    for name in ("a.txt", "b.txt", "sub/c.txt"):
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("one\ntwo\nthree\n")
    git("add", ".")
    git("commit", "--quiet", "-m", "begin")
    (directory / "b.txt").write_text("one\n2\nthree\n")
    git("commit", "--quiet", "-am", "second")
    # Git then compares its text, for which it runs the filter.
    os.utime(directory / "b.txt", (0, 0))
    git("worktree", "add", "--quiet", "-b", "other", "tree")
    git("update-index", "--add", "--cacheinfo", "160000,1234567890123456789012345678901234567890,module")
    for at in (directory, directory / "tree"):
        (at / "a.txt").write_text("one\n2\nthree\n")
    elsewhere = directory / ".elsewhere"
    elsewhere.mkdir()
    git("init", "--quiet", at=elsewhere)
    _set_traps(directory, markers, ("", "elsewhere-"))
    # Git has no such row, but prints one where names are not told from lines.
    forged = directory / ".git/worktrees/forged"
    forged.mkdir(parents=True)
    (forged / "HEAD").write_text("ref: refs/heads/main\n")
    (forged / "commondir").write_text("../..\n")
    (forged / "gitdir").write_text(f"/nowhere\n\nworktree {elsewhere}\nHEAD {'1' * 40}\nbranch refs/heads/x/.git\n")


def _set_traps(directory: Path, markers: Path, prefixes: Iterable[str]) -> None:
    for prefix, at in zip(prefixes, (directory, directory / ".elsewhere"), strict=True):
        own = at / ".git"

        def trap(name: str, then: str = "cat", prefix: str = prefix) -> str:
            return f"touch '{markers}/{prefix}{name}'; {then}"

        for hook in HOOKS:
            _write_script(own / "hooks" / hook, trap(f"hook-{hook}", "true"))
        drivers = ("evil", "evil.two")
        settings = "".join(
            f"""
[filter "{name}"]
    clean = "{trap(f"clean-{number}")}"
    smudge = "{trap(f"smudge-{number}")}"
    required = true
[filter "process-{name}"]
    process = "{trap(f"process-{number}")}"
[diff "{name}"]
    textconv = "{trap(f"textconv-{number}", "cat")}"
    command = "{trap(f"external-{number}", "true")}"
[merge "{name}"]
    driver = "{trap(f"merge-{number}", "true")}"
"""
            for number, name in enumerate(drivers)
        )
        (own / "included").write_text(settings)
        with (own / "config").open("a") as file:
            file.write(f"""
[core]
    fsmonitor = "{trap("fsmonitor", "true")}"
    sshCommand = "{trap("ssh", "true")}"
    pager = "{trap("pager")}"
    editor = "{trap("editor", "true")}"
    askPass = "{trap("askpass", "true")}"
[credential]
    helper = "!{trap("credential", "true")}"
[diff]
    external = "{trap("external", "true")}"
[gpg]
    program = "{trap("gpg", "true")}"
[log]
    showSignature = true
[commit]
    gpgSign = true
[status]
    submoduleSummary = true
[include]
    path = included
""")
        (at / ".gitattributes").write_text(
            "a.txt filter=evil diff=evil merge=evil\nb.txt filter=process-evil diff=evil\n"
        )
        info = own / "info"
        info.mkdir(exist_ok=True)
        (info / "attributes").write_text("sub/* filter=evil.two diff=evil.two\n")
        alternates = own / "objects/info"
        alternates.mkdir(exist_ok=True)
        (alternates / "alternates").write_text(f"{directory / '.elsewhere/.git/objects'}\n")
    _make_module_repository(directory, markers)
    for name in MODULES:
        (directory / f"{name}.py").write_text(f"open({str(markers / f'module-{name}')!r}, 'w')\n")
    programs = directory / RELATIVE
    for program in PROGRAMS:
        _write_script(programs / program, f"touch '{markers}/program-{program}'; exit 1")
        _write_script(directory / program, f"touch '{markers}/here-{program}'; exit 1")
    (directory / ".dir-locals.el").write_text(f'((nil . ((eval . (write-region "" nil "{markers}/dir-locals")))))\n')
    (directory / ".qwen").mkdir()
    (directory / ".qwen/settings.json").write_text("{}\n")


def _make_module_repository(directory: Path, markers: Path) -> None:
    """Make the repository of the submodule, whose settings `git status` obeys."""
    module = directory / "module"
    module.mkdir()
    subprocess.run(["git", "init", "--quiet"], cwd=module, check=True)
    with (module / ".git/config").open("a") as file:
        file.write(f"[core]\n    fsmonitor = \"touch '{markers}/module-fsmonitor'; true\"\n")
    (module / "m.txt").write_text("m\n")
    words = ("-c", "core.fsmonitor=false", "-c", "user.name=A", "-c", "user.email=a@example.org")
    for command in (("add", "."), ("commit", "--quiet", "-m", "x")):
        subprocess.run(["git", *words, *command], cwd=module, check=True)


def _write_script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


if __name__ == "__main__":
    make_hostile_project(Path(sys.argv[1]), Path(sys.argv[2]))
