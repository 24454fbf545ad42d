"""Rules of DESIGN-LOG §12 and §13, each broken on purpose, for the simulator to find.

``tests/chaos/mutations.py`` has them in its table.
"""

from __future__ import annotations

import unittest.mock
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from chaos.sim.faults import Point
from chaos.sim.log import joint_transaction, keeper, publisher, session, sweeper
from sharedlog._core import (
    following,
    holds,
    merging,
    named,
    producers,
    reading,
    restoring,
    spans,
    trim,
    within,
)
from sharedlog._core.commit import LSN_BYTES, Commit, Refused
from sharedlog._core.duty import Duty
from sharedlog._core.entry import EntryKind
from sharedlog._core.fences import check_fence, condition_of, fence_key
from sharedlog._core.position import Position
from sharedlog._core.reading import PendingRing, Reader
from sharedlog._core.steps import Get
from sharedlog._core.whole import TRIMMED

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
        *(
            unittest.mock.patch.object(each, "retire", broken)
            for each in (sweeper, publisher, joint_transaction, restoring)
        )
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
        if entry.kind is EntryKind.PENDING:
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

    def of(self: PendingRing, begins: Any) -> Any:
        self._above = 0
        return original(self, begins)

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


def aged_by_one_clock() -> _Patch:
    def age_from(now_us: int, _: int) -> Any:
        yield from ()
        return now_us

    return unittest.mock.patch.object(trim, "_age_from", age_from)


def holds_not_looked_at() -> _Patch:
    def none() -> Any:
        yield from ()
        return []

    return unittest.mock.patch.object(trim, "all_holds", none)


def _trim_without(of: Callable[[str], bool]) -> _Patch:
    original = trim.trim

    def broken(*arguments: Any, **options: Any) -> Any:
        return _changed(original(*arguments, **options), _without_conditions(of))

    return unittest.mock.patch.object(keeper, "trim", broken)


def hold_made_meanwhile() -> _Patch:
    """Behind it a hold is taken only where nothing was trimmed since: both are left out."""
    original = holds.take

    def take(*arguments: Any) -> Any:
        change = _without_conditions(lambda key: key == TRIMMED)
        return _changed(original(*arguments), change)

    return _together(
        _trim_without(lambda key: key == holds.HOLDS),
        unittest.mock.patch.object(following, "take", take),
    )


def open_spans_trimmed() -> _Patch:
    original = trim._begin
    return unittest.mock.patch.object(
        trim, "_begin", lambda opened, floor, committers: original({}, floor, committers)
    )


def committed_spans_trimmed() -> _Patch:
    def lowest(self: Any, floor: int) -> Any:
        yield from ()

    return unittest.mock.patch.object(trim.Committers, "lowest", lowest)


def duty_under_its_old_number() -> _Patch:
    original = Duty.take

    def change(commit: Commit) -> Commit:
        number = commit.conditions[0].value or commit.puts[0].value
        return commit._replace(puts=(commit.puts[0]._replace(value=number), commit.puts[1]))

    def take(self: Duty, now_s: float) -> Any:
        fence = yield from _changed(original(self, now_s), change)
        if fence is None:
            return None
        number = (yield Get((fence_key(fence.name),)))[fence_key(fence.name)]
        return fence._replace(number=int.from_bytes(number or b"", "big"))

    return unittest.mock.patch.object(Duty, "take", take)


def duty_taken_at_once() -> _Patch:
    return unittest.mock.patch.object(Duty, "_mine", lambda self, beat: beat is not None)


def _once_named(change: Callable[[Any, Commit], Commit]) -> _Patch:
    original = named.once_named

    def once(turn: Any, *arguments: Any) -> Any:
        return _changed(original(turn, *arguments), lambda commit: change(turn, commit))

    return unittest.mock.patch.object(named, "once_named", once)


def named_highest_not_compared() -> _Patch:
    return _once_named(
        lambda turn, commit: _without_conditions(lambda key: key == named.named_key(turn.name))(
            commit
        )
    )


def predecessor_not_compared() -> _Patch:
    original = named._check_next

    def check_next(turn: Any, highest: int) -> None:
        original(turn._replace(follows=min(highest, turn.seq - 1)), highest)

    return unittest.mock.patch.object(named, "_check_next", check_next)


def named_content_not_compared() -> _Patch:
    def change(turn: Any, commit: Commit) -> Commit:
        puts = tuple(
            put._replace(value=put.value[:8] + bytes(16))
            if put.key == named.named_key(turn.name) and put.value is not None
            else put
            for put in commit.puts
        )
        return commit._replace(puts=puts)

    original = named.once_named

    def once(turn: Any, content: bytes, *arguments: Any) -> Any:
        rule = original(turn, bytes(16), *arguments)
        return _changed(rule, lambda commit: change(turn, commit))

    return unittest.mock.patch.object(named, "once_named", once)


def _in_transactions(change: Callable[[session.Session], None]) -> _Patch:
    """Have something else happen once a transaction of an application's has appended."""
    original = session.Session.append

    def append(self: session.Session, *arguments: Any) -> Any:
        new = original(self, *arguments)
        if new:
            change(self)
        return new

    return unittest.mock.patch.object(session.Session, "append", append)


def appended_before_the_commit() -> _Patch:
    """Only the row is left to the transaction."""

    def change(asked: session.Session) -> None:
        writes: Any = asked._writes
        early = writes._replace(puts=writes.puts[:-1])
        asked._cast.server.at_once(asked._process, early, Point.APPEND_IN)
        asked._writes = writes._replace(puts=writes.puts[-1:], entries=())

    return _in_transactions(change)


def not_locked_until_the_end() -> _Patch:
    return _in_transactions(lambda asked: asked._cast.server.unlock())


def transactions_without_their_fence() -> _Patch:
    return unittest.mock.patch.object(within, "check_fence", return_value=None)


def transactions_not_counted() -> _Patch:
    return unittest.mock.patch.object(within, "seq_of", return_value=0)


# What it is, where it stands, how it is broken, and the first seed that shows it.
BROKEN: tuple[tuple[str, str, Callable[[], _Patch], int], ...] = (
    ("a marker's begins not compared", "§13: C1", begins_not_compared, 1),
    ("a marker below the highest seq", "§13: C1", highest_not_covered, 1),
    ("a marker of who is retired", "§13: C1", retired_still_committed, 1),
    ("who is retired appends", "§13: C2", retired_appends, 2),
    ("retired without a rollback", "§13: C2", retire_leaves_spans, 1),
    ("retired in two steps", "§13: C2", retire_looks_first, 23),
    ("an append's answer not kept", "§12: L3", answer_not_kept, 1),
    ("an append's seq not compared", "§12: L3", seq_not_compared, 1),
    ("an append's content not compared", "§12: L3", fingerprint_not_compared, 1),
    ("one answer kept of a window", "§12: L3", one_answer_kept, 7),
    ("a producer's token not shown", "§12: L3", token_not_shown, 74),
    ("fence judged before the append", "§12: L4", fence_judged_before, 5),
    ("fence judged before the answer", "§12: L3", fence_before_the_answer, 5),
    ("pending messages delivered", "§13: C3", pending_delivered, 1),
    ("substreams in the order of their appends", "§13: C3", pended_order, 1),
    ("a read stops inside a commit", "§13: C4", read_stops_in_a_commit, 1),
    ("a position without its place", "§13: C3", position_without_its_place, 1),
    ("a ring believed to have it all", "§13: C4", ring_believed, 1),
    ("a position's checksum not compared", "§12: LogForked", checksum_not_compared, 4),
    ("a follower goes on with half a read", "§13: C4", half_read_goes_on, 1),
    ("a name's highest not compared", "§12: L3", named_highest_not_compared, 8),
    ("a name's content not compared", "§12: L3", named_content_not_compared, 10),
    ("a name's predecessor not compared", "§12: L3", predecessor_not_compared, 1),
    ("appended before its transaction's commit", "§12: append_in", appended_before_the_commit, 9),
    ("not locked until a transaction ends", "§12: append_in", not_locked_until_the_end, 9),
    ("a transaction's fence not judged", "§12: append_in", transactions_without_their_fence, 18),
    ("a transaction without its number", "§12: append_in", transactions_not_counted, 9),
    ("a retention by the trimmer's clock alone", "§12: L6", aged_by_one_clock, 8),
    ("trimmed over holds", "§12: L6", holds_not_looked_at, 29),
    ("trimmed over a hold made meanwhile", "§12: L6", hold_made_meanwhile, 3),
    ("open spans trimmed", "§12: L6", open_spans_trimmed, 6),
    ("spans trimmed that were committed later", "§12: L6", committed_spans_trimmed, 1),
    ("a duty taken over under its old number", "§12: one process", duty_under_its_old_number, 2),
    ("a duty that is everybody's", "§12: one process", duty_taken_at_once, 1),
)
