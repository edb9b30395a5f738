# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files a shell command changes, where that can be told for sure: of plain commands that agents run all day.

The rule by which a CLI asks for edits covers commands that write as well, and no form of a rule covers the tools that
edit alone.  What is not understood here stays with the user: expansions, unknown options, other programs.  Nothing here
is for the event loop: it asks the disk.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from qwen_companion.frozen import frozen

_MAX_FILES = 200
"""How many files one command may change."""


class UnclearError(Exception):
    """The effect of a command is unknown."""


# --- The parts of a command ---

_WORD = r"""(?:[\w./,:=@%+^*?-]|'[^'\0]*'|"[^"$`\\\0]*")+"""
_TOKEN = re.compile(
    rf"""
      (?P<space>[ \t]+)
    | (?P<joint>&&|\|\||;|\||\n)
    | <<(?P<quote>['"]?)(?P<mark>\w+)(?P=quote)(?![^\s;|&])
    | (?P<copy>[12]?>&[12])(?![^\s;|&])
    | (?P<output>[12&]?>>?)(?![>&|(])
    | (?P<input><)(?![<>&(])
    | (?P<word>{_WORD})
    """,
    re.VERBOSE,
)
_PIECE = re.compile(r"""'([^']*)'|"([^"]*)"|([^'"]+)""")
_EXPANDED = re.compile(r"[$`\\]")
"""Matches text that the shell replaces in a document with an unquoted mark."""


@frozen
class _Word:
    """An argument: its `text` without quotes, and its `pattern` for `glob`, None where it has no wildcard."""

    text: str
    pattern: str | None


@dataclass
class Simple:
    """A command without joints: its words, the files of its redirections, and the `joint` after it."""

    words: list[_Word] = field(default_factory=list[_Word])
    outputs: list[_Word] = field(default_factory=list[_Word])
    inputs: list[_Word] = field(default_factory=list[_Word])
    parts: list[str] = field(default_factory=list[str])
    joint: str = ""

    @property
    def text(self) -> str:
        """The command as the rules of a CLI see it, without quotes."""
        return " ".join(self.parts)

    @property
    def name(self) -> str:
        """The program."""
        return self.words[0].text if self.words else ""


def split(command: str) -> list[Simple]:
    """Return the parts of `command`.

    :raises UnclearError: when they are not certain
    """
    found = [Simple()]
    marks: list[tuple[str, bool]] = []
    words = found[-1].words
    place = 0
    while place < len(command):
        token = _TOKEN.match(command, place)
        kind = token.lastgroup if token else None
        if token is None or (words is not found[-1].words and kind not in ("space", "word")):
            raise UnclearError
        place = token.end()
        if kind == "mark":
            marks.append((token["mark"], bool(token["quote"])))
        elif kind == "joint":
            if token[0] == "\n":
                place = _after_documents(command, place, marks)
                marks = []
            found[-1].joint = token[0]
            found.append(Simple())
            words = found[-1].words
        elif kind != "space":
            word = _word(token[0])
            found[-1].parts.append(word.text)
            if kind == "word":
                words.append(word)
            words = {"output": found[-1].outputs, "input": found[-1].inputs}.get(kind or "", found[-1].words)
    if marks or words is not found[-1].words:
        raise UnclearError
    return [simple for simple in found if simple.parts]


def _word(text: str) -> _Word:
    pieces = [match.groups(default="") for match in _PIECE.finditer(text)]
    plain = "".join("".join(groups) for groups in pieces)
    if not any(character in bare for _, _, bare in pieces for character in "*?"):
        return _Word(plain, None)
    return _Word(plain, "".join(glob.escape(single + double) + bare for single, double, bare in pieces))


def _after_documents(command: str, place: int, marks: Iterable[tuple[str, bool]]) -> int:
    """Return where `command` goes on after the documents that begin at `place` and end with `marks`.

    :raises UnclearError: when that is not certain
    """
    for mark, quoted in marks:
        end = re.compile(rf"^{mark}(?:\n|\Z)", re.MULTILINE).search(command, place)
        if end is None or (not quoted and _EXPANDED.search(command, place, end.start())):
            raise UnclearError
        place = end.end()
    return place


# --- What they do ---

_READERS: Mapping[str, str] = {
    **dict.fromkeys(("cat", "head", "tail", "wc", "grep", "ls", "cut", "tr", "nl", "seq"), r"-[^/]*"),
    **dict.fromkeys(("pwd", "true", "basename", "dirname", "printf"), ""),
    "sort": r"-[bfnruV]+|-k[\d,]+",
    "diff": r"-[abBNpqruw]+|-U\d+",
    "git": r"-p|-\d+|--(?:cached|staged|stat|name-only|name-status|oneline|porcelain|short|no-color)",
}
"""Programs that change nothing with the options of these forms."""

_GIT_READERS = ("diff", "log", "show", "status")

_WRITERS: Mapping[str, str] = {
    "mkdir": r"-[pv]+|--parents",
    "rmdir": r"-[pv]+",
    "touch": r"-[acm]+",
    "rm": r"-[rRfvd]+|--force|--recursive",
    "cp": r"-[rRapfvnu]+|--recursive",
    "mv": r"-[fvnu]+",
    "ln": r"-[sfnv]+",
    "chmod": r"-[Rvfc]+",
    "tee": r"-a",
    # What follows an `i` is the end of a name of a second file.
    "sed": r"-[Er]*i|-[Er]+",
}
"""Programs that change the files they name, with the options of these forms."""

FILE_PROGRAMS = frozenset(_WRITERS)

_MODE = re.compile(r"0?[0-7]{3}|[ugoa]*[-+=][rwxX]+(?:,[ugoa]*[-+=][rwxX]+)*")
_SUBSTITUTION = re.compile(r"s([/|#,])(?:\\[^\n]|(?!\1)[^\\\n])*\1(?:\\[^\n]|(?!\1)[^\\\n])*\1[gI\d]*")
"""A script that only replaces text: others run programs and write other files."""


@dataclass
class Effects:
    """The absolute names of the files that a command changes; of the `lost` ones some text may go.

    `read` are those whose text it uses.
    """

    changed: set[str] = field(default_factory=set[str])
    lost: set[str] = field(default_factory=set[str])
    read: set[str] = field(default_factory=set[str])


class _Reader:
    """Collects the effects of simple commands, one after the other."""

    def __init__(self, directory: str, allowed: Callable[[Simple], bool]) -> None:
        """They run in `directory`; those that are `allowed` may do what they like."""
        self.effects = Effects()
        self._directory = directory
        self._allowed = allowed
        self._written = False
        """Whether there may be a file that was not there at the beginning."""
        self._moved = False
        """Whether names may lead elsewhere than they did at the beginning."""

    def take(self, simple: Simple, before: str) -> None:
        """Add the effects of `simple`, which stands after the joint `before`.

        :raises UnclearError: when they are not certain
        """
        name, arguments = simple.name, simple.words[1:]
        if self._allowed(simple):
            # It is not known what it did.
            self._written = self._moved = True
            return
        if name == "cd":
            self._change_directory(simple, before)
        elif name in _READERS or (name == "sed" and not _edits_in_place(arguments)):
            self._read(name, arguments)
        elif name in _WRITERS:
            self._write(name, arguments)
        elif simple.words and name not in ("echo", ":"):
            raise UnclearError
        self.effects.read.update(path for word in simple.inputs for path in self._paths(word))
        outputs = [path for word in simple.outputs for path in self._paths(word) if path != os.devnull]
        if outputs:
            self._change(outputs)

    # --- Names ---

    def _paths(self, word: _Word) -> list[str]:
        """Return the absolute names that `word` stands for."""
        if not word.text or ".." in word.text.split("/"):
            # Where it leads depends on links that the command itself may make.
            raise UnclearError
        path = os.path.join(self._directory, word.text)
        if word.pattern is None:
            return [os.path.normpath(path)]
        names = list(islice(glob.iglob(word.pattern, root_dir=self._directory), _MAX_FILES + 1))
        if "**" in word.text or any(name.startswith("-") for name in names) or len(names) > _MAX_FILES:
            raise UnclearError
        return [os.path.normpath(os.path.join(self._directory, name)) for name in names] or [path]

    def _arguments(self, arguments: Sequence[_Word], options: str) -> list[_Word]:
        """Return the `arguments` that are no options.

        :raises UnclearError: for an option of another form than `options`
        """
        unknown = [word for word in arguments if word.text.startswith("-") and re.fullmatch(options, word.text) is None]
        if unknown:
            raise UnclearError
        return [word for word in arguments if not word.text.startswith("-")]

    # --- What they do ---

    def _change_directory(self, simple: Simple, before: str) -> None:
        # Else what follows would run here where it fails, or it is in a process of its own.
        if len(simple.words) != 2 or simple.joint != "&&" or before not in ("", "&&"):
            raise UnclearError
        (path,) = self._paths(simple.words[1])
        if not os.path.isdir(path):
            raise UnclearError
        self._directory = path
        self.effects.read.add(path)

    def _read(self, name: str, arguments: Sequence[_Word]) -> None:
        if name == "printf":
            if arguments and arguments[0].text.startswith("-"):
                raise UnclearError
            return
        if name == "git" and (not arguments or arguments[0].text not in _GIT_READERS):
            raise UnclearError
        if name == "sed":
            arguments = self._after_script(arguments)
        for word in self._arguments(arguments, _READERS.get(name, _WRITERS["sed"])):
            # It may be a pattern or a number too, which then is no file.
            self.effects.read.update(path for path in self._paths(word) if os.path.lexists(path) or word.text[0] == "/")

    def _write(self, name: str, arguments: Sequence[_Word]) -> None:
        options = {word.text for word in arguments if word.text.startswith("-")}
        if name == "sed":
            arguments = self._after_script(arguments)
        words = self._arguments(arguments, _WRITERS[name])
        if name == "chmod":
            if not words or _MODE.fullmatch(words.pop(0).text) is None:
                raise UnclearError
        paths = [path for word in words for path in self._paths(word)]
        if name in ("cp", "mv", "ln"):
            self._copy(name, paths, name == "cp" and not any(re.search("[rRa]", option) for option in options))
        elif name in ("mkdir", "rmdir", "touch"):
            self._change(paths, lost=False, written=name == "touch")
        else:
            self._change([path for each in paths for path in (each, *_below(each))])

    def _after_script(self, arguments: Sequence[_Word]) -> list[_Word]:
        """Return `arguments` of sed without its script.

        :raises UnclearError: for one that may do more than replace text
        """
        rest = list(arguments)
        script = next((word for word in rest if not word.text.startswith("-")), None)
        if script is None or _SUBSTITUTION.fullmatch(script.text) is None:
            raise UnclearError
        rest.remove(script)
        return rest

    def _copy(self, name: str, paths: Sequence[str], plain: bool) -> None:
        """Add the effects of copying, moving or linking to the last of `paths`; `plain`: no directories or links."""
        if len(paths) < 2 or (name == "ln" and len(paths) > 2):
            raise UnclearError
        *sources, target = paths
        if not plain:
            # What is not there yet might be anything.
            if self._written or not all(map(os.path.lexists, sources)):
                raise UnclearError
        below = {source: [] if plain or name == "ln" else list(_below(source)) for source in sources}
        # Into the target or in its place, as it is a directory or not when the command gets there.
        changed = [] if os.path.isdir(target) else [target]
        for source in sources:
            inner = os.path.join(target, os.path.basename(source))
            changed += [inner, *([source, *below[source]] if name == "mv" else [])]
            names = [os.path.relpath(path, source) for path in below[source]]
            changed += [os.path.join(place, each) for place in (target, inner) for each in names]
        if name == "ln":
            # A symbolic link is relative to its own place.
            linked = os.path.relpath(sources[0], self._directory)
            self.effects.read.update(os.path.join(os.path.dirname(place), linked) for place in (target, *changed))
        self.effects.read.update(sources)
        self._change(changed)
        self._moved = self._moved or not plain

    def _change(self, paths: Sequence[str], lost: bool = True, written: bool = True) -> None:
        if self._moved:
            raise UnclearError
        self._written = self._written or written
        self.effects.changed.update(paths)
        if lost:
            self.effects.lost.update(paths)


def _edits_in_place(arguments: Iterable[_Word]) -> bool:
    return any(re.match("-[^-]*i|--in", word.text) for word in arguments)


def _below(path: str) -> Iterator[str]:
    """Return all names below the directory `path`; nothing where it is none.

    :raises UnclearError: for too many
    """
    count = 0
    if os.path.islink(path):
        return
    for directory, directories, files in os.walk(path):
        for name in (*directories, *files):
            count += 1
            if count > _MAX_FILES:
                raise UnclearError
            yield os.path.join(directory, name)


def effects(parts: Iterable[Simple], directory: str, allowed: Callable[[Simple], bool]) -> Effects:
    """Return the effects of the `parts` of a command in `directory` but those that are `allowed`.

    :raises UnclearError: when they are not certain
    """
    reader = _Reader(directory, allowed)
    before = ""
    for simple in parts:
        reader.take(simple, before)
        before = simple.joint
    return reader.effects
