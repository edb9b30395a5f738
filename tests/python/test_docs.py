# SPDX-License-Identifier: GPL-3.0-or-later
"""Names in docs/ exist in the code, and clauses cited by the code exist in docs/."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import chain
from pathlib import Path
from xml.etree import ElementTree

import pytest

from charts import Bar, bar, charts
from figures import summary

CHECKOUT = Path(__file__).parents[2]
LISP = [CHECKOUT / "qwen-companion.el", *sorted(CHECKOUT.glob("lisp/*/*.el"))]
DOCS = sorted([*CHECKOUT.glob("*.org"), *(CHECKOUT / "docs").rglob("*.org")])

CLAUSE = r"(?:G-)?[TDCFLA]\d+"


def tracked_files() -> list[str]:
    listing = subprocess.run(["git", "ls-files"], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    return listing.stdout.splitlines()


def test_the_tests_that_are_named_elsewhere_are_there() -> None:
    text = (CHECKOUT / "docs/security.org").read_text(encoding="utf-8")
    named = re.findall(r"^- =(tests/\S+): (\S+)=$", text, re.MULTILINE)
    assert len(named) == len(re.findall("=tests/", text)) > 0
    for file in (CHECKOUT / "bench").glob("*.py"):
        named += re.findall(r"(tests/[\w/]+\.py)::(\w+)", file.read_text(encoding="utf-8"))
    missing = [
        (file, name)
        for file, name in named
        if not re.search(rf"(def|ert-deftest) {re.escape(name)} ?\(", (CHECKOUT / file).read_text(encoding="utf-8"))
    ]
    assert missing == []


def spelled_out(citation: str) -> list[str]:
    """Return the clauses that `citation` names, such as "D1-D3, L1"."""
    clauses: list[str] = []
    for first, last in re.findall(rf"({CLAUSE})(?:-({CLAUSE}))?", citation):
        letter = first.rstrip("0123456789")
        end = int((last or first).removeprefix(letter))
        clauses += [f"{letter}{number}" for number in range(int(first.removeprefix(letter)), end + 1)]
    return clauses


def test_every_clause_that_the_code_cites_is_in_the_specification() -> None:
    definitions = [
        clause
        for file in (CHECKOUT / "docs/spec").glob("*.org")
        for clause in re.findall(rf"^- ({CLAUSE}) ::", file.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(set(definitions)) == len(definitions)
    citations = {
        f"{name}: {clause}": clause
        for name in tracked_files()
        if name.endswith((".py", ".el")) and (CHECKOUT / name).is_file()
        for citation in re.findall(
            rf"\b[Ss]pec ({CLAUSE}(?:(?:-|, ){CLAUSE})*)", (CHECKOUT / name).read_text(encoding="utf-8")
        )
        for clause in spelled_out(citation)
    }
    assert len(citations) > 30
    assert [place for place, clause in citations.items() if clause not in definitions] == []


@pytest.mark.parametrize("document", DOCS, ids=lambda path: path.name)
def test_the_files_that_a_text_names_are_there(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    links = re.findall(r"\[\[file:([^]:]+)", text)
    assert [link for link in links if not (document.parent / link).exists()] == []
    # A changelog also names what is no more.
    if document.name != "CHANGELOG.org":
        files = tracked_files()
        named = chain.from_iterable(
            re.findall(r"(?<![\w./-])\w[\w./-]*\.(?:py|el)\b", code) for code in re.findall(r"[=~]([^=~\n]+)[=~]", text)
        )
        missing = [name for name in named if not any(file == name or file.endswith("/" + name) for file in files)]
        assert missing == []


def test_the_lists_of_messages_are_current() -> None:
    script = [sys.executable, str(CHECKOUT / "scripts/document_messages.py"), "--check"]
    result = subprocess.run(script, env={"PYTHONPATH": str(CHECKOUT / "python")}, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_every_room_is_in_the_list_of_rooms() -> None:
    texts = "".join(
        (CHECKOUT / name).read_text(encoding="utf-8") for name in ("CONTRIBUTING.org", "docs/architecture.org")
    )
    lisp = {file.stem for file in LISP}
    python = {file.name for file in (CHECKOUT / "python/qwen_companion").iterdir() if file.name[0] not in "_."}
    missing = [name for name in lisp if f"={name}.el=" not in texts and f"=-{name[15:]}=" not in texts]
    missing += [name for name in python - {"py.typed"} if not re.search(rf"[=/]{re.escape(name)}=", texts)]
    assert missing == []


def test_every_option_and_command_is_in_the_manual() -> None:
    manual = (CHECKOUT / "docs/qwen-companion.org").read_text(encoding="utf-8")
    sources = [path.read_text(encoding="utf-8") for path in LISP]
    options = {name for source in sources for name in re.findall(r"^\(defcustom (\S+)", source, re.MULTILINE)}
    commands = {
        name
        for source in sources
        for name, body in re.findall(
            r"^;;;###autoload\n\(def(?:un|ine-minor-mode) (\S+)(.*?)(?=^\(|^;;;###)", source, re.MULTILINE | re.DOTALL
        )
        if "(interactive" in body or name.endswith("-mode")
    }
    assert len(options) > 30
    assert len(commands) > 40
    assert {name for name in options | commands if f"={name}=" not in manual} == set()


def test_the_manual_in_texinfo_is_that_in_org() -> None:
    """Its chapters are; the rest depends on the version of Org that has written it."""
    manual = (CHECKOUT / "docs/qwen-companion.org").read_text(encoding="utf-8")
    texinfo = (CHECKOUT / "docs/qwen-companion.texi").read_text(encoding="utf-8")
    chapters = [re.sub(r"=", "", title) for title in re.findall(r"^\* (.+)$", manual, re.MULTILINE)]
    written = [
        re.sub(r"@\w+\{(.*?)\}", r"\1", title)
        for title in re.findall(r"^@(?:chapter|appendix) (.+)$", texinfo, re.MULTILINE)
    ]
    assert written == chapters
    # Each option of the table too.
    for name in re.findall(r"^#\+vindex: (\S+)$", manual, re.MULTILINE):
        assert f"@vindex {name}\n" in texinfo


def test_the_manual_refers_to_nothing_that_info_cannot_show() -> None:
    """The package has neither pictures nor other texts: Info would show "[broken image]" and links to nowhere."""
    texinfo = (CHECKOUT / "docs/qwen-companion.texi").read_text(encoding="utf-8")
    links = re.findall(r"@u(?:ref|rl)\{([^,}]*)", texinfo)
    assert len(links) >= 3
    assert [link for link in links if not link.startswith("https://")] == []
    assert "@image" not in texinfo


def test_the_help_of_each_mode_leads_to_a_node_of_the_manual() -> None:
    texinfo = (CHECKOUT / "docs/qwen-companion.texi").read_text(encoding="utf-8")
    # The help of a mode, of `?` too, makes a button of this form.
    node = re.compile(r"Info node `\(qwen-companion\)([^']+)'")
    modes = {
        name: node.search(body)
        for path in LISP
        for name, body in re.findall(
            r"^\((?:define-derived-mode|qwen-companion-list-define) (\S+)(.*?)(?=^\()",
            path.read_text(encoding="utf-8"),
            re.MULTILINE | re.DOTALL,
        )
    }
    assert len(modes) >= 8
    assert [name for name, found in modes.items() if not found or f"\n@node {found[1]}\n" not in texinfo] == []


def test_the_readme_has_the_figures_that_were_measured() -> None:
    readme = (CHECKOUT / "README.org").read_text(encoding="utf-8")
    begin, end = "# Figures: written by make figures\n", "# End of figures\n"
    assert (readme.count(begin), readme.count(end)) == (1, 1)
    shown = readme.partition(begin)[2].partition(end)[0]
    table = [line for line in shown.splitlines() if line.startswith(("|", "Measured on "))]
    assert table == summary((CHECKOUT / "docs/figures.org").read_text(encoding="utf-8"))
    # As short as a newcomer reads.
    assert len(readme.splitlines()) <= 150


def test_the_pictures_of_the_figures_are_those_of_their_tables() -> None:
    figures = (CHECKOUT / "docs/figures.org").read_text(encoding="utf-8")
    drawn = charts(figures)
    pictures = {path.name: path.read_text(encoding="utf-8") for path in (CHECKOUT / "docs/figures").glob("*.svg")}
    if drawn != pictures:
        raise AssertionError("docs/figures is not what bench/charts.py draws of docs/figures.org")
    assert all(f"[[file:figures/{name}]]" in figures for name in pictures)
    counted, timed, half, free = (
        "| death | killed | 3 of 4 | all |",
        "| speed | a <b> & c | 22.0 ms beside 10.0 ms, 2.20 times | 2 |",
        "| speed | a pause: p50, most | 4.0 ms, 9 ms | p50 5 ms |",
        "| load | p50 | 1 ms | - |",
    )
    assert [bar(row) for row in (counted, timed, half, free)] == [
        Bar("killed", "3 of 4 (goal all)", 0.75, None),
        Bar("a <b> & c", "22.0 ms beside 10.0 ms, 2.20 times (goal 2)", 1.1, 0.5),
        Bar("a pause: p50, most", "4.0 ms, 9 ms (goal p50 5 ms)", 0.8, None),
        None,
    ]
    for picture in [*drawn.values(), *charts(timed).values()]:
        ElementTree.fromstring(picture)  # noqa: S314 - our own
