# SPDX-License-Identifier: GPL-3.0-or-later
"""Find all names of a file: its true name, and the names of links to it."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass

from qwen_companion.base.errors import UnknownNameError
from qwen_companion.base.file_names import LONGEST_BYTES

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
    """`spellings`: the names from the visited one to the `true` one; each link leads to the next.

    `links`: the symbolic links on the way, each by its own true name; a link can be ignored like a file.
    """

    spellings: tuple[str, ...]
    links: tuple[str, ...]

    @property
    def true(self) -> str:
        """The name without links."""
        return self.spellings[-1]


def non_local_reason(path: str) -> str | None:
    """Return, in words, why `path` is not the name of a file on this machine; None if it is one."""
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

    `known` caches the target of each link (None: no link); the caller decides for how long.

    :raises UnknownNameError: if the true name cannot be found
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
    """Return the target of the link `path`, or None if it is no link or does not exist."""
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
