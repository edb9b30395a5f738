# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables of facts about a change, and the agents that may have made it.  Times are in seconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen_companion.domain import KnownSession, Peer
from qwen_companion.journal.activity import Probe
from qwen_companion.journal.authors import Changed, Scan, authors_of
from qwen_companion.journal.root import Running, SilentCli, Worker, row_of
from qwen_companion.journal.store import CHAT, DISK, HOOKS
from qwen_companion.journal.subscriptions import SHELL_TOOL
from qwen_companion.journal.witness import DiskEvent

PEER = Peer(1, "", None, None, ())


class Ran:
    """Processes that were active at the times of `ran` only; nothing is known of others."""

    def __init__(self, ran: Mapping[int, Sequence[float]]) -> None:
        self._ran = ran

    def may_have_acted(self, probe: Probe | None, begin: float, end: float, grace: float = 0) -> bool:
        times = None if probe is None else self._ran.get(probe.pid)
        return times is None or any(begin - grace <= time <= end for time in times)


def running(session: str, source: str, begin: float) -> Running:
    return Running(row_of(session, "Qwen Code", source, "Fix it", 0, None), begin=begin)


def turn(session: str, begin: float, end: float = math.inf, pid: int | None = None) -> Worker:
    """Return a turn whose tools are reported by hooks, of process `pid`."""
    probe = None if pid is None else Probe(pid)
    return Worker(session, DISK, running(session, HOOKS, begin), probe, begin=begin, end=end)


def command(session: str, begin: float, end: float = math.inf, pid: int | None = None) -> Worker:
    probe = None if pid is None else Probe(pid, below=True)
    worker = Worker(session, SHELL_TOOL, running(session, HOOKS, begin), probe, runs_tool=True, begin=begin)
    return replace(worker, end=end)


def chat(session: str, begin: float, end: float = math.inf, tool: str = DISK, is_lost: bool = False) -> Worker:
    work = running(session, CHAT, begin)
    return Worker(session, tool, work, runs_tool=tool != DISK, is_lost=is_lost, begin=begin, end=end)


def silent(
    session: str, since: float, end: float = math.inf, pid: int = 9, seen: float = 0, serves: bool = False
) -> Worker:
    """Return a CLI that calls no hooks, or with `serves` an agent of a daemon."""
    cli = SilentCli(KnownSession(session, "", "", "", PEER), PEER, since, seen)
    return Worker(session, DISK, None, Probe(pid), cli=cli, serves_chats=serves, begin=since, end=end)


ROWS: dict[str, tuple[Sequence[Worker], float, Mapping[int, Sequence[float]], set[str]]] = {
    "in a turn": ([turn("A", 10, 15)], 14.9, {}, {"A"}),
    "after a turn": ([turn("A", 10, 15)], 15.5, {}, set()),
    "before a turn": ([turn("A", 10)], 9.9, {}, set()),
    "in the next turn": ([turn("A", 10, 15), turn("B", 15.2)], 15.4, {}, {"B"}),
    "in a turn whose CLI was idle": ([turn("A", 10, 15, 1)], 12, {1: [10.5, 14]}, set()),
    "by a child of a CLI that waits": ([turn("A", 10, 15, 1)], 12, {1: [11.6]}, {"A"}),
    "in a command of one of two agents": ([turn("A", 10), command("A", 11, 13), turn("B", 10)], 12, {}, {"A"}),
    "before the command of another agent": ([command("A", 11, 13), command("B", 13.3, 15)], 12, {}, {"A"}),
    "in a command that is reported late": ([command("A", 11.1, 11.6), command("B", 11.6, 14)], 11.3, {}, {"A"}),
    "in two commands": ([command("A", 11, 13), command("B", 11, 13)], 11.5, {}, {"A", "B"}),
    "in two commands, one asleep": ([command("A", 11, 13, 1), command("B", 11, 13, 2)], 11.5, {1: [12.5]}, {"B"}),
    "in two commands, both asleep": (
        [command("A", 11, 13, 1), command("B", 11, 13, 2)],
        11.5,
        {1: [12.5], 2: [12.5]},
        {"A", "B"},
    ),
    "by a process left behind": ([turn("A", 10, 15), turn("A", 10, pid=1)], 16, {1: [16]}, {"A"}),
    "after a turn whose process sleeps": ([turn("A", 10, 15), turn("A", 10, pid=1)], 16, {1: [14]}, set()),
    "by a CLI without hooks": ([silent("G", 11, 12.4)], 12, {}, {"G"}),
    "before a CLI without hooks": ([silent("G", 11, 12.4)], 10.5, {}, set()),
    "by one of two CLIs without hooks": ([silent("G", 1, pid=1), silent("H", 1, pid=2)], 12, {}, {"G", "H"}),
    "by one of two that goes on": ([silent("G", 1, pid=1), silent("H", 1, pid=2)], 12, {1: [12], 2: [12, 13]}, {"H"}),
    "by the active one of two": ([silent("G", 1, pid=1), silent("H", 1, pid=2)], 12, {1: [12], 2: [5]}, {"G"}),
    "while a known CLI and a new one work": ([silent("G", 1), silent("N", 1, pid=8, seen=13)], 12, {}, {"G"}),
    "in the tool of a chat": ([chat("C", 10, tool="edit", end=12.5), turn("A", 10)], 12, {}, {"C"}),
    "by the agent of a chat": ([chat("C", 10), silent("S", 1, serves=True)], 12, {}, {"C"}),
    "in a lost chat or by a CLI that draws": ([chat("C", 11, is_lost=True), silent("G", 1)], 12, {9: [12]}, {"C", "G"}),
    "in a lost chat while a CLI is idle": ([chat("C", 11, is_lost=True), silent("G", 1)], 12, {9: [5]}, {"C"}),
}


def sessions(found: Sequence[Worker]) -> set[str]:
    return {each.session for each in found}


@pytest.mark.parametrize("row", list(ROWS))
def test_the_authors_of_a_change_whose_time_is_exact(row: str) -> None:
    workers, time, ran, expected = ROWS[row]
    scan = Scan(since=9, asked=17, now=17)
    for order in permutations(workers):
        assert sessions(authors_of(Changed(b"a", time, is_exact=True), None, scan, order, Ran(ran))) == expected


EVENTS: Sequence[tuple[DiskEvent | None, Sequence[Worker], set[str]]] = [
    (None, [turn("A", 10, 15)], {"A"}),
    (None, [turn("A", 10, 15), command("B", 11, 12)], {"B"}),
    (None, [turn("A", 17.5)], set()),
    (DiskEvent(12, 12.1), [command("A", 11, 11.5), turn("B", 10)], {"B"}),
    (DiskEvent(12, 12.1), [command("A", 11, 13), command("B", 11, 13)], {"A", "B"}),
    (DiskEvent(12, 12.1, {"A", "B"}, {"B"}), [command("A", 11, 13), command("B", 11, 13)], {"B"}),
    (DiskEvent(12, 12.1, {"A"}, set()), [command("A", 11, 13)], {"A"}),
]


@pytest.mark.parametrize(("event", "workers", "expected"), EVENTS)
@pytest.mark.parametrize("time", [-math.inf, 3600])
def test_the_authors_of_a_change_whose_time_is_unknown(
    time: float, event: DiskEvent | None, workers: Sequence[Worker], expected: set[str]
) -> None:
    """As of a deleted file, or on a disk whose clock is ahead."""
    for order in permutations(workers):
        changed = Changed(b"a", time, is_exact=time > 0)
        assert sessions(authors_of(changed, event, Scan(9, 17, 17), order, Ran({}))) == expected


SPANS = st.tuples(st.integers(0, 300), st.integers(1, 100)).map(lambda span: (span[0] / 10, (span[0] + span[1]) / 10))


def worker(kind: Callable[[str, float, float], Worker], session: str, span: tuple[float, float]) -> Worker:
    return kind(session, *span)


KINDS: Sequence[Callable[[str, float, float], Worker]] = (turn, command, chat, silent)
WORKERS = st.lists(st.builds(worker, st.sampled_from(KINDS), st.sampled_from("ABCD"), SPANS), max_size=5)


@given(WORKERS, st.integers(90, 170))
def test_the_order_of_agents_decides_nothing(workers: list[Worker], moment: int) -> None:
    changed, scan = Changed(b"a", moment / 10, is_exact=True), Scan(9, 17, 17)
    found = [sessions(authors_of(changed, None, scan, order, Ran({}))) for order in permutations(workers)]
    assert all(each == found[0] for each in found)


@given(WORKERS, st.integers(90, 169), SPANS)
def test_a_command_that_ran_at_the_time_is_among_the_authors_and_no_turn_that_had_ended(
    workers: list[Worker], moment: int, span: tuple[float, float]
) -> None:
    time = moment / 10
    true = command("true", min(time, span[0]), max(time + 0.1, span[1]))
    found = authors_of(Changed(b"a", time, is_exact=True), None, Scan(9, 17, 17), [*workers, true], Ran({}))
    assert true in found
    assert all(each.end >= time for each in found)
