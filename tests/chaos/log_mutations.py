"""Rules of DESIGN-LOG §12 and §13, each broken on purpose, for the simulator to find.

``tests/chaos/mutations.py`` has them in its table.
"""

from __future__ import annotations

import unittest.mock
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from chaos.sim.log import sweeper, writer
from sharedlog._core import following, merging, producers, reading, restoring, spans
from sharedlog._core.commit import LSN_BYTES, Commit, Refused
from sharedlog._core.entry import Kind
from sharedlog._core.fences import check_fence, condition_of, fence_key
from sharedlog._core.position import Position
from sharedlog._core.reading import PendingRing, Reader
from sharedlog._core.steps import Get

__all__ = ["BROKEN"]

_Patch = AbstractContextManager[Any]
# Behind whatever a commit has.
_LAST_ORDINAL = 1 << 32


def _together(*patches: _Patch) -> _Patch:
    stack = ExitStack()
    for patch in patches:
        stack.enter_context(patch)
    return stack


def _once(broken: Callable[..., Any]) -> _Patch:
    """Have appends of all kinds go by another rule."""
    return _together(
        unittest.mock.patch.object(producers, "once", broken),
        unittest.mock.patch.object(spans, "once", broken),
    )


def _retire(broken: Callable[..., Any]) -> _Patch:
    return _together(
        *(unittest.mock.patch.object(each, "retire", broken) for each in (sweeper, writer)),
        unittest.mock.patch.object(restoring, "retire", broken),
    )


def _changed(rule: Any, change: Callable[[Commit], Commit]) -> Any:
    """Carry a rule on whose commits are others; it is told that what was taken out held."""
    try:
        step = next(rule)
        while True:
            asked = change(step) if isinstance(step, Commit) else step
            try:
                answer = yield asked
            except Refused as refused:
                held = {each.key: each.value for each in step.conditions}
                step = rule.throw(Refused({**held, **refused.found}))
            else:
                step = rule.send(answer)
    except StopIteration as stop:
        return stop.value


def _without_conditions(of: Callable[[str], bool]) -> Callable[[Commit], Commit]:
    def change(commit: Commit) -> Commit:
        kept = tuple(each for each in commit.conditions if not of(each.key))
        return commit._replace(conditions=kept)

    return change


def _once_without(of: Callable[[str, Any], bool]) -> _Patch:
    """``of`` tells by its key and the producer whether a condition is left out."""
    original = producers.once

    def once(producer: Any, *arguments: Any) -> Any:
        return _changed(
            original(producer, *arguments), _without_conditions(lambda key: of(key, producer))
        )

    return _once(once)


def begins_not_compared() -> _Patch:
    return unittest.mock.patch.object(spans, "_as_they_are", return_value=())


def highest_not_covered() -> _Patch:
    return _once_without(
        lambda key, producer: key.endswith("/seq") and key != producers.seq_key(producer.id)
    )


def retired_still_committed() -> _Patch:
    """Behind it stand the begins: what is retired has none."""
    return _together(
        begins_not_compared(),
        _once_without(
            lambda key, producer: (
                key.endswith("/retired") and key != producers.retired_key(producer.id)
            )
        ),
    )


def retired_appends() -> _Patch:
    return _once_without(lambda key, producer: key == producers.retired_key(producer.id))


def retire_leaves_spans() -> _Patch:
    original = spans.retire

    def change(commit: Commit) -> Commit:
        return commit._replace(puts=commit.puts[:1], entries=())

    return _retire(lambda producer: _changed(original(producer), change))


def retire_looks_first() -> _Patch:
    original = spans.retire
    change = _without_conditions(lambda key: not key.endswith("/retired"))
    return _retire(lambda producer: _changed(original(producer), change))


def answer_not_kept() -> _Patch:
    original = producers.once

    def change(commit: Commit) -> Commit:
        puts = tuple(put for put in commit.puts if "/answer/" not in put.key)
        return commit._replace(puts=puts)

    return _once(lambda *arguments: _changed(original(*arguments), change))


def seq_not_compared() -> _Patch:
    return _once_without(lambda key, producer: key == producers.seq_key(producer.id))


def fingerprint_not_compared() -> _Patch:
    original = producers.judge

    def judge(producer: Any, seq: int, fingerprint: bytes, found: Any) -> Any:
        kept = found[producers.answer_key(producer.id, seq, producer.window)] or b""
        return original(producer, seq, kept[8:-LSN_BYTES] or fingerprint, found)

    return unittest.mock.patch.object(producers, "judge", judge)


def one_answer_kept() -> _Patch:
    return unittest.mock.patch.object(
        producers, "answer_key", lambda producer, seq, window: f"producer/{producer}/answer/0"
    )


def token_not_shown() -> _Patch:
    original = producers.judge

    def judge(producer: Any, seq: int, fingerprint: bytes, found: Any) -> Any:
        shown = producers.identity_of(producer.window, producer.token)
        mine = {**found, producers.identity_key(producer.id): shown}
        return original(producer, seq, fingerprint, mine)

    return _together(
        _once_without(lambda key, producer: key == producers.identity_key(producer.id)),
        unittest.mock.patch.object(producers, "judge", judge),
    )


def fence_judged_before() -> _Patch:
    original = producers.once

    def once(producer: Any, seq: int, fingerprint: bytes, commit: Any, fence: Any) -> Any:
        if fence is not None:
            key = fence_key(fence.name)
            check_fence(fence, (yield Get((key,)))[key])
        return (yield from original(producer, seq, fingerprint, commit, None))

    return _once(once)


def fence_before_the_answer() -> _Patch:
    original = producers.once

    def once(producer: Any, seq: int, fingerprint: bytes, commit: Any, fence: Any) -> Any:
        if fence is not None:
            key = condition_of(fence).key
            check_fence(fence, (yield Get((key,)))[key])
        return (yield from original(producer, seq, fingerprint, commit, fence))

    return _once(once)


def pending_delivered() -> _Patch:
    original = Reader._taken

    def taken(self: Reader, entry: Any) -> Any:
        if entry.kind is Kind.PENDING:
            return self._placed([entry], entry.lsn, entry.checksum)
        return (yield from original(self, entry))

    return unittest.mock.patch.object(Reader, "_taken", taken)


def pended_order() -> _Patch:
    """Each substream by itself has the order of commits; several have another one."""
    return unittest.mock.patch.object(merging, "_commit_lsn", lambda message: message.lsn)


def read_stops_in_a_commit() -> _Patch:
    original = merging.Merger.read

    def read(self: Any) -> Any:
        found = yield from original(self)
        return found[:1]

    return unittest.mock.patch.object(merging.Merger, "read", read)


def position_without_its_place() -> _Patch:
    original = Reader.__init__

    def init(self: Reader, tag: str, incarnation: str, start: Any = None, **more: Any) -> None:
        if isinstance(start, Position):
            start = start._replace(ordinal=_LAST_ORDINAL)
        original(self, tag, incarnation, start, **more)

    return unittest.mock.patch.object(Reader, "__init__", init)


def ring_believed() -> _Patch:
    original = PendingRing.spans

    def of(self: PendingRing, decision: Any, begin: int) -> Any:
        self._above = 0
        return original(self, decision, begin)

    return unittest.mock.patch.object(PendingRing, "spans", of)


def checksum_not_compared() -> _Patch:
    def verify(after: Position) -> Any:
        rows = yield reading.Read(after.lsn - 1, 1)
        if not rows.rows:
            raise reading.LogForked(str(after))
        return reading.read_row(rows.rows[0])

    return _together(
        unittest.mock.patch.object(reading, "verify", verify),
        unittest.mock.patch.object(following, "verify", verify),
    )


def half_read_goes_on() -> _Patch:
    def read(self: following.Follower, now_us: int) -> Any:
        yield from self.begin(now_us)
        reader: Any = self._reader
        found = yield from reader.read()
        self._returned = reader.through
        return found

    return unittest.mock.patch.object(following.Follower, "read", read)


# What it is, where it stands, how it is broken, and the first seed that shows it.
BROKEN: tuple[tuple[str, str, Callable[[], _Patch], int], ...] = (
    ("a marker's begins not compared", "§13: C1", begins_not_compared, 1),
    ("a marker below the highest seq", "§13: C1", highest_not_covered, 1),
    ("a marker of who is retired", "§13: C1", retired_still_committed, 1),
    ("who is retired appends", "§13: C2", retired_appends, 1),
    ("retired without a rollback", "§13: C2", retire_leaves_spans, 1),
    ("retired in two steps", "§13: C2", retire_looks_first, 8),
    ("an append's answer not kept", "§12: L3", answer_not_kept, 4),
    ("an append's seq not compared", "§12: L3", seq_not_compared, 1),
    ("an append's content not compared", "§12: L3", fingerprint_not_compared, 1),
    ("one answer kept of a window", "§12: L3", one_answer_kept, 5),
    ("a producer's token not shown", "§12: L3", token_not_shown, 91),
    ("fence judged before the append", "§12: L4", fence_judged_before, 5),
    ("fence judged before the answer", "§12: L3", fence_before_the_answer, 14),
    ("pending messages delivered", "§13: C3", pending_delivered, 1),
    ("substreams in the order of their appends", "§13: C3", pended_order, 1),
    ("a read stops inside a commit", "§13: C4", read_stops_in_a_commit, 1),
    ("a position without its place", "§13: C3", position_without_its_place, 1),
    ("a ring believed to have it all", "§13: C4", ring_believed, 1),
    ("a position's checksum not compared", "§12: LogForked", checksum_not_compared, 7),
    ("a follower goes on with half a read", "§13: C4", half_read_goes_on, 1),
)
