# SPDX-License-Identifier: GPL-3.0-or-later
"""An MCP client in place of a CLI, for tests that need neither its screen nor its decisions.

A real one takes three seconds of processor time to start, and two for each review.
"""

from __future__ import annotations

import json
import queue
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from sandbox import Sandbox
from support import Cli, Stream
from terminal import PATIENCE

_ANSWERS: Final = {"ide/diffAccepted": True, "ide/diffRejected": False}


class Client:
    """A session of the companion of `sandbox`; `write_accepted` writes an accepted proposal, as a CLI does."""

    def __init__(self, sandbox: Sandbox) -> None:
        """Find the companion as Qwen Code does, and connect."""
        (lock,) = sandbox.lock_files
        self._http = Cli(int(lock.stem), json.loads(lock.read_text())["authToken"])
        self._http.initialize()
        self._answers: queue.SimpleQueue[tuple[str, str | None]] = queue.SimpleQueue()
        self._last: tuple[str, str | None] | None = None
        self._listen()

    def _listen(self) -> None:
        self._stream = self._http.stream()
        self._reader = threading.Thread(target=self._read, args=(self._stream,), name="client", daemon=True)
        self._reader.start()

    def listen_again(self) -> None:
        """Open the stream again, once a new backend listens at the port of one that has been killed."""
        self._reader.join(PATIENCE)
        self._stream.close()
        self._listen()

    def _read(self, stream: Stream) -> None:
        # It ends with the stream, whoever ends that.
        with suppress(AssertionError, OSError, ValueError):
            while True:
                event = stream.event()
                accepted = _ANSWERS.get(event["method"])
                if accepted is not None:
                    parameters: dict[str, Any] = event["params"]
                    self._answers.put((parameters["filePath"], parameters["content"] if accepted else None))

    def propose(self, path: Path, text: str) -> None:
        """Propose `text` for the file `path`; returns when Emacs has it."""
        result = self._http.tool("openDiff", filePath=str(path), newContent=text)
        assert not result.get("isError"), result

    def answer(self, path: Path) -> str | None:
        """Wait until the proposal for `path` is answered in Emacs; return the accepted text, None when rejected.

        Of a backend that was killed, the same answer may come again: it died before Emacs knew that it had sent it.
        """
        answer = self._answers.get(timeout=PATIENCE)
        while answer == self._last:
            answer = self._answers.get(timeout=PATIENCE)
        self._last = answer
        answered, text = answer
        assert answered == str(path)
        return text

    def write_accepted(self, path: Path) -> str:
        """Wait until the proposal for `path` is accepted in Emacs, write the text, and return it."""
        text = self.answer(path)
        assert text is not None, "rejected"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return text

    def close(self, path: Path) -> str:
        """Close the proposal for `path`, as after an answer in a terminal; return its text, with the user's edits."""
        (content,) = self._http.tool("closeDiff", filePath=str(path), suppressNotification=True)["content"]
        return json.loads(content["text"])["content"]

    def disconnect(self) -> None:
        """End the session at once, unless the companion has ended."""
        with suppress(OSError):
            self._http.post(b"", method="DELETE")
        self._reader.join(PATIENCE)
        self._stream.close()
