# SPDX-License-Identifier: GPL-3.0-or-later
"""The files at a place that a CLI there edits: reviewed by copies here, and written by the relay."""

from __future__ import annotations

import errno
import os

from qwen_companion.journal.versions import digest_of
from qwen_companion.remote.link import LinkError, RequestError
from qwen_companion.remote.place import Place


class PlaceFiles:
    """The files at `place`; see `Files`."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def name(self, path: str) -> str | None:
        """See `Files`."""
        return self._place.name(path)

    async def review_file(self, path: str) -> str:
        """See `Files`: it is a copy.

        :raises TargetError: when it cannot be reviewed
        """
        await self._place.check_target(path)
        return (await self._place.copies.review_file(path))[0]

    async def write(self, path: str, expected: bytes | None, data: bytes) -> None:
        """See `Files`.

        :raises OSError: when its text is not the expected one, or it cannot be written
        """
        projects = [name for name in self._place.projects if path.startswith(f"{name.rstrip('/')}/")]
        root = max(projects, key=len, default=None)
        if root is None:
            raise OSError(errno.EACCES, "it lies outside of the projects there")
        digest, file = None if expected is None else digest_of(expected), os.path.relpath(path, root)
        try:
            link = self._place.link()
            await link.ask("replace", data, root=root, file=file, expected=digest, remove=False, link=False)
        except (LinkError, RequestError) as error:
            raise OSError(errno.EIO, str(error)) from None
