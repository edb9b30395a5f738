# SPDX-License-Identifier: GPL-3.0-or-later
"""Put changes of agents into the user's index of git, and nothing else, or write them as a patch.

A change is a file before and after it, as bytes on the disk.  The user's git converts both to their form in the
repository, with line ends as in `git add`, and for a commit with filters too; it does so in a directory with an index
of our own.  In the user's index all entries are replaced at once; the user's files are not changed.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from qwen_companion.base.errors import CompanionError
from qwen_companion.base.git import Git, items, place
from qwen_companion.files.repository import Repository, find_repository
from qwen_companion.files.versions import FILE, LINK, Loaded, Version, digest_of, git_mode
from qwen_companion.journal.changes import Net, is_binary, merged_bytes
from qwen_companion.privacy.verdicts import printable

_OPTIONS = (
    *("-c", "core.safecrlf=false", "-c", "core.filemode=true", "-c", "core.symlinks=true"),
    *("-c", "advice.addEmbeddedRepo=false", "-c", "core.quotePath=true"),
)

_GITLINK = "160000"

_BEGUN = {"MERGE_HEAD": "merge", "CHERRY_PICK_HEAD": "cherry-pick", "REVERT_HEAD": "revert"}
"""The files of a repository that exist while git waits for a commit to complete an operation."""


class StagingError(CompanionError):
    """Changes cannot be put into the index or a patch; the message has the reason."""


class OthersStagedError(StagingError):
    """Nothing was put into the index, which has `count` files with other changes."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} other files are staged")
        self.count = count


@dataclass(frozen=True)
class Entry:
    """A file in an index: git's `mode`, in octal, and the digest of its bytes."""

    mode: str
    digest: str


class Staging:
    """The index and patches of one root.  Its methods block on git and the disk.

    They raise StagingError, GitError and OSError.
    """

    def __init__(self, root: str, environ: Mapping[str, str], is_here: bool = True) -> None:
        """`root` is the true name of a directory, in a repository of the user's or in none.

        For a remote one, only patches can be made.
        """
        self._root = root
        self._environ = environ
        self._repository = find_repository(root) if is_here else None
        self._top = self._repository.top if self._repository else root

    def stage(self, nets: Sequence[Net], onto_staged: bool = False) -> int:
        """Put the changes `nets` into the user's index, and return the number of files with changes there now.

        The index must equal the last commit, unless the changes may come `onto_staged` ones.
        """
        repository = self._repository
        if repository is None:
            raise StagingError(f"{self._root} is not in a git repository")
        git = Git(self._environ)
        options = (*_OPTIONS, *place(repository.directory, self._top))
        index = self._index(git, options)
        for mark, what in _BEGUN.items():
            if os.path.lexists(os.path.join(repository.directory, mark)):
                raise StagingError(f"a {what} is in progress, which a commit would end; commit or abort it first")
        committed = self._committed(git, options)
        names = [self._name(path) for net in nets for path in (net.path, net.previous) if path is not None]
        self._check(git, options, index, names)
        staged = set(self._staged(git, options, index))
        others = set(staged)
        changed: dict[bytes, Entry | None] = {}
        count = 0
        with tempfile.TemporaryDirectory() as directory:
            work = _Work(git, directory, repository, None)
            before, after = work.entries(nets, self._name, before=True), work.entries(nets, self._name, before=False)
            for net in nets:
                own = {self._name(net.path), self._name(net.previous or net.path)}
                there = index
                if own & staged and self._is_its_own(work, net, (index, committed), before, after):
                    others -= own
                    there = committed
                wanted = self._wanted(work, net, (there, committed), before, after)
                found = {name: entry for name, entry in wanted.items() if index.get(name) != entry}
                # Or it is there already: a commit of it was begun and failed, or was given up.
                count += bool(found or own & staged)
                changed |= found
        if others and not onto_staged:
            raise OthersStagedError(len(others))
        if count == 0:
            raise StagingError("it is in the last commit already")
        lines: list[bytes] = []
        for name, entry in changed.items():
            told = entry or Entry("0", "0" * len(index[name].digest))
            lines.append(f"{told.mode} {told.digest}\t".encode() + name + b"\0")
        git.run(["update-index", "-z", "--index-info"], self._top, b"".join(lines), (0,), options, {})
        return count

    def patch(self, nets: Sequence[Net]) -> bytes:
        """Return the changes `nets` as a patch for `git apply`."""
        with tempfile.TemporaryDirectory() as directory:
            git = Git(self._environ)
            work = _Work(git, directory, self._repository, os.path.join(directory, "objects"))
            entries = [work.entries(nets, self._name, before) for before in (True, False)]
            return work.difference(*map(work.tree, entries))

    def _name(self, path: bytes) -> bytes:
        """Return the name of `path` below the top of the repository."""
        name = os.path.relpath(path, os.fsencode(self._top))
        if name.startswith(b".."):
            raise StagingError(f"the file {printable(os.fsdecode(name))} is not in the repository {self._top}")
        return name

    # --- The user's index ---

    def _index(self, git: Git, options: Sequence[str]) -> dict[bytes, Entry]:
        """Return the entries of the user's index by their names."""
        found: dict[bytes, Entry] = {}
        for line in items(git.run(["ls-files", "-z", "-s"], self._top, options=options)):
            entry, _, name = line.partition(b"\t")
            mode, digest, stage = entry.decode().split(" ")
            if stage != "0":
                raise StagingError(f"the index has a conflict in {printable(os.fsdecode(name))}; resolve it first")
            found[name] = Entry(mode, digest)
        return found

    def _check(self, git: Git, options: Sequence[str], index: Mapping[bytes, Entry], names: Sequence[bytes]) -> None:
        """Check that the files `names` belong to this repository, and are not ignored."""
        for name in names:
            directory = name
            while directory:
                is_module = directory in index and index[directory].mode == _GITLINK
                mark = os.path.join(os.fsencode(self._top), directory, b".git")
                if is_module or (directory != name and os.path.lexists(mark)):
                    called = printable(os.fsdecode(name))
                    raise StagingError(f"the file {called} is in a repository of its own or a submodule")
                directory = os.path.dirname(directory)
        new = [name for name in names if name not in index]
        if new:
            command = ["check-ignore", "-z", "--stdin", "--no-index"]
            listed = b"".join(b"./" + name + b"\0" for name in new)
            for name in items(git.run(command, self._top, listed, (0, 1), options)):
                raise StagingError(f"git ignores {printable(os.fsdecode(name[2:]))}")

    def _head(self, git: Git, options: Sequence[str]) -> str | None:
        """Return the digest of the tree of the last commit, None without one."""
        head = git.run(["rev-parse", "--verify", "--quiet", "HEAD^{tree}"], self._top, b"", (0, 1), options)
        return head.decode().strip() or None

    def _committed(self, git: Git, options: Sequence[str]) -> dict[bytes, Entry]:
        """Return the entries of the last commit by their names."""
        found: dict[bytes, Entry] = {}
        head = self._head(git, options)
        for line in items(git.run(["ls-tree", "-r", "-z", head], self._top, options=options)) if head else ():
            entry, _, name = line.partition(b"\t")
            mode, _, digest = entry.decode().split(" ")
            found[name] = Entry(mode, digest)
        return found

    def _staged(self, git: Git, options: Sequence[str], index: Mapping[bytes, Entry]) -> list[bytes]:
        """Return the names in the index that differ from the last commit."""
        head = self._head(git, options)
        if head is None:
            return list(index)
        command = ["diff-index", "--cached", "--name-only", "-z", "--ita-invisible-in-index", head]
        return items(git.run(command, self._top, options=options))

    def _is_its_own(
        self,
        work: _Work,
        net: Net,
        trees: tuple[Mapping[bytes, Entry], Mapping[bytes, Entry]],
        before: Mapping[bytes, Entry],
        after: Mapping[bytes, Entry],
    ) -> bool:
        """Return whether the index contains of the files of `net` only what the agent has put there itself.

        `trees` are the index and the last commit.
        """
        index, committed = trees
        name, old = self._name(net.path), self._name(net.previous or net.path)
        if old != name and old not in index and old in committed and index.get(name) == committed[old]:
            # Moved by `git mv`, and edited after that.
            return True
        try:
            wanted = self._wanted(work, net, (committed, committed), before, after)
        except StagingError:
            return False
        return all(index.get(each) == {**committed, **wanted}.get(each) for each in (name, old))

    def _wanted(
        self,
        work: _Work,
        net: Net,
        trees: tuple[Mapping[bytes, Entry], Mapping[bytes, Entry]],
        before: Mapping[bytes, Entry],
        after: Mapping[bytes, Entry],
    ) -> dict[bytes, Entry | None]:
        """Return the entries of a tree after the change `net`, None for one to remove.

        `trees` are that tree and the last commit.
        """
        index, committed = trees
        name = self._name(net.path)
        old = name if net.previous is None else self._name(net.previous)
        was, now, there = before.get(old), after.get(name), index.get(old)
        printed = f"the file {printable(os.fsdecode(old))}"
        if was is None and there is not None and not work.bytes_of(there.digest):
            # Only announced, by `git add --intent-to-add`.
            there = None
        if there == now and old == name:
            return {}
        if was is None and there is not None:
            raise StagingError(f"{printed} is in the repository with another text, and new in the change")
        if was is not None and there is None and old in committed:
            raise StagingError(f"{printed} is deleted in the index, and edited in the change")
        if was is not None and there is None:
            raise StagingError(f"{printed} was not in the repository before the change; commit it as it was first")
        if old != name and name in index:
            raise StagingError(f"the file {printable(os.fsdecode(name))} is in the repository already")
        if was is None or there is None or now is None or was.digest == there.digest:
            if was is not None and there is not None and now is None and was.digest != there.digest:
                raise StagingError(f"{printed} is deleted, and has other changes that are not committed")
            result = now
        else:
            result = replace(now, digest=work.merged(printed, was, there, now))
        if result is not None and was is not None and there is not None and was.mode == result.mode:
            result = replace(result, mode=there.mode)
        # A name may be free only after the old one is removed.
        return {**({} if old == name else {old: None}), name: result}


def part_of(net: Net, data: bytes) -> Net:
    """Return the part of the change `net` after which the file is `data`, with its mode unchanged."""
    side = net.before or net.after
    mode = FILE if side is None else side.version.mode
    return replace(net, after=Loaded(Version(digest_of(data), mode), data))


class _Work:
    """A directory of ours in which git converts files to their form in the repository."""

    def __init__(self, git: Git, directory: str, repository: Repository | None, objects: str | None) -> None:
        """Put new objects into the directory `objects`, by default into those of the `repository`.

        Only in the second case filters run, as in `git add`.
        """
        self._git = git
        self._runs_filters = objects is None
        self._directory = directory
        self._index = os.path.join(directory, "index")
        own = os.path.join(directory, "repository")
        if repository is None:
            git.run(["init", "--quiet", "--bare", "--template=", own], directory)
        elif os.path.isfile(os.path.join(repository.directory, "index")):
            # Git's version of a file decides whether its line ends are converted.
            shutil.copyfile(os.path.join(repository.directory, "index"), self._index)
        # Without a repository, bytes are not converted.
        self._options = ["-c", "core.autocrlf=false", "-c", "core.attributesFile="] if repository is None else []
        self._git_directory = own if repository is None else repository.directory
        self._variables: dict[str, str] = {"GIT_INDEX_FILE": self._index}
        if objects is not None and repository is not None:
            os.mkdir(objects)
            alternate = os.path.join(repository.common, "objects")
            self._variables |= {"GIT_OBJECT_DIRECTORY": objects, "GIT_ALTERNATE_OBJECT_DIRECTORIES": alternate}

    def _run(self, command: Sequence[str | bytes], data: bytes = b"", tree: str | None = None) -> bytes:
        top = tree or self._directory
        options = (*_OPTIONS, *self._options, *place(self._git_directory, top))
        return self._git.run(command, top, data, (0,), options, self._variables, self._runs_filters)

    def entries(self, nets: Iterable[Net], name_of: Callable[[bytes], bytes], before: bool) -> dict[bytes, Entry]:
        """Return the files of `nets` `before` their changes, or after them, as git would add them."""
        tree = tempfile.mkdtemp(dir=self._directory)
        names: list[bytes] = []
        for net in nets:
            side = net.before if before else net.after
            if side is not None:
                names.append(name_of(net.previous if before and net.previous is not None else net.path))
                _put(os.path.join(os.fsencode(tree), names[-1]), side)
        listed = b"\0".join([*names, b""]) if names else b""
        self._run(["update-index", "--add", "--replace", "-z", "--stdin"], listed, tree)
        found: dict[bytes, Entry] = {}
        wanted = set(names)
        for line in items(self._run(["ls-files", "-z", "-s"], tree=tree)):
            entry, _, name = line.partition(b"\t")
            if name in wanted:
                found[name] = Entry(*entry.decode().split(" ")[:2])
        return found

    def bytes_of(self, digest: str) -> bytes:
        """Return the bytes of a blob."""
        return self._run(["cat-file", "blob", digest])

    def merged(self, name: str, was: Entry, there: Entry, now: Entry) -> str:
        """Return the digest of `there` with the changes from `was` to `now`; all are versions of the file `name`."""
        base, mine, theirs = (self.bytes_of(each.digest) for each in (was, there, now))
        is_text = not any(is_binary(side) for side in (base, mine, theirs))
        if not is_text or "120000" in (was.mode, there.mode, now.mode):
            raise StagingError(f"{name} has other changes that are not committed")
        data = merged_bytes(base, mine, theirs)
        if data is None:
            raise StagingError(f"the change of {name} does not stand on the last commit, but on what is not committed")
        return self._run(["hash-object", "-w", "--no-filters", "--stdin"], data).decode().strip()

    def tree(self, entries: Mapping[bytes, Entry]) -> str:
        """Return the digest of a tree of `entries`."""
        with suppress(FileNotFoundError):
            os.unlink(self._index)
        lines = (f"{entry.mode} {entry.digest}\t".encode() + name + b"\0" for name, entry in entries.items())
        self._run(["update-index", "-z", "--index-info"], b"".join(lines))
        return self._run(["write-tree"]).decode().strip()

    def difference(self, old: str, new: str) -> bytes:
        """Return a patch from the tree `old` to `new`."""
        style = ("--full-index", "--binary", "--find-renames", "--no-color", "--no-ext-diff", "--no-textconv")
        return self._run(["diff-tree", "-r", "-p", *style, "--src-prefix=a/", "--dst-prefix=b/", old, new])


def _put(path: bytes, side: Loaded) -> None:
    """Create the file or link `side` at `path`."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if side.version.mode == LINK:
        os.symlink(side.data, path)
    else:
        with open(path, "wb") as file:
            file.write(side.data)
        os.chmod(path, stat.S_IMODE(git_mode(side.version.mode)))
