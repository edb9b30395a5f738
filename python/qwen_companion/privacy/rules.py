# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that hold secrets wherever they are, as data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Rule:
    """Patterns of files of a `kind`, given in words; names that match a pattern in `but` are exempt.

    A pattern in lower case is compared with as many of the last components of a name as it has itself.  A pattern that
    ends in a slash is compared with the directories on the way.  An asterisk matches any part of a component.  The case
    of names is ignored, as some disks ignore it.
    """

    kind: str
    patterns: tuple[str, ...]
    but: tuple[str, ...] = ()

    def match(self, path: str) -> str | None:
        """Return the pattern that matches `path`, a lower-case absolute name."""
        for pattern in self.patterns:
            if fragment(pattern) in path and _regex(pattern).search(path):
                return None if any(_regex(exception).search(path) for exception in self.but) else pattern
        return None


@cache
def fragment(pattern: str) -> str:
    """Return a text in all names that `pattern` matches.  Testing for it takes a tenth of the time of a search."""
    return max(pattern.strip("/").split("*"), key=len)


@cache
def _regex(pattern: str) -> re.Pattern[str]:
    parts = [re.escape(part).replace(r"\*", "[^/]*") for part in pattern.rstrip("/").split("/")]
    return re.compile("/" + "/".join(parts) + ("/" if pattern.endswith("/") else r"\Z"))


_SAMPLES = ("*example*", "*sample*", "*template*", "*.dist", "*.tmpl")

RULES = (
    Rule("environment variables, often secret", (".env*", "*.env", ".envs/", ".dev.vars*"), _SAMPLES),
    Rule("encrypted", ("*.gpg", "*.pgp", "*.age")),
    Rule(
        "a private key",
        (
            "id_rsa*",
            "id_dsa*",
            "id_ecdsa*",
            "id_ed25519*",
            "ssh_host_*_key",
            "*.pem",
            "*.key",
            "*.ppk",
            "*.p8",
            "*.p12",
            "*.pkcs12",
            "*.pfx",
            "*private*.asc",
            "*secret*.asc",
            "ssl/private/",
            "sops/age/keys.txt",
        ),
        ("*.pub",),
    ),
    Rule(
        "a store of keys or passwords",
        (
            ".ssh/",
            ".gnupg/",
            ".password-store/",
            "share/keyrings/",
            "*.jks",
            "*.keystore",
            "*.bcfks",
            "*.kdb",
            "*.kdbx",
            "*.keychain",
            "*.keychain-db",
            "*.plstore",
            "etc/shadow",
            "etc/gshadow",
            ".htpasswd",
        ),
    ),
    Rule("passwords for other machines", (".authinfo*", ".netrc", "_netrc", ".smbcredentials", ".git-credentials")),
    Rule("passwords for other machines", ("git/credentials", ".subversion/auth/", ".msmtprc", ".fetchmailrc")),
    Rule("passwords of databases", (".pgpass", "pgpass.conf", ".my.cnf", ".mylogin.cnf")),
    Rule(
        "credentials of a package registry",
        (
            ".npmrc",
            ".pypirc",
            ".gem/credentials",
            ".cargo/credentials",
            ".cargo/credentials.toml",
            ".m2/settings.xml",
            ".m2/settings-security.xml",
            ".gradle/gradle.properties",
            ".composer/auth.json",
            "composer/auth.json",
            ".docker/config.json",
            ".dockercfg",
        ),
    ),
    Rule(
        "credentials of a cloud or a cluster",
        (
            ".aws/credentials",
            ".aws/sso/",
            ".aws/cli/cache/",
            ".azure/msal_token_cache*",
            ".azure/accesstokens.json",
            ".config/gcloud/",
            "application_default_credentials.json",
            "credentials.json",
            "client_secret*.json",
            "service-account*.json",
            "service_account*.json",
            "serviceaccount*.json",
            ".kube/config",
            "kubeconfig",
            "*.kubeconfig",
            ".terraformrc",
            "credentials.tfrc.json",
            "*.tfstate",
            "*.tfstate.*",
            "*.tfvars",
            "*.tfvars.json",
            ".vault-token",
            ".vault_pass*",
            ".s3cfg",
            ".boto",
            ".rclone.conf",
            "rclone/rclone.conf",
        ),
        _SAMPLES,
    ),
    Rule("secrets of an application", ("secrets.json", "secrets.toml", "secrets.yaml", "secrets.yml")),
    Rule("a key to a private network", ("*.ovpn", "wireguard/*.conf")),
    Rule(
        "credentials of a command line tool",
        (
            "oauth_creds.json",
            "mcp-oauth-tokens*.json",
            ".claude/.credentials.json",
            ".codex/auth.json",
            ".config/gh/hosts.yml",
            ".config/hub",
            ".config/glab-cli/config.yml",
            ".config/github-copilot/",
        ),
    ),
    Rule(
        "the token of an editor",
        (
            ".qwen/ide/",
            ".claude/ide/",
            "qwen/ide/",
            "gemini/ide/",
            "qwen-code-ide-server-*.json",
            "gemini-ide-server-*.json",
        ),
    ),
    Rule("a history of commands", (".*_history", "fish_history", ".zhistory", ".histfile")),
)

_EDITORS = re.compile(
    r"#(?P<autosave>.+)#|\.#(?P<lock>.+)|\.(?P<swap>.+)\.sw[a-p]|(?P<backup>.+?)(?:~|\.~\d+~)", re.DOTALL
)

_COPY = re.compile(r"(?P<name>.+?)(?:~|\.~\d+~|\.(?:bak|old|orig|save|sw[a-p]))", re.DOTALL)


def secret(path: str) -> str | None:
    """Return the rule, in words, by which the absolute `path`, or its original, is a secret; None without one."""
    for spelling in dict.fromkeys((path, *_originals(path))):
        name = spelling.lower()
        for rule in RULES:
            pattern = rule.match(name)
            if pattern is not None:
                return f"{rule.kind} ({pattern})"
    return None


def edited_file(path: str) -> str | None:
    """Return the file being edited if `path` is named like an auto-save, lock, backup or swap file of it."""
    directory, _, name = path.rpartition("/")
    match = _EDITORS.fullmatch(name)
    return None if match is None else f"{directory}/{match[match.lastgroup or 0]}"


def _originals(path: str) -> list[str]:
    """Return possible originals of `path`, if it is named like an auto-save, lock, backup or swap file of an editor."""
    directory, _, name = path.rpartition("/")
    for prefix, suffix in (("#", "#"), (".#", "")):
        if name.startswith(prefix) and name.endswith(suffix):
            name = name[len(prefix) : len(name) - len(suffix)]
    copy = _COPY.fullmatch(name)
    if copy is not None:
        name = copy["name"]
    found = [f"{directory}/{name}"]
    if copy is not None and name.startswith("."):
        found.append(f"{directory}/{name[1:]}")  # Vim hides its swap file by a dot in front.
    if "!" in name:
        found.append(name.replace("!", "/"))  # Backups in one directory are named after the whole path.
    return found
