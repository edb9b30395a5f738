# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands that reach a place: turn the hops of a TRAMP name into a program's arguments, without a terminal."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from qwen_companion.base import git
from qwen_companion.base.errors import CompanionError
from qwen_companion.domain import Hop

OLDEST_NODE = 20
"""Oldest version of Node.js that runs today's Qwen Code."""

HOLD_S = 120.0
"""Seconds; a CLI gives up a stream that has not begun within 300."""

_SAFE = re.compile(r"[\w.%+:@\[\]][\w.%+:@\[\]-]*")
"""Safe names of users and hosts: no options, nothing special to a shell."""

_SSH_OPTIONS = (
    *("-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=2"),
    # The user's forwardings belong to their own connections; a shared connection would outlive ours.
    *("-o", "ClearAllForwardings=yes", "-o", "ControlMaster=no"),
)

# For any shell: one line in single quotes, without a quote, a backslash or an exclamation mark in it.
ADD_PATH = (
    # An interactive shell claims the terminal for its process group, unless its session has none.  Only the second
    # command is for csh.
    'PATH=$({ $(command -v setsid) "${SHELL:-sh}" -lic "printenv PATH" || "${SHELL:-sh}" -c "printenv PATH"; }'
    ' 2>/dev/null </dev/null | grep "^/" | tail -n 1):$PATH'
)
"""Adds the login shell's PATH: ssh, sudo and TRAMP set paths of their own."""

# By default Node.js uses 40 MB more for short-lived values and compiled code, and the allocator never frees them.
_START = (
    'lacks() { [ -x "$1" ] || return 0; case $("$1" -v) in v?.*|v1?.*) ;; *) return 1; esac; }; '
    f'n=$(command -v node); if lacks "$n"; then {ADD_PATH}; n=$(command -v node); fi; '
    '[ -x "$n" ] || { echo "qwen-companion: no node" >&2; exit 127; }; '
    "export MALLOC_ARENA_MAX=1 MALLOC_MMAP_THRESHOLD_=65536 MALLOC_TRIM_THRESHOLD_=65536; "
    'exec "$n" --max-semi-space-size=1 -e "$1"'
)

# Reads the length of the relay's source and the source, and runs it on the bytes that follow.
_BOOTSTRAP = (
    "const v=+process.versions.node.split(`.`)[0];"
    f"if(v<{OLDEST_NODE})" + "{process.stderr.write(`qwen-companion: node `+process.versions.node);process.exit(126)}"
    # A Node.js that lacks one of these flags prints that, before the mark, and goes on.
    "for(const f of [`optimize-for-size`,`no-opt`])require(`v8`).setFlagsFromString(`--`+f);"
    "let b=Buffer.alloc(0);const s=process.stdin;"
    "s.on(`data`,function r(d){b=Buffer.concat([b,d]);const e=b.indexOf(10);if(e<0)return;"
    "const n=+b.subarray(0,e);if(b.length<e+1+n)return;s.off(`data`,r);s.pause();"
    "process.stdout.write(Buffer.concat([Buffer.alloc(1),Buffer.from(`qwen-companion relay`),Buffer.alloc(1)]));"
    "new Function(`require`,`rest`,b.subarray(e+1,e+1+n).toString())(require,b.subarray(e+1+n))})"
)

# Qwen Code before 0.15.10 fails on the option; a question mark stands for a quote.
_RUN = (
    'cd "$1" || exit; . "$2"; export QWEN_COMPANION_TERMINAL="$3"; f=${2%sh}$3.prompts; shift 3; '
    f'command -v "$1" >/dev/null || {ADD_PATH}; p=$(readlink -f "$(command -v "$1")"); '
    'case $({ tr -d "[:space:]" <"${p%/*}/package.json"; } 2>/dev/null) in '
    "*?version?:?0.[0-9].*|*?version?:?0.1[0-4].*|*?version?:?0.15.[0-9]?,*) ;; "
    '*?name?:?@qwen-code/qwen-code?,*) set -- "$@" --input-file "$f" ;; esac; exec "$@"'
)
"""Runs a program with arguments in a directory, with a file of variables, in the terminal with a number.

If it is known to read prompts from a file, its argument names one beside the variables.
"""


class UnsupportedPlaceError(CompanionError):
    """A place cannot be reached; the text gives the reason."""


def relay_source(identifier: str, seconds: int, hold: float = HOLD_S) -> bytes:
    """Return the relay in the form that the bootstrap reads.  Reads a file.

    Relays of one place and Emacs share an `identifier`.  Without a pipe, a relay runs for `seconds` more, and makes a
    CLI that waits for its stream ask again after `hold` seconds.
    """
    safe = {
        "settings": git.SETTINGS,
        "variables": git.VARIABLES,
        "flags": git.FLAGS,
        "without": git.FILTERS_OFF,
        "unfiltered": sorted(git.NO_FILTERS),
    }
    keep = {"id": identifier, "seconds": seconds, "hold": hold, "git": safe}
    head = f"const KEEP={json.dumps(keep)};".encode("ascii")
    source = head + Path(__file__).with_name("relay.js").read_bytes()
    return b"%d\n" % len(source) + source


def relay_command(hops: Sequence[Hop], control: str | None) -> list[str]:
    """Return the command that runs the relay at the place with `hops`, over a pipe.

    `control` is the path of a shared ssh connection, with %-escapes, or None.  No program asks for a password.

    :raises UnsupportedPlaceError: for an invalid name, or a method without such a command
    """
    # In a shell's double quotes, JavaScript's backquotes would run programs; these quotes are single.
    return _reach(hops, control, ["sh", "-c", _START, "sh", _BOOTSTRAP], in_terminal=False)


def terminal_command(
    hops: Sequence[Hop], control: str | None, directory: str, variables: str, terminal: int, command: Sequence[str]
) -> list[str]:
    """Return the command that runs `command` there in `directory`, with the file `variables`.

    It is for the local terminal with the number `terminal`.

    :raises UnsupportedPlaceError: as `relay_command` does
    """
    return _reach(
        hops, control, ["sh", "-c", _RUN, "sh", directory, variables, str(terminal), *command], in_terminal=True
    )


def _reach(hops: Sequence[Hop], control: str | None, command: list[str], in_terminal: bool) -> list[str]:
    if not hops:
        raise UnsupportedPlaceError("TRAMP does not know its method")
    left = list(hops)
    while left:
        hop = left.pop()
        for name in (hop.user, hop.host, hop.port):
            if name and not _SAFE.fullmatch(name):
                raise UnsupportedPlaceError(f"{name!r} is no name of a host or user")
        if hop.method in _SSH_METHODS:
            # As in TRAMP, each hop runs the next ssh, with its own names, keys and known hosts.
            command = _ssh(hop, None if left else control, command, in_terminal)
        elif hop.method in _METHODS:
            command = _METHODS[hop.method](hop, command, in_terminal)
        else:
            raise UnsupportedPlaceError(f"TRAMP's method {hop.method} is not served; {_INSTEAD}")
    return command


def _ssh(hop: Hop, control: str | None, command: Sequence[str], in_terminal: bool) -> list[str]:
    words = ["ssh", *(["-tt"] if in_terminal else ["-T", "-o", "BatchMode=yes"]), *_SSH_OPTIONS]
    if control is not None:
        words += ["-o", f"ControlPath={control}"]
    if hop.user:
        words += ["-l", hop.user]
    if hop.port:
        words += ["-p", hop.port]
    return [*words, "--", hop.host, f"exec {shlex.join(command)}"]


def _sudo(hop: Hop, command: list[str], in_terminal: bool) -> list[str]:
    return ["sudo", *([] if in_terminal else ["-n"]), "-H", "-u", hop.user or "root", "--", *command]


def _doas(hop: Hop, command: list[str], in_terminal: bool) -> list[str]:
    return ["doas", *([] if in_terminal else ["-n"]), "-u", hop.user or "root", *command]


def _container(program: str) -> Callable[[Hop, list[str], bool], list[str]]:
    def reach(hop: Hop, command: list[str], in_terminal: bool) -> list[str]:
        user = ["-u", hop.user] if hop.user else []
        return [program, "exec", "-it" if in_terminal else "-i", *user, hop.host, *command]

    return reach


def _kubectl(hop: Hop, command: list[str], in_terminal: bool) -> list[str]:
    container, _, pod = hop.host.rpartition(".")
    options = ["-c", container] if container else []
    return ["kubectl", "exec", "-it" if in_terminal else "-i", pod, *options, "--", *command]


_SSH_METHODS = frozenset({"ssh", "sshx", "scp", "scpx", "rsync"})
_METHODS: dict[str, Callable[[Hop, list[str], bool], list[str]]] = {
    "sudo": _sudo,
    "doas": _doas,
    "docker": _container("docker"),
    "podman": _container("podman"),
    "kubernetes": _kubectl,
}
_INSTEAD = f"visit files by one of {', '.join(sorted({*_SSH_METHODS, *_METHODS}))}, as /sudo:USER@HOST: for su"
"""The remedy for another method: there is a way to most places by one of these."""

_DOAS = "doas asks for a password; add a rule with nopass to doas.conf, or log in as that user by ssh"
_FAILURES = (
    ("qwen-companion: no node", "there is no Node.js there, which Qwen Code needs; install it, or put `node' on PATH"),
    (
        "HOST IDENTIFICATION HAS CHANGED",
        "its host key is another one than before; find out why, then see ssh-keygen -R",
    ),
    ("Host key verification failed", "ssh does not know its host key; log in there once with ssh in a terminal"),
    (
        "Permission denied",
        "ssh needs a password; let TRAMP log in by visiting a file there, with `tramp-use-connection-share' at its "
        "default, or add a key to ssh-agent; M-x qwen-companion-serve-place tries again",
    ),
    (
        "a password is required",
        "sudo asks for a password; add a rule with NOPASSWD to sudoers, or log in as that user by ssh",
    ),
    ("Authentication required", _DOAS),
    ("Authorization required", _DOAS),
    ("Could not resolve hostname", "there is no host of that name"),
    ("Connection refused", "no ssh server answers there"),
    ("Connection timed out", "it does not answer"),
)
"""Output of programs that cannot reach a place, with its meaning and remedy."""


def is_lasting(output: str) -> bool:
    """Return whether retrying is useless before the user acts, by the program's `output`."""
    return any(text in output for text, _ in _FAILURES[:-3]) or "qwen-companion: node" in output


def failure(output: str) -> str:
    """Return why a command failed, for the user, from its `output`."""
    old = re.search(r"qwen-companion: node ([\d.]+)", output)
    if old is not None:
        return f"Node.js there is {old[1]}, and Qwen Code needs {OLDEST_NODE} or newer"
    for text, meaning in _FAILURES:
        if text in output:
            return meaning
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    # The last line of a crash of Node.js is its version.
    error = next((line for line in lines if re.match(r"\w*Error\b.*: ", line)), lines[-1] if lines else "")
    return error[:200] or "the command ended without a word"
