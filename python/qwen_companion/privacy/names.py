# SPDX-License-Identifier: GPL-3.0-or-later
"""Find all names of a file: those of the links to it, and its true name."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass

from qwen_companion.errors import UnknownNameError
from qwen_companion.file_names import LONGEST_BYTES

_MAX_LINKS = 40

# Tramp's default, simplified and separate syntaxes, and names quoted by "/:".
_REMOTE = re.compile(r"/(?:[^/]*:|\[)")

# arc-mode separates the member by a colon, tar-mode by an exclamation mark.
_ARCHIVE_MEMBER = re.compile(
    r"\.(?:7z|a|apk|ar|arc|cbr|cpio|crate|deb|egg|[ejw]ar|epub|exe|gem|lha|lzh|od[bfgpst]|rar|rpm|squashfs|tar|tar\.\w+"
    r"|t[blxz][z2]\w?|tbz|tgz|tzst|whl|xpi|zip|zoo)[:!].",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Names:
    """`spellings`: each name that led to the next one, the visited one first, the `true` one last.

    `links`: the symbolic links passed on the way, each by its own true name; a link can be ignored like a file.
    """

    spellings: tuple[str, ...]
    links: tuple[str, ...]

    @property
    def true(self) -> str:
        """The name without any link in it."""
        return self.spellings[-1]


def non_local_reason(path: str) -> str | None:
    """Return the kind of `path`, as Emacs names it, unless it is the name of a file on this machine's disks."""
    if not path.startswith("/"):
        return "no absolute file name"
    if len(path) >= LONGEST_BYTES:
        return "longer than a file name can be"
    if _REMOTE.match(path):
        return "a remote file"
    if _ARCHIVE_MEMBER.search(path):
        return "a file in an archive"
    return None


def names(path: str, known: dict[str, str | None]) -> Names:
    """Return the names of the absolute `path`, which need not exist.

    `known` remembers what each link points to (None: no link) for as long as the caller trusts that.

    :raises UnknownNameError: when the true name cannot be found
    """
    spellings = [path]
    links: list[str] = []
    true = "/"
    rest = path.split("/")[::-1]
    while rest:
        part = rest.pop()
        if part in ("", "."):
            continue
        if part == "..":
            true = os.path.dirname(true)
            continue
        here = os.path.join(true, part)
        if here not in known:
            known[here] = _target(here)
        target = known[here]
        if target is None:
            true = here
            continue
        if len(links) == _MAX_LINKS:
            raise UnknownNameError("too many symbolic links")
        links.append(here)
        if target.startswith("/"):
            true = "/"
        rest += target.split("/")[::-1]
        spellings.append(os.path.normpath(os.path.join(true, *rest[::-1])))
    if spellings[-1] != true:
        spellings.append(true)
    return Names(tuple(spellings), tuple(links))


def _target(path: str) -> str | None:
    """Return the target of the link `path`, or None when it is no link or does not exist."""
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        if error.errno == errno.ENOTDIR:
            raise UnknownNameError(f"{os.path.dirname(path)} is no directory") from None
        raise UnknownNameError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise UnknownNameError("no file can have it") from None
