"""Rules of DESIGN-LOG §15, each broken on purpose, for the simulator to find.

``tests/chaos/mutations.py`` has them in its table.
"""

from __future__ import annotations

import unittest.mock
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from chaos.sim.player import store, target
from sharedlog._core import target_seat, target_taking
from sharedlog._core.player import deadletters, failing, rows, stores
from sharedlog._core.player.feeder import Feeder, FeederState
from sharedlog._core.player.item import Item
from sharedlog._core.target_delivery import DeliveryVerdict
from sharedlog._core.target_index import Index
from sharedlog._core.target_seat import Seat
from sharedlog._core.target_steps import AnswerKind, DeliveryAnswer, TellPlayer
from sharedlog._player import beginning

__all__ = ["BROKEN", "judged_instead", "together"]

_Patch = AbstractContextManager[Any]
_patched = unittest.mock.patch.object


def together(*patches: _Patch) -> _Patch:
    stack = ExitStack()
    for patch in patches:
        stack.enter_context(patch)
    return stack


# Rows of a target, and its handlers (P1, P2).


def index_unconditional() -> _Patch:
    def moved(rows: Any, moves: Iterable[Any]) -> dict[str, bytes]:
        return {**rows, **{each.key: each.value for each in moves}}

    return together(_patched(store, "moved", moved), _patched(target, "moved", moved))


def judged_instead(verdict: DeliveryVerdict, instead: DeliveryVerdict) -> _Patch:
    original = target_taking.judge

    def judge(index: Index, delivery: Any) -> DeliveryVerdict:
        found = original(index, delivery)
        return instead if found is verdict else found

    return _patched(target_taking, "judge", judge)


def taken_run_again() -> _Patch:
    return judged_instead(DeliveryVerdict.DONE, DeliveryVerdict.TAKE)


def answered_before_commit() -> _Patch:
    original = target_taking._run

    def run(seat: Seat, delivery: Any, *arguments: Any, **options: Any) -> Any:
        ended = yield from original(seat, delivery, *arguments, **options)
        if ended.committing is not None:
            yield TellPlayer(seat.answer(AnswerKind.DONE, delivery.place))
        return ended

    return _patched(target_taking, "_run", run)


def answered_before_index() -> _Patch:
    """Of handlers that commit nothing themselves."""
    original = target_seat.flush

    def flush(seat: Seat) -> Any:
        at = seat.admitted.at
        if seat.owes and at is not None and at != seat.durable.at and not seat.flying:
            yield TellPlayer(seat.answer(AnswerKind.DONE, at))
        return (yield from original(seat))

    return together(_patched(target_taking, "flush", flush), _patched(target_seat, "flush", flush))


def index_moved_before() -> _Patch:
    """Of handlers that commit nothing themselves: the index goes first."""
    original = target_taking._run

    def run(seat: Seat, delivery: Any, called: Any, move: Any = None, **options: Any) -> Any:
        if move is None:
            before = seat.admitted
            seat.admitted = before.taking(delivery.place)
            yield from target_seat.flush(seat)
            seat.admitted = before
        return (yield from original(seat, delivery, called, move, **options))

    return _patched(target_taking, "_run", run)


# A player's connections and streams (P3 to P5).


def end_unlocked() -> _Patch:
    """The end is what was dispatched when the recovery stream was asked, not what is by now."""
    original = Feeder.fix

    def fix(self: Feeder, dispatched: int | None) -> None:
        before = self.state
        original(self, dispatched)
        if before is FeederState.RF and self.state is not before:
            self._end = self._read or 0
            self._turn_over()

    return _patched(Feeder, "fix", fix)


def moved_in_recovery() -> _Patch:
    def move_on(self: Feeder, places: Any) -> None:
        if not self.fed and self.state is not FeederState.RF:
            return
        queue = self._queue if self.state is FeederState.N else self._fetched
        for tag, place in places.items():
            if tag in self._sent:
                queue.add(Item(tag, place, empty=True))

    return _patched(Feeder, "move_on", move_on)


def not_recovered() -> _Patch:
    """A target is fed by the main stream alone."""
    original = Feeder.fetch

    def fetch(self: Feeder, term: int, _: Any, through: int) -> None:
        original(self, term, (), through)

    return _patched(Feeder, "fetch", fetch)


def who_is_behind_skips() -> _Patch:
    """What does not fit its queue is not queued, and it is not cut off."""
    original = Feeder.dispatch

    def dispatch(self: Feeder, found: Iterable[Item]) -> None:
        room = self._bounds.queue_count - len(self._queue)
        original(self, list(found)[: max(0, room)])

    return _patched(Feeder, "dispatch", dispatch)


def leads_without_a_fence() -> _Patch:
    """Who leads no more tells, binds and buries what it was about to."""
    unfenced = rows.condition_of(rows.Fence("of-nobody", 0))

    def nobody(fence: Any) -> Any:
        return unfenced._replace(value=None)

    original = deadletters.append_named

    def append_named(*arguments: Any, **options: Any) -> Any:
        return original(*arguments, **{**options, "fence": None})

    return together(
        _patched(rows, "condition_of", nobody),
        _patched(stores, "condition_of", nobody),
        _patched(deadletters, "append_named", append_named),
    )


# Where a target is, held against the log (P6).


def wiped_goes_on() -> _Patch:
    """What has no index begins anew where its hold is."""
    original = beginning.held_against

    def held_against(found: Any, holds: Any, incarnation: str) -> Any:
        begun = {
            tag: hold._replace(position=None, lsn=hold.place[0] + 1) for tag, hold in holds.items()
        }
        fresh = {each.tag for each in found if each.at is None}
        mixed = {tag: begun[tag] if tag in fresh else hold for tag, hold in holds.items()}
        return original(found, mixed, incarnation)

    return together(
        _patched(beginning, "held_against", held_against),
        _patched(beginning, "check_store", lambda known, store: None),
        _patched(target.ServedTarget, "check_store", lambda self, store: None),
    )


# What fails (P7).


def attempts_forgotten() -> _Patch:
    """A message that fails may fail for ever."""
    original = failing.Failing._failed

    def failed(self: Any, trouble: Any, place: Any) -> Any:
        self.attempts.clear()
        found = original(self, trouble, place)
        self.attempts.clear()
        return found

    return _patched(failing.Failing, "_failed", failed)


def fails_at_once_skipped() -> _Patch:
    """A message that fails is passed over, and nobody is told."""
    original = target_taking._ended

    def ended(seat: Seat, delivery: Any, found: Any) -> DeliveryAnswer | None:
        if found.code:
            seat.admitted = seat.admitted.taking(delivery.place)
            return None
        return original(seat, delivery, found)

    return _patched(target_taking, "_ended", ended)


# What it is, where it stands, how it is broken, and the first seed that shows it.
BROKEN: tuple[tuple[str, str, Callable[[], _Patch], int], ...] = (
    ("an index moved whatever it is", "§15: P1", index_unconditional, 1),
    ("a handler's answer before its commit", "§15: P1", answered_before_commit, 1),
    ("a delivery answered before its index", "§15: P1", answered_before_index, 1),
    ("an index moved before its handler ran", "§15: P1", index_moved_before, 1),
    ("what was taken run again", "§15: P2", taken_run_again, 1),
    ("the end of a recovery not locked", "§15: P4", end_unlocked, 1),
    ("a full queue loses messages", "§15: P4", who_is_behind_skips, 1),
    ("what a target missed not fetched", "§15: P5", not_recovered, 1),
    ("an idle target moved in recovery", "§15: P5", moved_in_recovery, 1),
    ("a player without its fence", "§15: P5", leads_without_a_fence, 7),
    ("a target without an index goes on", "§15: P6", wiped_goes_on, 6),
    ("a message that fails passed over", "§15: P7", fails_at_once_skipped, 1),
    ("what fails is tried for ever", "§15: P7", attempts_forgotten, 1),
)
