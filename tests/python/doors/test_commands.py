# SPDX-License-Identifier: GPL-3.0-or-later
"""Which commands may run in `auto` without a question though our layer makes the CLI ask about what they write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qwen_companion.doors.conditions import unasked_effects
from qwen_companion.doors.disk import Disk


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    for name in ("a.txt", "b.txt", "src/x.py", "src/deep/y.py", "web/package.json", "gh/workflows/ci.yml", "-rf"):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("text\n")
    (tmp_path / "secret").write_text("secret\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/x").touch()
    (directory / "out").symlink_to(tmp_path / "outside")
    (directory / "src/out").symlink_to(tmp_path / "outside")
    return directory


def files(command: str, project: Path, environ: dict[str, str], directory: str = "") -> list[str] | None:
    """Return the files that must be recorded for `command` to run, below the project; None where it must ask.

    Without those that it makes.
    """
    found = unasked_effects(command, str(project / directory), [str(project)], Disk(environ))
    paths = None if found is None else [path for path in map(Path, found.to_record(Disk(environ))) if path.exists()]
    return None if paths is None else [str(path.relative_to(project)) for path in paths]


@pytest.mark.parametrize(
    ("command", "recorded"),
    [
        ("mkdir -p src/parts other", []),
        ("touch a.txt new.txt", []),
        ("echo one > new.txt", []),
        ("echo 'it costs $5 > all' \"and more\" >> a.txt", ["a.txt"]),
        ("> a.txt", ["a.txt"]),
        ("cat > src/x.py <<'EOF'\nprint(\"$HOME\" + `x`)\nEOF\n", ["src/x.py"]),
        ("cat <<EOF > n1.txt && cat <<'B' > n2.txt\none\nEOF\n$two\nB", []),
        ("printf 'x\\n' | tee -a a.txt new.txt", ["a.txt"]),
        ("cat a.txt | sort -nr 2>/dev/null | head -n 3 > b.txt 2>&1", ["b.txt"]),
        ("git diff --stat > change.patch", []),
        ("cp a.txt b.txt", ["b.txt"]),
        ("cp a.txt b.txt src/", []),
        ("cp a.txt .", ["a.txt"]),
        ("cp -r src copy", []),
        ("cp -r src/deep copy", []),
        ("mv a.txt c.txt", ["a.txt"]),
        ("mv src/deep other", ["src/deep/y.py"]),
        ("rm -f a.txt none.txt", ["a.txt"]),
        ("rm -rf src/deep", ["src/deep/y.py"]),
        ("rm *.txt", ["a.txt", "b.txt"]),
        ("sed -i 's/one\\/two/three/g' a.txt", ["a.txt"]),
        ("sed -i -E 's|(a+)|b\\1|' a.txt", ["a.txt"]),
        ("sed 's/a/b/' a.txt > b.txt", ["b.txt"]),
        ("ln -s a.txt link", []),
        ("chmod +x src/x.py", ["src/x.py"]),
        ("cd src && mkdir -p more && touch more/x && echo 1 > x.py", ["src/x.py"]),
        ("mkdir -p new && mv a.txt new/", ["a.txt"]),
        ("mkdir -p new; cp a.txt new/; cp b.txt new/\ntouch new/c", []),
    ],
)
def test_commands_that_write_in_the_project(
    project: Path, environ: dict[str, str], command: str, recorded: list[str] | None
) -> None:
    assert files(command, project, environ) == recorded


@pytest.mark.parametrize(
    "command",
    [
        # Outside, by name or really.
        *(
            "touch ../x",
            "touch /tmp/x",
            "mkdir ~/x",
            "touch src/../../x",
            "echo x > out/x",
            "rm out",
            "rm -rf .",
            "cp a.txt out",
        ),
        *(
            "cp {outer}/secret x",
            "cat {outer}/secret > x",
            "cat < {outer}/secret > x",
            "ln -s {outer} x",
            "grep -r x / > x",
        ),
        *("cat out/x > y", "cd .. && touch x", "cd {outer} && touch x", "mv src {outer}/outside", "touch out/../a.txt"),
        # What `auto` protects, also below a directory and in the place of one.
        *("echo x > package.json", "rm -rf web", "mv gh .github", "cp -r gh/workflows .github", "cp -r gh/. .github"),
        *(
            "mkdir .qwen",
            "echo x >> .git/hooks/pre-commit",
            "rm -rf .git",
            "ln -s a.txt Makefile",
            "mv web x",
            "touch .husky/x",
        ),
        # Names that the command itself makes lead elsewhere.
        *(
            "ln -s src x && touch x/new",
            "cp -r src/deep x && echo 1 > x/y.py",
            "mv src/deep x; touch x/z",
            "cd src; touch x",
        ),
        *("echo 1 > gh/workflows/x && mv gh/workflows g", "mv new.txt x", "cp -r new x", "ln -s new x"),
        # Expansions and more of the shell.
        *(
            "mkdir $(date)",
            "touch $X",
            "touch `x`",
            'touch "$X"',
            "touch {{a,b}}",
            "touch x &",
            "(touch x)",
            "touch x # y",
            "touch [ab]",
        ),
        *(
            "cat > x <<EOF\n$(id)\nEOF",
            "cat > x <<'EOF'\nmore",
            "cat <<-'E' > x\nE",
            "cat <<< x > y",
            "diff <(a) b > x",
            "touch \\x",
        ),
        *(
            "touch 'x",
            "echo x >| a.txt",
            "echo x <> a.txt",
            "echo >",
            "> a.txt >",
            "touch x\r",
            "rm **",
            "rm *",
            "FOO=1 touch x",
        ),
        # Other programs, and options that do more.
        *(
            "python3 x > y",
            "npm test > log",
            "curl -o x http://x",
            "bash -c 'touch x'",
            "sudo touch x",
            "env touch x",
            "./rm x",
        ),
        *(
            "sed -i s/a/b/e a.txt",
            "sed -i 's/a/b/w x' a.txt",
            "sed -i '1e id' a.txt",
            "sed -i.bak s/a/b/ a.txt",
            "sed -iE s/a/b/ a.txt",
        ),
        *(
            "sed -n 'w x' a.txt",
            "sed -i -e s/a/b/ a.txt",
            "sort -o b.txt a.txt",
            "sort --compress-program=x a.txt > b.txt",
            "chmod u+s a.txt",
        ),
        *(
            "chmod 4755 a.txt",
            "cp -t src a.txt",
            "cp --parents a.txt src",
            "mv --backup a.txt b.txt",
            "git diff --output=x",
            "git -c a=b diff > x",
        ),
        *(
            "git add . && touch x",
            "git diff {outer}/secret {outer}/secret > x",
            "printf -v PATH . && touch x",
            "export X=1 && touch x",
        ),
        *(
            "touch --reference=a.txt x",
            "cd src || touch x",
            "true | cd src && touch x",
            "cd none && touch x",
            "cd && touch x",
        ),
        # No names of files.
        *("touch 'a\0b'", "touch '\ud800'"),
        # What our rule is not about: the CLI has another reason to ask.
        *("", "  ", "cat a.txt", "echo x > /dev/null", "npm test"),
    ],
)
def test_others_are_left_to_the_user(project: Path, environ: dict[str, str], command: str) -> None:
    assert files(command.format(outer=project.parent), project, environ) is None


@pytest.mark.parametrize(
    "command",
    [
        # A pattern for names that becomes an option, a script, or the directories above.
        *(
            "sed -i s,a*,b, a.txt",
            "sed s,a?,b, a.txt > x",
            "cat -* > x",
            "chmod -R +x .*",
            "cp -r .* gh",
            "ls src/.? > x",
        ),
        *("touch ./--target-directory=.. && cp *.* gh", "cp *.* gh | touch ./-t..", "mkdir -p ./-t../x && mv *.* gh"),
        # Variables of the shell.
        *("printf '%n' PATH && cp a.txt x", "printf 'x%s%5n' > x", "cd - && touch x", "touch x &> y"),
        # A directory that is changed to only if something before it succeeds.
        *("true && cd src && touch x; echo 1 > a.txt", "grep -q x a.txt && cd src && touch x"),
        # Programs that a repository names, where the model has made one.
        *("cd bare && git diff > x", "git diff bare > x && git status > y", "touch HEAD && git diff > x"),
        # What never ends, or fills the disk.
        *("tail -f a.txt > x", "tail --follow a.txt > x", "seq 99999999999 > x", "printf '%999999999s' > x"),
        # Through links to places that are not looked at.
        *("rm -rf inner/", "rm -rf inner/.", "rm -rf inn*/", "chmod -R +x inner", "chmod +x inner"),
        *("grep -R x src > x", "grep -r --dereference-recursive x src > x", "diff -r src web > x"),
        *("wc --files0-from=a.txt > x", "grep --file=a.txt x > y"),
        # What is not undone.
        *(
            "ln a.txt x",
            "ln -f a.txt b.txt",
            "echo x > linked",
            "echo x > to-linked",
            "chmod 777 gh",
            "chmod -R +x gh",
            "rmdir -p src/none",
        ),
        # Rules of what is recorded and shown.
        *("echo x >> .gitignore", "rm src/.gitignore", "echo x > .gitattributes", "cp a.txt .qwenignore"),
        *("mv a.txt .geminiignore", "rm -rf hidden", "touch .AIIGNORE"),
        "echo x > .gitconfig",
        # Places where the shell finds programs.
        *("cp a.txt bin/ls", "mv src/deep bin", "ln -s src/x.py bin/ls", "mv bin x", "rm -rf bin"),
    ],
)
def test_what_only_looks_plain_is_left_to_the_user(project: Path, environ: dict[str, str], command: str) -> None:
    for name in ("bare", "bin", "hidden", "src/none"):
        (project / name).mkdir()
    (project / "bare/HEAD").touch()
    (project / "hidden/.gitignore").touch()
    (project / "inner").symlink_to("src")
    (project / "linked").hardlink_to(project.parent / "secret")
    (project / "to-linked").symlink_to("linked")
    environ["PATH"] = f"/usr/bin:{project}/bin"
    assert files(command, project, environ) is None


def test_links_and_where_they_lead_have_to_be_recorded(project: Path, environ: dict[str, str]) -> None:
    (project / "inner").symlink_to("src")
    (project / "dangling").symlink_to("src/none")
    for command in ("rm inner", "ln -sfn src/deep inner"):
        assert "inner" in (files(command, project, environ) or ())
    found = unasked_effects("touch dangling", str(project), [str(project)], Disk(environ))
    assert found is not None
    assert str(project / "src/none") in found.to_record(Disk(environ))
    # A listing of the directory outside.
    assert files(f"ls > {project}/x", project, environ, "..") is None


def test_a_variable_leads_cd_elsewhere(project: Path, environ: dict[str, str]) -> None:
    assert files("cd src && touch x", project, environ) is not None
    environ["CDPATH"] = "/usr"
    assert files("cd src && touch x", project, environ) is None


def test_the_users_rules_say_nothing_about_redirections(project: Path, environ: dict[str, str]) -> None:
    user_rules(environ, allow=["Bash(npm test)"])
    assert files("npm test > a.txt", project, environ) == ["a.txt"]
    assert files(f"npm test > {project.parent}/x", project, environ) is None
    assert files("npm test > out/x", project, environ) is None


def test_a_command_in_a_directory_of_its_own(project: Path, environ: dict[str, str]) -> None:
    assert files("rm x.py", project, environ, "src") == ["src/x.py"]
    assert files("touch x", project, environ, "..") is None
    both = [str(project), str(project / "src")]
    assert unasked_effects("touch src/x", str(project), both, Disk(environ)) is not None
    assert unasked_effects("touch x", str(project), both, Disk(environ)) is None


def test_too_many_files(project: Path, environ: dict[str, str]) -> None:
    for number in range(201):
        (project / f"src/deep/{number}").touch()
    assert files("rm -r src/deep", project, environ) is None


def user_rules(environ: dict[str, str], **permissions: object) -> None:
    Path(environ["HOME"], ".qwen/settings.json").write_text(json.dumps({"permissions": permissions}))


@pytest.mark.parametrize(
    "rule",
    [
        *(
            "Bash",
            "Bash(*)",
            "Shell(mkdir *)",
            "Bash(mkdir:*)",
            "run_shell_command(mkdir x)",
            "Bash(*kdir x)",
            "Bash(mkdir -p y)",
        ),
        *("Edit", "Edit(/src/**)", "Write(/x)", "write_file", "Read(.env)", "*"),
    ],
)
def test_a_question_the_user_wants_is_not_taken_away(project: Path, environ: dict[str, str], rule: str) -> None:
    user_rules(environ, allow=["Bash(mkdir *)"], ask=[rule])
    assert files("mkdir x", project, environ) is None


@pytest.mark.parametrize("rule", ["Bash(rm *)", "Bash(git push:*)", "mcp__x__y", "WebFetch", "Agent", "Skill(x)"])
def test_rules_about_others_do_not_matter(project: Path, environ: dict[str, str], rule: str) -> None:
    user_rules(environ, ask=[rule])
    assert files("mkdir x", project, environ) == []


@pytest.mark.parametrize(
    "orders", [{"classifyAllShell": True}, {"hints": {"softDeny": ["mkdir"]}}, {"hints": {"deny": "x"}}]
)
def test_orders_to_the_classifier_are_not_passed_over(project: Path, environ: dict[str, str], orders: object) -> None:
    user_rules(environ, autoMode=orders)
    assert files("mkdir x", project, environ) is None


def test_the_users_own_rules_let_more_run(project: Path, environ: dict[str, str]) -> None:
    user_rules(
        environ, allow=["Bash(mkdir *)", "Bash(cp:*)", "Bash(npm test)", "Bash(python3 *)", "Bash(git *)", "Bash"]
    )
    assert files("mkdir -m 700 x && npm test", project, environ) == []
    assert files("cp a.txt b.txt", project, environ) == []
    # Auto does not count rules by which anything runs, asks about what it protects, and about the rest of the command.
    assert files("python3 x > y", project, environ) is None
    assert files("npm testing > log", project, environ) is None
    assert files("cp a.txt package.json", project, environ) is None
    assert files("npm test > package.json", project, environ) is None
    assert files("npm test && touch ../x", project, environ) is None
    # What it has done is not known.
    assert files("npm test && echo x > a.txt", project, environ) is None


def test_settings_that_cannot_be_read_let_nothing_run(project: Path, environ: dict[str, str]) -> None:
    Path(environ["HOME"], ".qwen/settings.json").write_text("{")
    assert files("mkdir x", project, environ) is None
