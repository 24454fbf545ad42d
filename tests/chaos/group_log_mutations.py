"""Rules of a group's numbers, log and snapshots, each broken on purpose (DESIGN §7)."""

from __future__ import annotations

import unittest.mock
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from curp._core import (
    compaction,
    witness_change,
    witness_list,
)
from curp._core.state import GroupState
from curp._core.steps import Sync
from curp._core.witness_table import WitnessTable, WitnessVerdict
from curp._replica import (
    snapshot_taker,
    witness_list_keeper,
)
from curp._replica.group_store import GroupStore
from curp.log import _checks as checks
from curp.log._commits import GroupLog, bodies
from rifl.core._serving.later import AllLater
from sharedlog._core.errors import TrimmedLog

__all__ = [
    "batch_answered_by_its_first",
    "batch_answered_first",
    "other_numbers_accepted",
    "snapshot_without_acknowledgements",
    "snapshot_without_records",
    "torn_append_recognised",
    "trimmed_before_saved",
    "turn_for_each_of_a_batch",
    "unnumbered_list",
]


def unnumbered_list() -> AbstractContextManager[Any]:
    def change(configuration: int, wanted: Any) -> Any:
        before = yield witness_change.HoldBack()
        yield Sync(before)
        started = yield from witness_list.start_witnesses(tuple(wanted), configuration)
        serving = witness_list.WitnessList(configuration, started, True, tuple(wanted))
        yield witness_list.Publish(serving)
        yield witness_change.Serve(serving)
        return serving

    return unittest.mock.patch.object(witness_list_keeper, "change_witnesses", change)


def other_numbers_accepted() -> AbstractContextManager[Any]:
    original = WitnessTable._judge

    def judge(self: WitnessTable, configuration: int, *arguments: Any) -> WitnessVerdict:
        return original(self, self.configuration, *arguments)

    return unittest.mock.patch.object(WitnessTable, "_judge", judge)


def snapshot_without_records() -> AbstractContextManager[Any]:
    original = GroupState._dump_client

    def dump(self: GroupState, client_id: int) -> Any:
        return original(self, client_id)._replace(calls=())

    return unittest.mock.patch.object(GroupState, "_dump_client", dump)


def snapshot_without_acknowledgements() -> AbstractContextManager[Any]:
    original = GroupState._dump_client

    def dump(self: GroupState, client_id: int) -> Any:
        return original(self, client_id)._replace(first_incomplete=1, completed=())

    return unittest.mock.patch.object(GroupState, "_dump_client", dump)


def trimmed_before_saved() -> AbstractContextManager[Any]:
    def compact(kept_behind: int) -> Any:
        if not (yield compaction.Halt()):
            return None
        yield Sync()
        lsn = yield compaction.Copy()
        yield compaction.GoOn()
        if lsn is None:
            return None
        yield compaction.Trim(lsn)
        yield compaction.Save(lsn)
        return lsn

    stack = ExitStack()
    stack.enter_context(unittest.mock.patch.object(snapshot_taker, "compact", compact))
    # The engine would refuse it, too.
    stack.enter_context(unittest.mock.patch.object(checks, "check_trim"))
    return stack


def batch_answered_first() -> AbstractContextManager[Any]:
    original = GroupStore.finish_all

    def finish_all(self: GroupStore, *arguments: Any) -> Any:
        replies = original(self, *arguments).replies  # type: ignore[union-attr]  # a AllLater
        return [reply if isinstance(reply, Exception) else None for reply in replies]

    return unittest.mock.patch.object(GroupStore, "finish_all", finish_all)


def batch_answered_by_its_first() -> AbstractContextManager[Any]:
    original = GroupStore.finish_all

    def finish_all(self: GroupStore, *arguments: Any) -> Any:
        replies = original(self, *arguments).replies  # type: ignore[union-attr]  # a AllLater
        return AllLater([replies[0], *(None for _ in replies[1:])])

    return unittest.mock.patch.object(GroupStore, "finish_all", finish_all)


def turn_for_each_of_a_batch() -> AbstractContextManager[Any]:
    def start_all(self: GroupStore, attempts: Any) -> Any:
        return AllLater([self.start(attempt) for attempt in attempts])

    return unittest.mock.patch.object(GroupStore, "start_all", start_all)


def torn_append_recognised() -> AbstractContextManager[Any]:
    original = GroupLog.append

    def append(self: GroupLog, entries: Any, **keywords: Any) -> int:
        expected, name = keywords["expected_tail"], keywords["append_id"]
        if self.tail() > expected and _begins(self, expected, name):
            return int(expected + len(entries))
        half = len(entries) // 2
        if half:
            # Here its reply, or its sender, may be lost.
            original(self, entries[:half], **{**keywords, "metadata": None})
            keywords["expected_tail"] += half
        return original(self, entries[half:], **keywords)

    return unittest.mock.patch.object(GroupLog, "append", append)


def _begins(log: GroupLog, after: int, append_id: bytes) -> bool:
    """Whether an append of that id begins behind that LSN."""
    try:
        (row,) = log._engine.read(after, 1).rows
    except TrimmedLog:
        return False
    return bodies.header_of(row).append_id == append_id
