# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/security.org names tests: each of them is there."""

from __future__ import annotations

import re
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def test_the_tests_that_the_security_text_names_are_there() -> None:
    text = (CHECKOUT / "docs/security.org").read_text(encoding="utf-8")
    named = re.findall(r"^- =(tests/\S+): (\S+)=$", text, re.MULTILINE)
    assert len(named) == len(re.findall("=tests/", text)) > 0
    missing = [
        (file, name)
        for file, name in named
        if not re.search(rf"(def|ert-deftest) {re.escape(name)} ?\(", (CHECKOUT / file).read_text(encoding="utf-8"))
    ]
    assert missing == []
