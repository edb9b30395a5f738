# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands that reach a place, by the hops that TRAMP names."""

from __future__ import annotations

import os
import pty
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from qwen_companion.domain import Hop
from qwen_companion.remote.commands import UnsupportedPlaceError, relay_command, terminal_command

TERMINAL = ("/d d", "/v.sh", 7, ("qwen", "-c"))


def heads(*hops: Hop, control: str | None = None) -> list[str]:
    """Return the words of the command up to the shell that it runs, options of ssh with their values left out."""
    words = relay_command(hops, control)
    kept: list[str] = []
    while words:
        word = words.pop(0)
        if word == "-o":
            words.pop(0)
        elif word.startswith("exec "):
            words = shlex.split(word)[1:]
        elif word == "sh":
            return kept
        else:
            kept.append(word)
    raise AssertionError(kept)


def test_each_method_has_its_command() -> None:
    assert heads(Hop("ssh", "host", "me", "2222")) == ["ssh", "-T", "-l", "me", "-p", "2222", "--", "host"]
    assert heads(Hop("scp", "::1")) == ["ssh", "-T", "--", "::1"]
    assert heads(Hop("ssh", "a", "u", "1"), Hop("ssh", "b"), Hop("sudo", "b", "root")) == [
        *("ssh", "-T", "-l", "u", "-p", "1", "--", "a"),
        *("ssh", "-T", "--", "b"),
        *("sudo", "-n", "-H", "-u", "root", "--"),
    ]
    assert heads(Hop("doas", "localhost", "www")) == ["doas", "-n", "-u", "www"]
    assert heads(Hop("podman", "box", "me")) == ["podman", "exec", "-i", "-u", "me", "box"]
    assert heads(Hop("ssh", "h"), Hop("docker", "box")) == ["ssh", "-T", "--", "h", "docker", "exec", "-i", "box"]
    assert heads(Hop("kubernetes", "app.pod")) == ["kubectl", "exec", "-i", "pod", "-c", "app", "--"]


def test_a_shared_connection_is_used_for_the_first_hop_only() -> None:
    assert "ControlPath=/tmp/c.%C" in relay_command([Hop("ssh", "host")], "/tmp/c.%C")
    *first, second = relay_command([Hop("ssh", "a"), Hop("ssh", "b")], "/tmp/c.%C")
    assert "ControlPath=/tmp/c.%C" in first
    assert "ControlPath" not in second
    assert shlex.split(second)[:3] == ["exec", "ssh", "-T"]


def test_a_terminal_gets_one_there() -> None:
    words = terminal_command([Hop("ssh", "host")], None, *TERMINAL)
    assert words[:2] == ["ssh", "-tt"]
    assert "BatchMode=yes" not in words
    assert shlex.split(words[-1])[-5:] == ["/d d", "/v.sh", "7", "qwen", "-c"]
    assert terminal_command([Hop("docker", "box")], None, *TERMINAL)[:4] == ["docker", "exec", "-it", "box"]
    assert "-n" not in terminal_command([Hop("sudo", "h", "root")], None, *TERMINAL)


@pytest.mark.parametrize(
    ("package", "reads_prompts"),
    [
        ('{\n "name": "@qwen-code/qwen-code",\n "version": "0.24.4",\n "a": 1}', True),
        ('{"name":"@qwen-code/qwen-code","version":"0.15.10","a":1}', True),
        ('{"name":"@qwen-code/qwen-code","version":"1.0.0","a":1}', True),
        ('{"name":"@qwen-code/qwen-code","version":"0.15.9","a":1}', False),
        ('{"name":"@qwen-code/qwen-code","version":"0.14.0","a":1}', False),
        ('{"name":"@qwen-code/qwen-code","version":"0.9.1","a":1}', False),
        ('{"name":"qwen","version":"0.24.4","a":1}', False),
        ("", False),
        (None, False),
    ],
)
def test_a_cli_that_can_reads_prompts_from_a_file_there(
    tmp_path: Path, package: str | None, reads_prompts: bool
) -> None:
    folder = tmp_path / "a package"
    folder.mkdir()
    (folder / "cli.js").write_text('#!/bin/sh\nprintf "%s|" "$QWEN_COMPANION_TERMINAL" "$PWD" "$@"\n')
    (folder / "cli.js").chmod(0o700)
    if package is not None:
        (folder / "package.json").write_text(package)
    program = tmp_path / "qwen"
    program.symlink_to(folder / "cli.js")
    variables = tmp_path / "emacs-1-2.sh"
    variables.write_text("")
    command = [str(program), "a b", "$c"]
    words = terminal_command([Hop("docker", "h")], None, str(folder), str(variables), 7, command)[4:]
    printed = subprocess.run(words, capture_output=True, encoding="utf-8", check=True).stdout
    option = ["--input-file", str(tmp_path / "emacs-1-2.7.prompts")] if reads_prompts else []
    assert printed == "|".join(["7", str(folder), "a b", "$c", *option, ""])


@pytest.mark.parametrize(
    ("hop", "reason"),
    [
        (Hop("su", "localhost"), "method su is not served; .* /sudo:USER@HOST: for su"),
        (Hop("ssh", "-oProxyCommand=x"), "no name of a host"),
        (Hop("ssh", "host", "$(x)"), "no name of a host"),
        (Hop("docker", "box;x"), "no name of a host"),
    ],
)
def test_what_cannot_be_reached_is_refused(hop: Hop, reason: str) -> None:
    with pytest.raises(UnsupportedPlaceError, match=reason):
        relay_command([hop], None)


@pytest.mark.parametrize("shell", [shell for shell in ("sh", "bash", "fish", "tcsh", "zsh") if shutil.which(shell)])
def test_any_login_shell_passes_the_command_on(shell: str) -> None:
    line = relay_command([Hop("ssh", "gate"), Hop("ssh", "host")], None)[-1]
    inner = shlex.split(line)[-1]
    for each, command in ((line, "ssh"), (inner, "sh")):
        printing = each.replace(f"exec {command}", "exec printf '%s|'", 1)
        printed = subprocess.run([shell, "-c", printing], capture_output=True, encoding="utf-8", check=True).stdout
        assert printed == "|".join([*shlex.split(each)[2:], ""])


POSIX = 'case $- in *i*) ;; *) return ;; esac\nPATH="$HOME/bin:$PATH"\nexport PATH\n'
"""The start file of a shell that sets PATH for interactive ones alone, as users' do."""


@pytest.mark.parametrize(
    ("shell", "profile"),
    [
        ("bash", ".profile"),
        ("bash", ".bash_profile"),
        ("bash", ".bashrc"),
        ("zsh", ".zprofile"),
        ("zsh", ".zshrc"),
        ("dash", ".profile"),
        ("fish", ".config/fish/config.fish"),
    ],
)
def test_a_program_of_the_login_shell_runs_in_the_foreground_of_its_terminal(
    tmp_path: Path, shell: str, profile: str
) -> None:
    """Node.js fails with EIO where the terminal belongs to another group of processes."""
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"there is no {shell} here")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/its-cli"
    program.write_text("#!/bin/sh\nexec ps -o stat= -p $$\n")
    program.chmod(0o700)
    (tmp_path / profile).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / profile).write_text("set -x PATH $HOME/bin $PATH\n" if shell == "fish" else POSIX)
    if profile == ".bashrc":
        # That of Debian; nvm writes into the other one.
        (tmp_path / ".profile").write_text('if [ -n "$BASH_VERSION" ]; then . "$HOME/.bashrc"; fi\n')
    hops, variables = [Hop("docker", "h")], tmp_path / "v.sh"
    variables.write_text("")
    words = terminal_command(hops, None, str(tmp_path), str(variables), 7, ["its-cli"])[4:]
    pid, terminal = pty.fork()
    if pid == 0:
        environ = {"HOME": str(tmp_path), "SHELL": path, "PATH": "/usr/bin:/bin", "TERM": "dumb"}
        os.execvpe(words[0], words, environ)  # noqa: S606 - no shell is wanted
    printed = b""
    with os.fdopen(terminal, "rb", buffering=0) as stream:
        try:
            while data := stream.read(1024):
                printed += data
        except OSError:  # How Linux says that the last program there has ended.
            pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, printed
    assert "+" in printed.decode()
