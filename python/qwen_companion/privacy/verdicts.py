# SPDX-License-Identifier: GPL-3.0-or-later
"""A decision about a file, in words for the user."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """Whether a file is hidden from a CLI, and the `rule` that decided.

    The `rule` of a file that is not `excluded` is empty, or says why a rule that could have excluded it was not
    applied.  A verdict that is not `lasting` may change without any change on the disk.
    """

    excluded: bool
    rule: str = ""
    lasting: bool = True


ALLOWED = Verdict(False)


def excluded(rule: str, lasting: bool = True) -> Verdict:
    """Return the verdict that excludes by `rule`."""
    return Verdict(True, printable(rule), lasting)


def printable(text: str) -> str:
    """Return `text` on one line and valid as UTF-8: file names and patterns may contain anything."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
