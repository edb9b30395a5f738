# SPDX-License-Identifier: GPL-3.0-or-later
"""Another place to run CLIs at: an ssh server of its own on this machine, with the home of CLIs and the project.

So that each method is met, it may also be one behind a hop, another user, or a stand-in of a container.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from sandbox import Sandbox

SSHD: Final = Path("/usr/sbin/sshd")
PLACES: Final = {
    "ssh": "/ssh:far:",
    "hop": "/ssh:gate|ssh:far:",
    "docker": "/docker:box:",
    "ssh-docker": "/ssh:far|docker:box:",
    "sudo": "/sudo:{user}@localhost:",
}
"""What Emacs calls the places, by method; `Far.users` are the users in them."""
PLACE: Final = PLACES["ssh"]
SHARED: Final = "shared"
"""The name of a container whose files are also those of this machine."""
_USERS: Final = Path("/etc/passwd")
_USERS_LOCK: Final = Path("/etc/.pwd.lock")
_OURS: Final = re.compile(r"[^:]*:[^:]*:\d+:\d+:qwen-companion test (\d+):.*\n")
"""A line about a user of a test, with the process that runs it."""

# As root Emacs asks before it writes into a temporary directory; Emacs 28 has no docker of its own.  Backups
# are files that tests would find.
_TRAMP: Final = """
(progn
  (require 'tramp)
  (setq tramp-histfile-override nil tramp-verbose 1 tramp-allow-unsafe-temporary-files t password-cache nil
        make-backup-files nil)
  (add-to-list 'tramp-remote-path 'tramp-own-remote-path)
  (unless (assoc "docker" tramp-methods)
    (push '("docker" (tramp-login-program "docker") (tramp-login-args (("exec" "-it") ("%h") ("/bin/sh")))
            (tramp-remote-shell "/bin/sh") (tramp-remote-shell-args ("-i" "-c")))
          tramp-methods)))"""


def _change_users(remove: Collection[str], add: str = "") -> None:
    """Remove the users `remove`, and those of runs that were killed, and add the lines `add`."""

    def stays(line: str) -> bool:
        ours = _OURS.fullmatch(line)
        return ours is None or (line.split(":")[0] not in remove and psutil.pid_exists(int(ours[1])))

    with _USERS_LOCK.open("a") as lock:
        # As the programs do that change users.
        fcntl.lockf(lock, fcntl.LOCK_EX)
        lines = _USERS.read_text().splitlines(keepends=True)
        new = _USERS.with_name("passwd-qwen-companion-test")
        new.write_text("".join(line for line in lines if stays(line)) + add)
        new.chmod(0o644)
        new.replace(_USERS)


class Far:
    """A host `far` for the CLIs of `sandbox`, which have the variables of `environment`.

    `place` is how Emacs reaches it: by the hosts `far` and `gate`, the container `box` with processes and mounts of its
    own, the container `shared`, whose files Emacs sees too, or the `user` of `users` on this machine.
    """

    def __init__(self, sandbox: Sandbox, environment: Mapping[str, str], place: str) -> None:
        # Other runs on this machine have users of their own.
        self.users = {name: f"{name}-{sandbox.root.name.removeprefix('qc-')}" for name in ("user",)}
        self.place = place.format_map(self.users)
        self.label = re.split("[:|]", self.place)[-2]
        self.root = sandbox.root / "far"
        self.home = sandbox.home
        self.project = sandbox.project
        self.file = sandbox.greeting
        self.mounted = self.root / "mounted"
        """Where the container `shared` has the project too."""
        # Names and texts are UTF-8 there all the same.
        path = f"{self.root}/bin:{environment['PATH']}"
        self._environment = {**environment, "PATH": path, "LC_ALL": "C"}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._has_users = "{user}" in place
        self._sandbox = sandbox
        self._server: subprocess.Popen[bytes] | None = None
        self._port = 0
        self.root.mkdir(mode=0o700)
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.root / name], check=True)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port = probe.getsockname()[1]
        self.trust(self.root / "host.pub")
        self._write_client()
        self._write_program("there", f'exec env {self._variables} "$@"')
        # Login shells, and sudo, have a PATH of their own.
        (self.home / ".profile").write_text(f"PATH='{self._environment['PATH']}'\n")
        if "sudo:{user}" in place:
            # As where its rules keep them; those of Node.js are for the CLIs' own, and the relay takes another one.
            kept = ",".join(self._environment.keys() - {"HOME", "PATH", "NODE_OPTIONS"})
            self._write_program("sudo", f'exec env {self._variables} /usr/bin/sudo --preserve-env={kept} "$@"')
        if self.label in ("box", SHARED):
            self._start_box()
        if self._has_users:
            self._add_users()
        self.start()

    @property
    def _variables(self) -> str:
        return shlex.join(f"{name}={value}" for name, value in self._environment.items())

    def _start_box(self) -> None:
        """Make a stand-in of docker."""
        self.mounted.mkdir()
        mounts = [{"Source": str(self.project), "Destination": str(self.mounted)}]
        (self.root / "inspected.json").write_text(json.dumps([{"Mounts": mounts}]))
        mount = shlex.join(("mount", "--bind", str(self.project), str(self.mounted)))
        options = ["--pid", "--fork", "--kill-child", "--mount-proc"]
        begin = f"{mount}; echo up; exec sleep infinity"
        box = subprocess.Popen(["unshare", *options, "sh", "-c", begin], stdout=subprocess.PIPE)
        self._processes.append(box)
        assert box.stdout is not None
        assert box.stdout.readline() == b"up\n"
        (inside,) = psutil.Process(box.pid).children()
        enter = f"exec nsenter --target {inside.pid} --pid --mount --root -- env -i {self._variables}"
        self._write_program(
            "docker",
            f"case $1 in exec) ;; ps) printf '{self.label}\\t{self.project}\\n'; exit ;;"
            f" inspect) cat {self.root}/inspected.json; exit ;; *) exit 3 ;; esac\n"
            f'shift; while [ "$1" != {self.label} ]; do shift; done; shift\n'
            # As with docker, a terminal belongs to a process in the container.
            '! [ -t 0 ] || set setsid --wait --ctty "$@"\n'
            f'{enter} "$@"',
        )

    def _add_users(self) -> None:
        """Add a user, for real: another name of root's, since the files of this run are nobody else's to read."""
        run = f"qwen-companion test {os.getpid()}"
        _change_users((), f"{self.users['user']}:*:0:0:{run}:{self.home}:/bin/sh\n")

    def close(self) -> None:
        """Let nothing go on there."""
        self.stop()
        if self._has_users:
            _change_users(self.users.values())
        for process in self._processes:
            process.kill()
            process.communicate()
        for process in self._sandbox.processes():
            with suppress(psutil.NoSuchProcess):
                if process.environ().get("HOME") == str(self.home):
                    process.kill()

    def inside(self, command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> list[str]:
        """Return the command that runs `command` in `directory` with `environment`, among the processes there."""
        if self.label not in ("box", SHARED):
            return list(command)
        variables = [f"{name}={value}" for name, value in environment.items()]
        return [f"{self.root}/bin/docker", "exec", self.label, "env", "-i", "-C", str(directory), *variables, *command]

    def name(self, path: Path) -> str:
        """Return the name that Emacs has for `path` there."""
        return f"{self.place}{path}"

    @property
    def laid(self) -> list[Path]:
        """The files that a companion has laid there."""
        folder = self.home / ".qwen/ide"
        # It goes when the last of them has; a glob would look into it a moment later.
        with suppress(FileNotFoundError):
            return sorted(folder.iterdir())
        return []

    def trust(self, key: Path) -> None:
        """Make ssh take `key` for the public key of the host."""
        kind, text, *_ = key.read_text().split()
        (self.root / "known_hosts").write_text(f"[127.0.0.1]:{self._port} {kind} {text}\n")

    def start(self) -> None:
        """Start the server; returns when it listens."""
        # As usual, the profile alone says where the CLI is; ssh is one with a configuration of its own.
        known = {**self._environment, "PATH": f"{self.root}/bin:/usr/bin:/bin"}
        variables = " ".join(f'"{name}={value}"' for name, value in known.items() if '"' not in value)
        (self.root / "sshd_config").write_text(
            textwrap.dedent(f"""\
                Port {self._port}
                ListenAddress 127.0.0.1
                HostKey {self.root}/host
                PidFile none
                UsePAM no
                PasswordAuthentication no
                KbdInteractiveAuthentication no
                StrictModes no
                AllowTcpForwarding no
                AllowStreamLocalForwarding no
                AuthorizedKeysFile {self.root}/user.pub
                SetEnv {variables}
                """)
        )
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        with (self.root / "sshd.log").open("ab") as log:
            # What it writes over its environment hides its mark, see leftovers.py.
            with_parent = ["setpriv", "--pdeathsig", "KILL"]
            command = [*with_parent, SSHD, "-D", "-e", "-f", self.root / "sshd_config"]
            self._server = subprocess.Popen(command, env=self._environment, stderr=log)
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self._port), timeout=5) as connection:
                    connection.recv(4)
                    return
            except ConnectionRefusedError:
                assert self._server.poll() is None, (self.root / "sshd.log").read_text()

    def links(self) -> list[psutil.Process]:
        """Return the processes here that carry what the relay there says."""
        found: list[psutil.Process] = []
        for process in self._sandbox.processes():
            with suppress(psutil.NoSuchProcess):
                if "BatchMode=yes" in process.cmdline():
                    found.append(process)
        return found

    def stop(self) -> None:
        """Stop the server; connections that are open go on."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None

    def _write_client(self) -> None:
        (self.root / "ssh_config").write_text(
            textwrap.dedent(f"""\
                Host far gate
                    HostName 127.0.0.1
                    Port {self._port}
                    IdentityFile {self.root}/user
                    IdentitiesOnly yes
                    UserKnownHostsFile {self.root}/known_hosts
                    StrictHostKeyChecking yes
                    LogLevel ERROR
                """)
        )
        (self.root / "bin").mkdir()
        self._write_ssh("")

    def _write_ssh(self, before: str) -> None:
        # It reads the configuration of the user in the password database, whatever HOME says.
        self._write_program("ssh", f'{before}exec /usr/bin/ssh -F {self.root}/ssh_config "$@"')

    def _write_program(self, name: str, text: str) -> None:
        program = self.root / "bin" / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o700)

    def slow_down(self, seconds: float, start: float = 0) -> None:
        """Make the line to the next relay take half of `seconds` each way, and `start` seconds to come up."""
        script = Path(__file__).with_name("slow_line.py")
        ssh = f'/usr/bin/ssh -F {self.root}/ssh_config "$@"'
        self._write_ssh(f'[ "$1" != -T ] || {{ sleep {start}; exec {sys.executable} {script} {seconds / 2} {ssh}; }}\n')

    def want_password(self, *, is_logged_in: bool) -> None:
        """Make the next ssh without a terminal fail unless TRAMP `is_logged_in`, as where no key is known."""
        refuse = "{ echo 'Permission denied (password).' >&2; exit 255; }"
        self._write_ssh("" if is_logged_in else f'[ "$1" != -T ] || {refuse}\n')

    @property
    def apart(self) -> list[str]:
        """The beginning of a command for a program here, which then has none of the files there by their own names."""
        # sudo would have none either.
        if os.getuid() != 0 or self._has_users or self.label == SHARED:
            return []
        hide = 'mount -t tmpfs none "$1" && mount -t tmpfs none "$2" && shift 2 && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", hide, "sh", str(self.home), str(self.project.parent)]

    @property
    def serve(self) -> str:
        """The form with which Emacs serves the CLIs there without a question."""
        return f'(setq qwen-companion-remote-places \'(("{self.place}" . serve)))'

    @property
    def ready(self) -> str:
        """The form that is true while they are served."""
        message = f'(qwen-companion-places-message "{self.place}")'
        return f"(eq 'ready (qwen-companion-place-state {message}))"

    @property
    def use(self) -> str:
        """The form with which Emacs reaches it."""
        folder = self.root / "bin"
        return (
            f'(progn (push "{folder}" exec-path) (setenv "PATH" (concat "{folder}:" (getenv "PATH"))) {_TRAMP}'
            f' (setq tramp-persistency-file-name "{self.root}/tramp")'
            " (add-to-list 'tramp-remote-path 'tramp-own-remote-path) nil)"
        )
