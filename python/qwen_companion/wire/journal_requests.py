# SPDX-License-Identifier: GPL-3.0-or-later
"""Answer Emacs's requests about the journal."""

from __future__ import annotations

import base64
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial

from qwen_companion.base.errors import CompanionError
from qwen_companion.base.file_names import file_name
from qwen_companion.base.tasks import log_failure
from qwen_companion.base.threads import in_thread
from qwen_companion.files.versions import LINK, Loaded, has_no_attributes, inode_at
from qwen_companion.journal.answers import RecordError, Scope, changed_file
from qwen_companion.journal.changes import MissingTextError, Net
from qwen_companion.journal.commit_notes import CommitNotes
from qwen_companion.journal.journal import Journal
from qwen_companion.journal.names import Names
from qwen_companion.journal.record import Record
from qwen_companion.journal.sites import ThisMachine
from qwen_companion.journal.staging import OthersStagedError, Staging, part_of
from qwen_companion.journal.worktree_list import WorktreeList
from qwen_companion.wire import messages

_BYTES = 8 * 1024 * 1024
"""Bytes of texts in one answer or file: Emacs requests more while it works on these."""


async def note(journal: Journal, call: messages.JournalNote) -> None:
    """Record what the user has done."""
    if isinstance(call, messages.JournalSeen):
        journal.mark(call.turn, call.path, call.hunks, call.seen)
    elif isinstance(call, messages.JournalRewound):
        journal.rewound(call.conversation, call.since, call.copy, call.begins)
    elif call.action == "merge":
        await journal.merged(call.paths, call.turn, call.label or "")
    elif call.action == "commit":
        journal.roots.committed()
    else:
        await journal.wrote(call.paths, call.turn, call.label, call.action == "bring-back")


async def answer(
    load: Callable[[], Awaitable[Journal]], environ: Mapping[str, str], call: messages.JournalRequest
) -> messages.JournalReply:
    """Carry `call` out, and return the answer to it.

    `load` returns the journal.  What git knows of worktrees need not wait until each of their records is open.
    """
    try:
        return await _reply(load, environ, call)
    except (CompanionError, MissingTextError, OSError) as error:
        return messages.JournalReply(call.id, error=str(error) or "its text is not kept any more")
    except Exception as error:  # noqa: BLE001 - Emacs waits for an answer
        log_failure(_reply, error)
        return messages.JournalReply(call.id, error="The journal failed; see the buffer *qwen-companion log*")


async def _reply(
    load: Callable[[], Awaitable[Journal]], environ: Mapping[str, str], call: messages.JournalRequest
) -> messages.JournalReply:
    if isinstance(call, messages.JournalWorktrees):
        trees = WorktreeList(call.root, environ)
        found = await in_thread(lambda: trees.trees() if call.tree is None else [trees.examined(call.tree)])
        return messages.JournalReply(call.id, worktrees=found)
    journal = await load()
    match call:
        case messages.JournalBusy():
            busy = await journal.turns.wait_until_idle(call.paths) if call.wait else journal.turns.busy(call.paths)
            return messages.JournalReply(call.id, busy=busy)
        case messages.JournalPrune():
            return messages.JournalReply(call.id, sizes=await journal.prune(call.root, call.turns))
        case messages.JournalMerge():
            return messages.JournalReply(call.id, root=await journal.prepare_merge(call.root))
        case messages.JournalFiles() | messages.JournalTexts() | messages.JournalStage():
            if call.scope.scope in messages.OF_WORKTREES:
                return await in_thread(_differences, call, environ)
            record = journal.roots.record_of(call.scope.root)
            if call.scope.scope == "commit" and not isinstance(call, messages.JournalStage):
                await journal.look(journal.roots.by_name[call.scope.root])
            return await in_thread(_changes, record, call, environ)
        case messages.JournalPrompts():
            records = [root.record for root in journal.roots.by_name.values()]
            return await in_thread(_prompts, records, call, journal.roots.names, environ)
        case _:
            return await in_thread(lambda: _about_file(journal.roots.record_around(call.path), call, environ))


def _changes(
    record: Record,
    call: messages.JournalFiles | messages.JournalTexts | messages.JournalStage,
    environ: Mapping[str, str],
) -> messages.JournalReply:
    scope = _scope(record, call.scope)
    if isinstance(call, messages.JournalFiles):
        return messages.JournalReply(call.id, files=record.answers.files(scope))
    nets = record.answers.texts([(file.path, file.previous) for file in call.files], scope)
    if isinstance(call, messages.JournalStage):
        return _stage(record, call, nets, environ)
    return _reply_with_texts(call, nets, record.names, record.answers.linked(scope))


def _about_file(
    record: Record | None,
    call: messages.JournalSpans | messages.JournalOrigins | messages.JournalFile | messages.JournalPut,
    environ: Mapping[str, str],
) -> messages.JournalReply:
    if isinstance(call, messages.JournalOrigins):
        return _origins(record, call, environ)
    if isinstance(call, messages.JournalSpans):
        return messages.JournalReply(call.id, spans=() if record is None else record.answers.spans(call.path))
    name = None if record is None else record.names.name_in(call.path)
    if record is None or name is None:
        raise RecordError(f"Nothing is recorded of {call.path}")
    if isinstance(call, messages.JournalFile):
        return messages.JournalReply(call.id, texts=[messages.Texts(call.path, None, _version(record.look(name)))])
    data = None if call.delete else base64.b64decode(call.text)
    record.site.write(name, call.expected, data, LINK if call.link else call.mode, call.since)
    return messages.JournalReply(call.id)


def _scope(record: Record, scope: messages.ChangeScope) -> Scope:
    number = None if scope.turn is None else record.names.number(scope.turn)
    if scope.turn is not None and number is None:
        raise RecordError("the turn is not one of this root")
    return Scope(scope.scope, number, scope.session)


def _differences(
    call: messages.JournalFiles | messages.JournalTexts | messages.JournalStage, environ: Mapping[str, str]
) -> messages.JournalReply:
    scope = call.scope
    if isinstance(call, messages.JournalStage):
        raise RecordError("only changes in turns can be given to git")
    root = os.path.realpath(scope.root)
    names = Names(scope.root, "", root, os.path.realpath)
    trees = WorktreeList(scope.root, environ)

    def differences(only: Collection[bytes] | None = None) -> list[Net]:
        if scope.other is not None:
            return trees.differences(root, os.path.realpath(scope.other), only)
        return trees.since_begun(root, scope.scope == "merge", only)

    if isinstance(call, messages.JournalFiles):
        files = [changed_file(net, names) for net in differences()]
        return messages.JournalReply(call.id, files=[file for file in files if file.kind])
    told = [names.told(file.path) or b"" for file in call.files]
    wanted = {*told, *(names.told(file.previous) or b"" for file in call.files if file.previous)}
    found = {net.path: net for net in differences(wanted)}
    nets = (found.get(path) or RecordError("it does not differ any more") for path in told)
    return _reply_with_texts(call, nets, names)


def _stage(
    record: Record, call: messages.JournalStage, found: Iterable[Net | RecordError], environ: Mapping[str, str]
) -> messages.JournalReply:
    is_here = isinstance(record.site, ThisMachine)
    nets: list[Net] = []
    for file, net in zip(call.files, found, strict=True):
        if isinstance(net, RecordError):
            raise net
        nets.append(net if file.text is None else part_of(net, base64.b64decode(file.text)))
    staging = Staging(record.site.true, environ, is_here)
    if call.action == "patch":
        patch = messages.FileVersion(staging.patch(nets), None)
        return messages.JournalReply(call.id, texts=[messages.Texts("", None, patch)])
    onto_staged = call.action == "add"
    try:
        staged = staging.stage(nets, onto_staged) if is_here else record.site.stage(staging.patch(nets), onto_staged)
        return messages.JournalReply(call.id, staged=staged)
    except OthersStagedError as error:
        return messages.JournalReply(call.id, others=error.count)


def _reply_with_texts(
    call: messages.JournalTexts,
    nets: Iterable[Net | RecordError],
    names: Names,
    linked: Collection[int | None] = (),
) -> messages.JournalReply:
    """Return the reply with the texts of the first of `nets`, one for each file of `call`.

    `linked` are the inodes of files that have got names of others.
    """
    texts: list[messages.Texts] = []
    size = 0
    for file, net in zip(call.files, nets, strict=False):
        if isinstance(net, RecordError):
            texts.append(messages.Texts(file.path, error=str(net)))
            continue
        previous = None if net.previous is None else names.name_out(net.previous)
        sides = _version(net.before), _version(net.after)
        plain = has_no_attributes(net.path) or (net.previous is not None and has_no_attributes(net.previous))
        apart = inode_at(net.path) in linked
        texts.append(messages.Texts(file.path, *sides, previous, net.mixed, plain=plain, apart=apart))
        size += sum(len(side.data) for side in (net.before, net.after) if side is not None)
        if size >= _BYTES:
            break
    return messages.JournalReply(call.id, texts=texts)


def _version(loaded: Loaded | None) -> messages.FileVersion | None:
    if loaded is None:
        return None
    return messages.FileVersion(loaded.data, None if loaded.version.mode == LINK else loaded.version.mode & 0o777)


def _origins(record: Record | None, call: messages.JournalOrigins, environ: Mapping[str, str]) -> messages.JournalReply:
    data = None
    if call.text is not None:
        data = base64.b64decode(call.text) if call.encoded else call.text.encode("utf-8", "surrogatepass")
    runs, origins = ([], []) if record is None else record.answers.line_origins(call.path, data)
    if record is None or isinstance(record.site, ThisMachine):
        path = os.path.realpath(file_name(call.path, raw=True))
        lines = {line for first, count, _ in runs for line in range(first, first + count)}
        for first, count, origin in CommitNotes(os.path.dirname(path), environ).origins(path, data):
            # What the journal knows, it knows better.
            runs += [(line, 1, len(origins)) for line in range(first, first + count) if line not in lines]
            origins.append(origin)
    if record is None and not origins:
        raise RecordError("no agent has changed anything in this project")
    return messages.JournalReply(call.id, origins=origins, runs=[number for run in sorted(runs) for number in run])


def _prompts(
    records: Iterable[Record], call: messages.JournalPrompts, roots: Iterable[str], environ: Mapping[str, str]
) -> messages.JournalReply:
    notes = [CommitNotes(os.path.realpath(root), environ) for root in roots]
    known = [partial(record.answers.prompt, environ=environ) for record in records]
    sources = [*known, *(each.prompt for each in notes)]
    found = [item for turn in call.turns for source in sources if (item := source(turn)) is not None]
    prompts = "\0".join(prompt for _, prompt in found)
    return messages.JournalReply(call.id, turns=[turn for turn, _ in found], prompts=prompts)
