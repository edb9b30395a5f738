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

from qwen_companion.doors.disk import Disk
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
    | (?P<output>[12]?>>?)(?![>&|(])
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
    **dict.fromkeys(("cat", "head", "ls", "cut", "tr", "nl"), r"-[^/]*"),
    **dict.fromkeys(("pwd", "true", "basename", "dirname", "printf"), ""),
    # Not those that follow links within a directory, or read names and patterns from a file.
    "grep": r"-[^-/R][^/R]*|--(?!de|file=)[^/]*",
    "wc": r"-[clmwL]+",
    "tail": r"-[cnqv]?\d*",
    "sort": r"-[bfnruV]+|-k[\d,]+",
    "diff": r"-[abBNpquw]+|-U\d+",
    "git": r"-p|-\d+|--(?:cached|staged|stat|name-only|name-status|oneline|porcelain|short|no-color)",
}
"""Programs that change nothing with the options of these forms."""

_GIT_READERS = ("diff", "log", "show", "status")

_FORMAT = re.compile(r"(?:[^%]|%%|%[-+0]*\d{,3}(?:\.\d{1,3})?[sbcdxX])*")
"""One of printf that only prints: %n sets a variable, as PATH."""

_WRITERS: Mapping[str, str] = {
    "mkdir": r"-[pv]+|--parents",
    "rmdir": r"-v+",
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

    `made` are those that it makes where there are none, `read` those whose text it uses.  With `moved`, names may lead
    elsewhere afterwards than before.
    """

    changed: set[str] = field(default_factory=set[str])
    lost: set[str] = field(default_factory=set[str])
    made: set[str] = field(default_factory=set[str])
    read: set[str] = field(default_factory=set[str])
    moved: bool = False

    def to_record(self, disk: Disk) -> list[str]:
        """Return the names of the files on `disk` that have to be recorded for the changes to be undone."""
        lost = {name for path in self.lost for name in (path, disk.real(path)) if disk.exists(name)}
        made = {name for path in self.made for name in (path, disk.real(path)) if not disk.exists(name)}
        return sorted(made | {path for path in lost if disk.is_link(path) or not disk.is_directory(path)})


class _Reader:
    """Collects the effects of simple commands, one after the other."""

    def __init__(
        self, directory: str, disk: Disk, allowed: Callable[[Simple], bool], earlier: Sequence[Effects]
    ) -> None:
        """They run in `directory` of `disk`, after others with the effects `earlier`; `allowed` ones do anything."""
        self._disk = disk
        self.effects = Effects(moved=any(each.moved for each in earlier))
        self._directory = directory
        self._allowed = allowed
        self._earlier = {path for each in earlier for path in each.changed}
        self._written = bool(self._earlier)
        """Whether there may be a file that was not there at the beginning."""
        self._is_first = True
        self._has_wildcard = False
        """Whether a name begins with a wildcard."""

    def take(self, simple: Simple) -> None:
        """Add the effects of `simple`.

        :raises UnclearError: when they are not certain
        """
        name, arguments = simple.name, simple.words[1:]
        is_allowed = self._allowed(simple)
        if is_allowed:
            pass
        elif name == "cd":
            self._change_directory(simple)
        elif name in _READERS or (name == "sed" and not _edits_in_place(arguments)):
            self._read(name, arguments)
        elif name in _WRITERS:
            self._write(name, arguments)
        elif simple.words and name not in ("echo", ":"):
            raise UnclearError
        self._is_first = self._is_first and name == "cd"
        self.effects.read.update(path for word in simple.inputs for path in self._paths(word))
        outputs = [path for word in simple.outputs for path in self._paths(word) if path != os.devnull]
        if outputs:
            self._change(outputs)
        if is_allowed:
            # It is not known what it did.
            self._written = self.effects.moved = True

    def finish(self) -> Effects:
        """Return all effects.

        :raises UnclearError: when they are not certain
        """
        changed = self.effects.changed
        if self._has_wildcard and any("/-" in path for path in changed | self._earlier):
            # The name of a file that is made could become an option.
            raise UnclearError
        if any(map(self._disk.has_other_names, changed)):
            raise UnclearError
        return self.effects

    # --- Names ---

    def _paths(self, word: _Word) -> list[str]:
        """Return the absolute names that `word` stands for."""
        if not word.text or ".." in word.text.split("/"):
            # Where it leads depends on links that the command itself may make.
            raise UnclearError
        names = [word.text] if word.pattern is None else self._matching(word.pattern, word.text)
        paths = [os.path.normpath(os.path.join(self._directory, name)) for name in names]
        if any(
            name.endswith(("/", "/.")) and self._disk.is_link(path) for name, path in zip(names, paths, strict=True)
        ):
            # What is meant is the directory behind the link.
            raise UnclearError
        return paths

    def _matching(self, pattern: str, text: str) -> list[str]:
        """Return the names that `pattern` matches, `text` without quotes; that if there are none."""
        self._has_wildcard = self._has_wildcard or text[0] in "*?"
        names = self._disk.matching(self._directory, pattern)
        # Some shells let .* match the directory above.
        is_odd = "**" in text or any(part.startswith(".") and re.search("[*?]", part) for part in text.split("/"))
        if is_odd or any(name.startswith("-") for name in names) or len(names) > _MAX_FILES:
            raise UnclearError
        return names or [text]

    def _arguments(self, arguments: Sequence[_Word], options: str) -> list[_Word]:
        """Return the `arguments` that are no options.

        :raises UnclearError: for an option of another form than `options`
        """
        given = [word for word in arguments if word.text.startswith("-")]
        if any(word.pattern is not None or re.fullmatch(options, word.text) is None for word in given):
            raise UnclearError
        return [word for word in arguments if not word.text.startswith("-")]

    # --- What they do ---

    def _change_directory(self, simple: Simple) -> None:
        # Else what follows would run here where it fails or is not reached, or it is in a process of its own.
        if len(simple.words) != 2 or simple.joint != "&&" or not self._is_first:
            raise UnclearError
        (path,) = self._paths(simple.words[1])
        if simple.words[1].text.startswith("-") or not self._disk.may_enter(path):
            raise UnclearError
        self._directory = path
        self.effects.read.add(path)

    def _read(self, name: str, arguments: Sequence[_Word]) -> None:
        if name == "printf":
            plain = arguments and not arguments[0].text.startswith("-") and arguments[0].pattern is None
            if not plain or _FORMAT.fullmatch(arguments[0].text) is None:
                raise UnclearError
            return
        if name == "git":
            if not arguments or arguments[0].text not in _GIT_READERS or self._may_be_made_repository():
                raise UnclearError
        if name in ("git", "grep", "ls"):
            self.effects.read.add(self._directory)
        if name == "sed":
            arguments = self._after_script(arguments)
        for word in self._arguments(arguments, _READERS.get(name, _WRITERS["sed"])):
            # It may be a pattern or a number too, which then is no file.
            self.effects.read.update(
                path for path in self._paths(word) if self._disk.exists(path) or word.text[0] == "/"
            )

    def _may_be_made_repository(self) -> bool:
        """Return whether git may find a repository here that a model has made, whose settings name programs."""
        directory: str = self._directory
        while not self._disk.exists(os.path.join(directory, ".git")):
            if self._disk.exists(os.path.join(directory, "HEAD")):
                return True
            if directory == os.path.dirname(directory):
                break
            directory = os.path.dirname(directory)
        return bool(self.effects.changed or self._earlier)

    def _write(self, name: str, arguments: Sequence[_Word]) -> None:
        options = {word.text for word in arguments if word.text.startswith("-")}
        if name == "sed":
            arguments = self._after_script(arguments)
        words = self._arguments(arguments, _WRITERS[name])
        if name == "chmod":
            if not words or _MODE.fullmatch(words.pop(0).text) is None:
                raise UnclearError
        paths = [path for word in words for path in self._paths(word)]
        if name == "chmod" and any(self._disk.is_directory(path) or self._disk.is_link(path) for path in paths):
            # The modes of directories are not recorded, and it follows links.
            raise UnclearError
        if name == "ln" and not any("s" in option for option in options):
            raise UnclearError
        if name in ("cp", "mv", "ln"):
            self._copy(name, paths, name == "cp" and not any(re.search("[rRa]", option) for option in options))
        elif name in ("mkdir", "rmdir", "touch"):
            self._change(paths, lost=False, written=name == "touch")
        else:
            self._change([path for each in paths for path in (each, *self._below(each))])

    def _after_script(self, arguments: Sequence[_Word]) -> list[_Word]:
        """Return `arguments` of sed without its script.

        :raises UnclearError: for one that may do more than replace text
        """
        rest = list(arguments)
        script = next((word for word in rest if not word.text.startswith("-")), None)
        # A pattern for names becomes what a file is called.
        if script is None or script.pattern is not None or _SUBSTITUTION.fullmatch(script.text) is None:
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
            if self._written or not all(map(self._disk.exists, sources)):
                raise UnclearError
        below = {source: [] if plain or name == "ln" else list(self._below(source)) for source in sources}
        # Into the target or in its place, as it is a directory or not when the command gets there.
        changed = [] if self._disk.is_directory(target) and not self._disk.is_link(target) else [target]
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
        self.effects.moved = self.effects.moved or not plain

    def _below(self, path: str) -> Iterator[str]:
        """Yield all names below the directory `path`; nothing where it is none.

        :raises UnclearError: for too many
        """
        for count, name in enumerate(self._disk.below(path)):
            if count == _MAX_FILES:
                raise UnclearError
            yield name

    def _change(self, paths: Sequence[str], lost: bool = True, written: bool = True) -> None:
        if self.effects.moved:
            raise UnclearError
        self._written = self._written or written
        self.effects.changed.update(paths)
        if lost:
            self.effects.lost.update(paths)
        if written:
            self.effects.made.update(paths)


def _edits_in_place(arguments: Iterable[_Word]) -> bool:
    return any(re.match("-[^-]*i|--in", word.text) for word in arguments)


def effects(
    parts: Iterable[Simple], directory: str, disk: Disk, allowed: Callable[[Simple], bool], earlier: Sequence[Effects]
) -> Effects:
    """Return the effects of the `parts` of a command in `directory` of `disk`.

    Those that are `allowed` may do anything but write their output to a file.  `earlier` are the effects of others that
    may have run before.

    :raises UnclearError: when they are not certain
    """
    reader = _Reader(directory, disk, allowed, earlier)
    for simple in parts:
        reader.take(simple)
    return reader.finish()
