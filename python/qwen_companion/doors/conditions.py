# SPDX-License-Identifier: GPL-3.0-or-later
"""May a tool run without a question?  Only where the CLI in its mode `auto` would not have asked by itself.

Nothing here is for the event loop: it asks the disk.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from qwen_companion.doors.commands import FILE_PROGRAMS, Effects, Simple, UnclearError, effects, split
from qwen_companion.doors.disk import Disk
from qwen_companion.doors.layer import JsonObject, LayerError, read_settings, replaced_file, system_settings_file
from qwen_companion.json_objects import as_object
from qwen_companion.privacy.ignore_files import IGNORE_FILES

_UNASKED_TOOLS = ("edit", "write_file")
"""The third, notebook_edit, goes to the classifier of `auto`."""

_PROTECTED = tuple(
    re.compile(pattern)
    for pattern in (
        # What makes the machine run something.
        r"/\.git(/|$)",
        r"/\.husky/",
        r"/package\.json$",
        r"/\.npmrc$",
        r"/(gnu)?makefile$",
        r"/\.?justfile$",
        r"/taskfile\.ya?ml$",
        r"/\.github/workflows/",
        # What instructs the CLI.
        r"/\.qwen/",
        r"/(qwen|agents|qwen\.local)\.md$",
        r"/\.mcp\.json$",
    )
)
"""Paths, in lower case, that `auto` asks its classifier about."""

_RULE_FILES = (
    *(".gitignore", ".gitattributes", ".gitmodules", ".gitconfig"),
    *(name for names in IGNORE_FILES.values() for name in names),
)
"""Files that decide what is recorded and what no CLI is told of, and what git runs where its settings include them."""

_ALL_HOOKS_SINCE = (0, 24, 2)
"""The first version of Qwen Code that calls the hooks of all its settings.

Those before call the hooks of the user's file and of the project's; all together in place of one that has none, but not
in place of those of a project that is not trusted.
"""

_OTHER_TOOLS = re.compile(
    r"(bash|shell|run_shell_command|monitor|read|read_file|webfetch|web_fetch|agent|skill)\b|mcp__", re.IGNORECASE
)
"""Beginnings of rules that concern no edit by the tools that edit."""


def is_inside(path: str, directory: str, disk: Disk) -> bool:
    """Return whether `path` lies in `directory` of `disk`, by its name and really."""
    if not os.path.isabs(path) or not os.path.isabs(directory):
        return False
    pairs = (
        (os.path.normpath(path), os.path.normpath(directory)),
        (disk.real(path), disk.real(directory)),
    )
    return all(inner.startswith(outer.rstrip("/") + "/") for inner, outer in pairs)


def may_pass(tool: str, path: str, directory: str, disk: Disk) -> bool:
    """Return whether `auto` would have `tool` write `path`, in the project `directory` of `disk`, without a question.

    Where that cannot be found out, it is no.
    """
    if tool not in _UNASKED_TOOLS:
        return False
    try:
        settings = _settings_files(directory, disk.environ)
        disk.expect([path, *map(os.path.dirname, settings)], settings)
        rules = _Rules(directory, disk)
        return not any(_concerns_edits(rule) for rule in rules.ask) and not rules.protect(path)
    except (LayerError, OSError):
        return False


def unasked_effects(
    command: str, directory: str, projects: Sequence[str], disk: Disk, earlier: Sequence[Effects] = ()
) -> Effects | None:
    """Return the effects of the shell `command` in `directory` of `disk` if it may run without a question.

    None where it may not: where the user's rules ask, or it may do more than change files in all of `projects`, the
    first of them the CLI's, that the user's rules let pass or `auto` does not protect.  `earlier` are the effects of
    commands and edits that may not have run yet when this one is asked about, and have when it runs.
    """
    try:
        return _unasked_effects(command, directory, projects, disk, earlier)
    except (LayerError, UnclearError, OSError, ValueError):
        # The last for names that can be no names of files.
        return None


def _unasked_effects(
    command: str, directory: str, projects: Sequence[str], disk: Disk, earlier: Sequence[Effects]
) -> Effects | None:
    environ, parts = disk.environ, split(command)
    words = (
        os.path.join(directory, word.text) for part in parts for word in (*part.words, *part.outputs, *part.inputs)
    )
    places = [os.path.join(directory, place) for place in environ.get("PATH", os.defpath).split(os.pathsep)]
    settings = _settings_files(projects[0], environ)
    folders = (directory, *projects, *places, *map(os.path.dirname, settings))
    disk.expect([*folders, *map(os.path.normpath, words)], settings)
    rules = _Rules(projects[0], disk)
    if rules.ask_about(command, parts) or (environ.get("CDPATH") and any(part.name == "cd" for part in parts)):
        return None
    found = effects(parts, directory, disk, lambda part: rules.allow_part(part, directory), earlier)
    if not found.changed and not any(rules.allow_part(part, directory) for part in parts):
        # It is not our rule that makes it ask.
        return None
    disk.expect(found.changed | found.read, ())
    inside = all(is_inside(path, project, disk) for path in found.changed for project in projects)
    read = all(path == project or is_inside(path, project, disk) for path in found.read for project in projects)
    if not (inside and read) or any(map(rules.protect, found.changed)):
        return None
    programs = {disk.real(place) for place in places}
    true = {path: disk.real(path) for path in found.changed}
    if any(_is_rule_file(name) for pair in true.items() for name in pair):
        return None
    return None if any(_holds_program(path, programs) for path in true.values()) else found


def _is_rule_file(path: str) -> bool:
    return os.path.basename(path).lower() in _RULE_FILES


def _holds_program(true: str, places: Collection[str]) -> bool:
    """Return whether the shell, which looks for programs in `places`, may find one at the path `true` or below it."""
    return any(os.path.dirname(true) == place or f"{place}/".startswith(f"{true}/") for place in places)


class _Rules:
    """The user's rules and protected files in the project `directory` of `disk`."""

    def __init__(self, directory: str, disk: Disk) -> None:
        """Read all settings.

        :raises LayerError: when one of them cannot be read
        """
        self._disk, environ = disk, disk.environ
        settings = [disk.settings(path) for path in _settings_files(directory, environ)]
        self.ask = [rule for one in settings for rule in _items(one, "permissions", "ask")]
        self._allow = [rule for one in settings for rule in _items(one, "permissions", "allow")]
        names = (name for one in settings for name in _items(one, "context", "fileName"))
        self._names = tuple("/" + name.strip("/").lower() for name in names if name.strip("/"))
        home = environ.get("QWEN_HOME")
        self._home = os.path.abspath(os.path.expanduser(home)) if home else None
        hints = ("softDeny", "hardDeny", "deny")
        self._is_strict = any(
            _value(one, *_AUTO_MODE, "classifyAllShell") is True
            or any(_items(one, *_AUTO_MODE, "hints", hint) for hint in hints)
            for one in settings
        )

    def protect(self, path: str) -> bool:
        """Return whether `auto` asks its classifier about writing `path`, or about what is below it."""
        for candidate in (os.path.normpath(path).lower(), self._disk.real(path).lower()):
            if any(pattern.search(name) for pattern in _PROTECTED for name in (candidate, candidate + "/")):
                return True
            if candidate.endswith(self._names):
                return True
        return self._home is not None and (path == self._home or is_inside(path, self._home, self._disk))

    def ask_about(self, command: str, parts: Sequence[Simple]) -> bool:
        """Return whether the user's rules may ask about `command`, or the classifier has orders of the user's."""
        return self._is_strict or any(_may_concern(rule, command, parts) for rule in self.ask)

    def allow_part(self, part: Simple, directory: str) -> bool:
        """Return whether a rule of the user's lets `part` of a command in `directory` run unasked also in `auto`."""
        if not any(_allows(rule, part) for rule in self._allow):
            return False
        return not any(self.protect(os.path.join(directory, word.text)) for word in (*part.words, *part.outputs))


_AUTO_MODE = ("permissions", "autoMode")

_SHELL_RULE = re.compile(r"(?:Bash|Shell|ShellTool|run_shell_command)(?:\s*\((.*)\))?", re.DOTALL)

_NO_COMMAND = re.compile(r"(monitor|webfetch|web_fetch|agent|skill)\b|mcp__", re.IGNORECASE)
"""Beginnings of rules that concern no shell command."""


def _may_concern(rule: str, command: str, parts: Sequence[Simple]) -> bool:
    """Return whether the rule may be about `command`; those for files are taken to be about all files."""
    shell = _SHELL_RULE.fullmatch(rule.strip())
    if shell is None:
        return _NO_COMMAND.match(rule.strip()) is None
    pattern = shell[1] or "*"
    first = re.split(r"[\s:*]", pattern, maxsplit=1)[0]
    return not first or any(first == part.name for part in parts) or _matches(pattern, command)


def _allows(rule: str, part: Simple) -> bool:
    """Return whether the rule lets `part` run in `auto`, where rules that let any program run do not count."""
    shell = _SHELL_RULE.fullmatch(rule.strip())
    pattern = (shell and shell[1]) or "*"
    if not _matches(pattern, part.text):
        return False
    first = re.split(r"[\s:*]", pattern, maxsplit=1)[0]
    return first in FILE_PROGRAMS or ("*" not in pattern and " " in pattern)


def _matches(pattern: str, command: str) -> bool:
    """Return whether the `pattern` of a rule matches `command` as the CLI has it."""
    pattern = pattern.replace(":*", " *")
    if "*" not in pattern:
        return command == pattern or command.startswith(pattern + " ")
    expression = re.escape(pattern).replace(r"\ \*", "( .*)?").replace(r"\*", ".*")
    return re.fullmatch(expression, command, re.DOTALL) is not None


def why_hooks_are_off(directory: str, environ: Mapping[str, str], version: str) -> str | None:
    """Return which setting keeps a CLI in `directory` from calling our hooks, in words; None where none is seen.

    `version` is that of the CLI, "" for an unknown one.
    """
    hooks: list[str] = []
    user, project = user_settings_file(environ), _project_settings_file(directory)
    try:
        is_distrusted = _is_distrusted(directory, environ)
        # Those of a project that is not trusted are not read.
        files = [path for path in _settings_files(directory, environ) if not (is_distrusted and path == project)]
        found = [(path, read_settings(path)) for path in files]
    except LayerError as error:
        return str(error)
    for path, settings in found:
        if settings.get("disableAllHooks") is True:
            return f"disableAllHooks in {path}"
        if _items(settings, "security", "allowedHttpHookUrls"):
            return f"security.allowedHttpHookUrls in {path}"
        if settings.get("hooks") is not None:
            hooks.append(path)
    if not () < version_numbers(version) < _ALL_HOOKS_SINCE or user not in hooks:
        return None
    if is_distrusted:
        way_out = "trust it, or update Qwen Code"
        return f"hooks in {user} switch off all others in a folder that is not trusted: {way_out}"
    if project in hooks:
        way_out = "move them into one of the files, or update Qwen Code"
        return f"hooks in {user} and in {project} switch off all others: {way_out}"
    return None


def _is_distrusted(directory: str, environ: Mapping[str, str]) -> bool:
    """Return whether the user has told the CLI not to trust `directory`.  LayerError."""
    files = (system_settings_file(environ), user_settings_file(environ), replaced_file(environ))
    enabled = (_value(read_settings(path), "security", "folderTrust", "enabled") for path in files)
    if next((value for value in enabled if value is not None), None) is not True:
        return False
    beside = os.path.join(os.path.dirname(user_settings_file(environ)), "trustedFolders.json")
    rules = read_settings(environ.get("QWEN_CODE_TRUSTED_FOLDERS_PATH") or beside)
    places = [(os.path.dirname(path) if level == "TRUST_PARENT" else path, level) for path, level in rules.items()]
    matching = [
        (len(path), level) for path, level in places if path == directory or is_inside(directory, path, Disk(environ))
    ]
    # The innermost counts.
    return max(((length, level == "DO_NOT_TRUST") for length, level in matching), default=(0, False))[1]


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the first three numbers of `version`, fewer where it has not as many."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def user_settings_file(environ: Mapping[str, str]) -> str:
    """Return the user's own file of settings."""
    home = environ.get("QWEN_HOME") or os.path.join(environ.get("HOME") or "~", ".qwen")
    return os.path.join(os.path.expanduser(home), "settings.json")


def _project_settings_file(directory: str) -> str:
    return os.path.join(directory, ".qwen", "settings.json")


def _settings_files(directory: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return all files of settings but our layer: the user's, the project's and the administrator's."""
    return (
        user_settings_file(environ),
        _project_settings_file(directory),
        system_settings_file(environ),
        replaced_file(environ),
    )


def _value(settings: JsonObject, *keys: str) -> object:
    value: Any = settings
    for key in keys:
        value = as_object(value).get(key)
    return value


def _items(settings: JsonObject, *keys: str) -> list[str]:
    """Return the strings at `keys`, where a single one may stand."""
    value = _value(settings, *keys)
    values = cast("list[object]", value if isinstance(value, list) else [value])
    return [item for item in values if isinstance(item, str)]


def _concerns_edits(rule: str) -> bool:
    return _OTHER_TOOLS.match(rule.strip()) is None
