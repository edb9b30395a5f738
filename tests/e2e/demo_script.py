# SPDX-License-Identifier: GPL-3.0-or-later
"""The script of the demo's model: rules over the conversation, no memory of its own.

It quotes what the CLI told it about the editor, and proposes changes of the demo project's files.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from model_types import Answer, Call, ModelRequest

HELP: Final = """\
I am a script, not a language model. I know these words:

- what do you see: I quote what Emacs has told the CLI about files, cursor and selection
- greet politely: I propose a change of greeting.py
- sort the notes: I propose a change of notes.txt
- make a plan: I propose a new file, plan.txt
- explain it: I read greeting.py and say what it does
"""
EXPLANATION: Final = """\
`greeting.py` has two functions:
- `greet` puts *hello* before a name
- `main` greets **the world** and prints that

The first with [an f-string](https://peps.python.org/pep-0498/):
```python
def greet(name: str) -> str:
    return f"hello {name}"
```"""
PLAN: Final = """\
1. Ask about the selection.
2. Change a proposal before accepting it.
3. Write something better than this plan.
"""

# What the CLI and the companion put beside the user's words; the companion's note has names of files in it.
_ADDED: Final = re.compile(r"<(system-reminder|qwen:user-prompt-submit-context)>.*?</\1>", re.DOTALL)
_EDITOR_CONTEXT: Final = re.compile(
    r"<system-reminder>\nHere is the .*?editor context.*?\n(.*?)</system-reminder>", re.DOTALL
)
_DIRECTORY: Final = re.compile(r"working in the directory: (/.*)")


def respond(request: ModelRequest) -> Answer:
    """Return the answer to `request`."""
    question = _ADDED.sub("", request.prompt).lower()
    if "explain" in question:
        return _explain(request)
    if "greet" in question:
        return _change(request, "greeting.py", greet_politely)
    if "note" in question:
        return _change(request, "notes.txt", sort_lines)
    if "plan" in question:
        return _make_plan(request)
    if "see" in question or "select" in question:
        return Answer(_what_is_seen(request))
    return Answer(HELP)


def _what_is_seen(request: ModelRequest) -> str:
    told = [text.strip() for message in request.messages for text in _EDITOR_CONTEXT.findall(message.text)]
    if not told:
        return "The CLI has told me nothing about your editor. Does /ide status say Connected to Emacs?"
    first, later = told[0], told[1:]
    parts = [f"The CLI has told me this about your editor:\n\n{first}", *(f"And later:\n\n{text}" for text in later)]
    return "\n\n".join(parts)


def _explain(request: ModelRequest) -> Answer:
    if not request.results_since_prompt:
        path = str(_path(request, "greeting.py"))
        thought = "What it does is in the file.  I read that first."
        return Answer("First I read it.", (Call("read_file", {"file_path": path}),), thought)
    return Answer(EXPLANATION)


def _path(request: ModelRequest, name: str) -> Path:
    """Return the file `name` in the directory the CLI says it works in."""
    for message in request.messages:
        found = _DIRECTORY.search(message.text)
        if found:
            return Path(found[1]) / name
    return Path(name)


def _change(request: ModelRequest, name: str, change: Callable[[str], str]) -> Answer:
    """Read the file `name`, as the CLI demands before a change, then propose, then say how that went."""
    path = _path(request, name)
    results = request.results_since_prompt
    if not results:
        return Answer(f"First I read {name}.", (Call("read_file", {"file_path": str(path)}),))
    if len(results) == 1:
        arguments = {"file_path": str(path), "content": change(path.read_text(encoding="utf-8"))}
        return Answer(f"I propose a change of {name}; look at Emacs.", (Call("write_file", arguments),))
    return Answer(_outcome(results[-1]))


def _make_plan(request: ModelRequest) -> Answer:
    results = request.results_since_prompt
    if not results:
        arguments = {"file_path": str(_path(request, "plan.txt")), "content": PLAN}
        return Answer("I propose a new file, plan.txt; look at Emacs.", (Call("write_file", arguments),))
    return Answer(_outcome(results[-1]))


def _outcome(result: str) -> str:
    if "User modified" in result:
        return "It is written, with your changes: the CLI showed me what you made of it."
    return "It is written as I proposed it." if "rror" not in result else f"That did not work: {result}"


def greet_politely(text: str) -> str:
    """`text` of the greeting with another greeting, and back again the next time."""
    if '"hello "' in text:
        return text.replace('"hello "', '"a very good day to you, "')
    return text.replace('"a very good day to you, "', '"hello "')


def sort_lines(text: str) -> str:
    """`text` of the notes, a heading and lines, with the lines sorted, and the other way round the next time."""
    heading, *lines = text.splitlines(keepends=True)
    ordered = sorted(lines)
    return heading + "".join(ordered if lines != ordered else reversed(ordered))
