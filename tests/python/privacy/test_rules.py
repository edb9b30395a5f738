# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest

from qwen_companion.discovery.dialects import DIALECTS, Base
from qwen_companion.privacy.rules import RULES, secret

SECRETS = """
/p/.env /p/.env.local /p/.env.production /p/.envrc /p/prod.env /p/.envs/.local/.postgres /p/.dev.vars
/h/mail.org.gpg /h/.authinfo /h/.authinfo.gpg /h/.netrc /h/_netrc /h/.git-credentials /h/.config/git/credentials
/h/id_rsa /h/id_ed25519_work /p/server.pem /p/server.key /p/me.p12 /p/me.pfx /h/me.ppk /p/app.jks /p/app.keystore
/h/my-private.asc /h/.ssh/config /h/.ssh/known_hosts /h/.gnupg/pubring.kbx /h/.password-store/a/b /h/p.kdbx
/h/.pgpass /h/.my.cnf /h/.npmrc /p/.npmrc /h/.pypirc /h/.cargo/credentials.toml /h/.docker/config.json
/h/.aws/credentials /h/.aws/sso/cache/a.json /h/.kube/config /h/.config/gcloud/a.db /p/credentials.json
/p/service-account-prod.json /p/terraform.tfstate /p/terraform.tfstate.backup /p/prod.tfvars /h/.vault-token
/h/.qwen/oauth_creds.json /h/.gemini/oauth_creds.json /h/.bash_history /h/.local/share/fish/fish_history /etc/shadow
/h/.qwen/ide/4711.lock /tmp/qwen/ide/qwen-code-ide-server-1-2.json /tmp/gemini-ide-server-1-2.json
""".split()

ORDINARY = """
/p/.env.example /p/.env.sample /p/.env.template /p/.env.local.example /p/example.env /p/.env/bin/activate /p/env.py
/h/id_rsa.pub /p/id_mapping.py /p/keys.py /p/key /p/monkey /p/README.asc /p/environment.yml /p/src/credentials.py
/p/config.json /p/.config/config /p/kube/config /p/credentials/mod.rs /p/main.tf /p/history.txt /p/gpg.el /p/ssh/config
/p/terraform.tfvars.example /p/secrets.py /p/package.json /p/.qwen/settings.json /p/.gitignore /p/#notes# /p/notes.org~
""".split()


@pytest.mark.parametrize("path", SECRETS)
def test_a_file_of_secrets_is_known_by_its_name(path: str) -> None:
    assert secret(path)
    assert secret(path.upper())


@pytest.mark.parametrize("path", ORDINARY)
def test_an_ordinary_file_is_not_hidden(path: str) -> None:
    assert secret(path) is None


@pytest.mark.parametrize(
    "path",
    ["/h/.netrc~", "/h/.netrc.~12~", "/h/#.netrc#", "/h/.#.netrc", "/h/.netrc.swp", "/h/.netrc.bak", "/b/!h!.netrc~"]
    + ["/b/!h!.ssh!config~", "/h/.id_rsa.swp", "/a/#!h!.netrc#", "/h/a\nb.pem~"],
)
def test_a_copy_that_an_editor_makes_of_a_secret_is_one(path: str) -> None:
    assert secret(path)


def test_the_files_in_which_the_token_is_are_secret() -> None:
    for file in {dialect.file for dialect in DIALECTS}:
        name = file.name.format(pid=1, port=2)
        base = "/h/.qwen" if file.base is Base.HOME else "/tmp"
        assert secret("/".join([base, *file.directories, name]))


def test_each_pattern_can_be_met() -> None:
    for rule in RULES:
        for pattern in rule.patterns:
            name = "/h/" + pattern.replace("*", "x") + ("x" if pattern.endswith("/") else "")
            assert secret(name), pattern
            assert pattern == pattern.lower()
