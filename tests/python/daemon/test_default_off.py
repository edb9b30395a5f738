# SPDX-License-Identifier: GPL-3.0-or-later
"""Nothing of the daemon client is imported until Emacs asks for it."""

from __future__ import annotations

import re

import pytest
from sexpdata import dumps

from support import Backend, Home


def imported(home: Home, *, asked: bool) -> str:
    """Run a backend, send it a request about a daemon if `asked`, and return the list of its imports."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPROFILEIMPORTTIME", "1")
        backend = Backend(home, fresh=True)
    with backend:
        backend.serve()
        if asked:
            backend.emacs.call("daemon-disconnect", dumps({"request": "1"}))
            backend.emacs.wait_for("daemon-reply")
        backend.emacs.call("context", dumps({"files": None, "active": None}))
        return backend.stopped()


def test_default_off(home: Home) -> None:
    names = imported(home, asked=False)
    # A module that `import_module` imports is not in the list, and those that it imports are.
    assert "qwen_companion.ide.bodies" in names
    assert set(re.findall(r"qwen_companion\.daemon\.(\w+)", names)) == {"front", "rewinds"}


def test_imported_with_the_first_call(home: Home) -> None:
    assert "qwen_companion.daemon.connection" in imported(home, asked=True)
