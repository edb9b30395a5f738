# SPDX-License-Identifier: GPL-3.0-or-later
"""The package as MELPA builds it: its files, and that an Emacs with nothing else can install and use it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from limit import limit_s

pytestmark = pytest.mark.long

CHECKOUT = Path(__file__).parents[2]

INSTALL = """(progn
  (require 'package)
  (setq package-user-dir (getenv "PACKAGES"))
  ;; Where Debian and `make build' have put epc.
  (let ((own (expand-file-name "../share/emacs/site-lisp/elpa" invocation-directory)))
    (add-to-list 'package-directory-list
                 (if (file-directory-p own) own "/usr/share/emacs/site-lisp/elpa")))
  (add-to-list 'package-directory-list (expand-file-name ".build/elpa" (getenv "CHECKOUT")))
  (package-initialize)
  (package-install-file (getenv "TAR")))"""

# Lint compiles the files with this Emacs.
DO_NOT_COMPILE = "(progn (require 'package) (advice-add 'package--compile :override #'ignore))"

USE = """(progn
  (unless (commandp 'qwen-companion-mode) (error "No autoloads"))
  (require 'qwen-companion)
  (princ (format "mode %s\\n" qwen-companion-mode))
  (princ (format "lock %s\\n" (file-readable-p (qwen-companion-environment--lock)))))"""


EMACS = os.environ.get("EMACS", "emacs")
OTHER_EMACS = CHECKOUT / ".build/other-emacs"


def emacs(arguments: Sequence[str], variables: dict[str, str], program: str = EMACS) -> str:
    """Run a bare Emacs in batch mode with `arguments`; return its output on both channels."""
    done = subprocess.run(
        [program, "-Q", "--batch", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s(),
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tar file of the package."""
    if not (CHECKOUT / ".git").exists():
        pytest.skip("this is no clone: the package is built from what is committed")
    target = tmp_path_factory.mktemp("package")
    subprocess.run([CHECKOUT / "scripts/package", target], check=True, capture_output=True, timeout=limit_s())
    [tar] = target.iterdir()
    return tar


def test_it_holds_what_runs_and_nothing_else(package: Path) -> None:
    with tarfile.open(package) as tar:
        names = [name.split("/", 1)[1] for name in tar.getnames() if "/" in name]
    allowed = re.compile(
        r"qwen-companion(-pkg)?\.el|lisp(/[a-z]+)?(/qwen-companion-[a-z-]+\.el)?|qwen-companion\.info|dir"
        r"|python(/requirements\.lock)?"
        r"|python/qwen_companion(/[a-z_]+)*(\.py|/py\.typed|/relay\.js)?"
    )
    assert [name for name in names if not allowed.fullmatch(name)] == []
    assert {
        "qwen-companion.el",
        "qwen-companion-pkg.el",
        "python/requirements.lock",
        "python/qwen_companion/remote/relay.js",
    } <= set(names)


def test_an_emacs_with_nothing_else_installs_and_loads_it(package: Path, tmp_path: Path) -> None:
    install(package, tmp_path, ["--eval", DO_NOT_COMPILE])


def test_another_emacs_compiles_it_without_a_warning(package: Path, tmp_path: Path) -> None:
    missing = OTHER_EMACS / "missing"
    if not (OTHER_EMACS / "emacs").exists():
        why = missing.read_text().strip() if missing.exists() else "run scripts/other-emacs"
        pytest.skip(f"no other Emacs: {why}")
    install(package, tmp_path, [], str(OTHER_EMACS / "emacs"))
    assert len(list(tmp_path.glob("qwen-companion-*/lisp/*/*.elc"))) > 60


def install(package: Path, target: Path, before: list[str], program: str = EMACS) -> None:
    """Install `package` below `target` in an Emacs with the arguments `before`, and load it there."""
    variables = {"PACKAGES": str(target), "TAR": str(package), "CHECKOUT": str(CHECKOUT), "HOME": str(target)}
    said = emacs([*before, "--eval", INSTALL, "--eval", USE], variables, program)
    assert "mode nil\nlock t\n" in said
    # A slow Emacs names the files it extracts, errors.py among them.
    told = [line for line in said.splitlines() if not line.startswith("Extracting...")]
    assert not [line for line in told if re.search("warning|error", line, re.IGNORECASE)], said


def test_compiling_an_update_removes_what_older_files_were_compiled_to(tmp_path: Path) -> None:
    shutil.copy(CHECKOUT / "qwen-companion.el", tmp_path)
    for name in ("qwen-companion-moved.elc", "qwen-companion-kept.elc", "qwen-companion-kept.el", "another.elc"):
        (tmp_path / name).touch()
    emacs(
        [
            "-L",
            str(CHECKOUT),
            "-l",
            "scripts/checkout.el",
            "-f",
            "batch-byte-compile",
            str(tmp_path / "qwen-companion.el"),
        ],
        {},
    )
    assert {path.name for path in tmp_path.glob("*.elc")} == {
        "another.elc",
        "qwen-companion-kept.elc",
        "qwen-companion.elc",
    }


def test_without_epc_it_says_what_to_do() -> None:
    [said] = emacs(
        [
            "-L",
            str(CHECKOUT),
            "--eval",
            "(condition-case err (require 'qwen-companion) (user-error (princ (cadr err))))",
        ],
        {"EMACSLOADPATH": ""},
    ).splitlines()
    assert re.search("epc.* is not installed; add MELPA .*package-install RET epc", said)
