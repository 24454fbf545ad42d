"""More rules of DESIGN-LOG §15, each broken on purpose, for the simulator to find.

Of what a target takes, what fails, and who is asked. ``tests/chaos/mutations.py`` has them in its
table, behind those of ``player_mutations``.
"""

from __future__ import annotations

import asyncio
import unittest.mock
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from sharedlog._core import target_taking
from sharedlog._core.named import Turn, highest_of
from sharedlog._core.player import deadletters, deaths
from sharedlog._core.player.deadletters import Whose
from sharedlog._core.player.deaths import Deaths
from sharedlog._core.player.feeder import Feeder, FeederState
from sharedlog._core.player.feeding import Feeding
from sharedlog._core.player.indexes import Unconfirmed
from sharedlog._core.player.item import Item
from sharedlog._core.target_delivery import DeliveryVerdict
from sharedlog._core.target_index import Index
from sharedlog._core.target_seat import Seat
from sharedlog._core.target_steps import Await, Ended, MoveTargetRows, RowMove
from sharedlog._player import beginning, course, letters
from sharedlog._player.main_stream import MainStream
from sharedlog._target.lanes import Lane
from tests.chaos.player_mutations import judged_instead, together

__all__ = ["BROKEN"]

_Patch = AbstractContextManager[Any]
_patched = unittest.mock.patch.object


# Rows of a target, and its handlers (P1, P2, P7).


def index_behind_commit() -> _Patch:
    """An atomic handler's index is moved by itself, once its effects are committed."""
    original = target_taking._run

    def run(seat: Seat, delivery: Any, called: Any, move: Any = None, **options: Any) -> Any:
        ended = yield from original(seat, delivery, called, None, **options)
        if move is None or not (ended.committed or ended.committing is not None):
            return ended
        if ended.committing is not None:
            committed, why = yield Await([ended.committing])
            if not committed:
                return Ended(14, why, broken=True)
        yield MoveTargetRows((RowMove(*move),))
        return Ended(committed=True)

    return _patched(target_taking, "_run", run)


def gap_taken() -> _Patch:
    """What follows another message than the index is taken: behind one that failed, too."""
    return together(
        judged_instead(DeliveryVerdict.GAP, DeliveryVerdict.TAKE),
        # Else nothing comes that is behind what was not taken.
        _patched(Lane, "told", lambda self, answer: None),
    )


def unknown_called() -> _Patch:
    """What was begun by a process that died is called, undeclared."""
    return judged_instead(DeliveryVerdict.UNKNOWN, DeliveryVerdict.TAKE)


def begun_unsaid() -> _Patch:
    """A plain handler runs, and nothing durable says that it was begun."""

    def run_plain(seat: Seat, delivery: Any, called: Any) -> Any:
        ended = yield from target_taking._run(seat, delivery, called)
        return target_taking._ended(seat, delivery, ended)

    return _patched(target_taking, "_run_plain", run_plain)


def skip_forgotten() -> _Patch:
    """An index does not keep what it has skipped until that is a dead letter."""
    original = Index.skipping

    def skipping(self: Index, skip: Any) -> Index:
        return original(self, skip)._replace(skipped=self.skipped)

    return _patched(Index, "skipping", skipping)


# A player's connections and streams (P3 to P5).


def joins_too_early() -> _Patch:
    """The main stream feeds a target that has yet to send what was fetched for it."""

    def turn_over(self: Feeder) -> None:
        if self.state is FeederState.FC:
            self.state = FeederState.N

    return _patched(Feeder, "_turn_over", turn_over)


def slowest_waited_for() -> _Patch:
    """The main stream goes on once every target has taken what there was for it."""

    async def room(self: MainStream) -> None:
        while any(each.feeder.queued or each.feeder.in_flight for each in self._courses):
            await asyncio.sleep(0.002)

    return _patched(MainStream, "_room", room)


def not_fetched_again() -> _Patch:
    """What does not fit a substream's part of the queue is dropped."""

    def fall_back(self: Feeder) -> None:
        self._queue = type(self._queue)()

    return _patched(Feeder, "_fall_back", fall_back)


def not_asked_again() -> _Patch:
    """A target is asked for its index once, and then it is where its player saw it last."""
    original = beginning.held_against

    def held_against(found: Any, holds: Mapping[str, Any], incarnation: str) -> Any:
        seen = {tag: hold.position for tag, hold in holds.items() if hold.position is not None}
        found = [each._replace(at=seen.get(each.tag, each.at)) for each in found]
        return original(found, holds, incarnation)

    return _patched(beginning, "held_against", held_against)


def held_as_sent() -> _Patch:
    """What was sent counts as taken: holds follow it."""
    original = Feeder._send

    def send(self: Feeder, item: Item, **options: Any) -> Any:
        found = original(self, item, **options)
        self.note(item.tag, item.place)
        return found

    return _patched(Feeder, "_send", send)


# Where a target is, and in which store (P6).


def another_store_unnoticed() -> _Patch:
    """Who answers with the index of another store is fed from there."""
    return _patched(beginning, "check_store", lambda known, store: None)


def replay_in_the_same_index() -> _Patch:
    """A replay begins where it was ordered, in the index that there is."""
    return _patched(course.Course, "number", property(lambda self: self.target.number))


# What fails (P7).


def deaths_not_halved() -> _Patch:
    """As much is in flight after a death as before it."""
    return _patched(deaths, "_half", lambda count: count)


def limit_lifted_early() -> _Patch:
    """As much as ever is in flight as soon as one message was taken after a death."""
    original = Deaths.taken

    def taken(self: Deaths, tag: str, place: Any) -> None:
        original(self, tag, place)
        self._limit = 0

    return _patched(Deaths, "taken", taken)


def deaths_without_a_process() -> _Patch:
    """A player does not keep which process it sends to: after a death it knows of none."""
    original = Deaths.connected

    def connected(self: Deaths, *arguments: Any) -> Any:
        self.process = ""
        return original(self, *arguments)

    return _patched(Deaths, "connected", connected)


def suspects_not_alone() -> _Patch:
    """What may kill its target is sent among others."""
    original = Feeder._may_send

    def may_send(self: Feeder, item: Item, *, lonely: bool, count: int, size: int) -> bool:
        return original(self, item, lonely=False, count=count, size=size)

    original_send = Feeder._send

    def send(self: Feeder, item: Item, *, lonely: bool, now_s: float) -> Any:
        return original_send(self, item, lonely=False, now_s=now_s)

    return together(_patched(Feeder, "_may_send", may_send), _patched(Feeder, "_send", send))


def rejoins_too_early() -> _Patch:
    """A substream that went on by itself joins the others as soon as it is in N."""

    def join(self: Feeding) -> None:
        for tag, each in list(self._aside.items()):
            if each.feeder.state is FeederState.N and self.state is FeederState.N:
                del self._aside[tag]
                self.main.join(tag, self._at.get(tag))

    return _patched(Feeding, "_join", join)


def behind_what_failed_sent() -> _Patch:
    """What is queued behind a message that failed stays, and is sent."""

    def leave(self: Feeder, tag: str) -> None:
        self._flight.drop(tag)
        self._sent[tag] = None

    return _patched(Feeder, "leave", leave)


def letter_first() -> _Patch:
    """What is given up is a dead letter before its target has recorded that it is skipped."""
    original = course.Course._judge

    async def judge(self: Any) -> None:
        before = dict(self.feeder.main._decided)
        await original(self)
        stage, number = self.stage, self.number
        whose = Whose(stage.player, self.target.name, self.store, stage.log_name, number)
        for tag, (place, skip) in list(self.feeder.main._decided.items()):
            if skip is None or before.get(tag) == (place, skip):
                continue
            last = await stage.run(partial(highest_of, whose.producer(tag)))
            one = Unconfirmed(place, last + 1, skip.reason, skip.by, 1)
            await letters.bury_one(stage, whose, tag, one)

    bury_one = letters.bury_one

    async def unless_there(stage: Any, whose: Whose, tag: str, skipped: Unconfirmed) -> None:
        last = await stage.run(partial(highest_of, whose.producer(tag)))
        if last < skipped.number:
            await bury_one(stage, whose, tag, skipped)

    return together(
        _patched(course.Course, "_judge", judge), _patched(letters, "bury_one", unless_there)
    )


def letter_twice() -> _Patch:
    """A dead letter is appended as the next one of its name, whichever skip it is of."""
    original = deadletters.append_named

    def append_named(turn: Turn, *arguments: Any, **options: Any) -> Any:
        highest = yield from highest_of(turn.name)
        turn = turn._replace(seq=highest + 1, follows=highest)
        return (yield from original(turn, *arguments, **options))

    return _patched(deadletters, "append_named", append_named)


def confirmed_first() -> _Patch:
    """What was skipped is confirmed, and no dead letter."""

    async def bury(stage: Any, name: str, number: int, here: Any) -> list[tuple[str, int]]:
        return [(each.tag, each.skipped[-1].number) for each in here.indexes if each.skipped]

    return _patched(course, "bury", bury)


def skip_of_any_index() -> _Patch:
    """What an operator had skipped is skipped in each index that comes after it."""
    original = course.Course.apply

    def apply(self: Any, wish: Any) -> None:
        number = max(wish.number, self.target.number)
        wish = wish._replace(skips=tuple(each._replace(number=number) for each in wish.skips))
        original(self, wish)

    return _patched(course.Course, "apply", apply)


# What it is, where it stands, how it is broken, and the first seed that shows it.
BROKEN: tuple[tuple[str, str, Callable[[], _Patch], int], ...] = (
    ("an index moved behind its handler's commit", "§15: P1", index_behind_commit, 1),
    ("what was sent counts as taken", "§15: P1", held_as_sent, 1),
    ("a gap taken", "§15: P2", gap_taken, 1),
    ("a target joins the main stream too early", "§15: P4", joins_too_early, 1),
    ("the main stream waits for its slowest target", "§15: P4", slowest_waited_for, 16),
    ("what does not fit is not fetched again", "§15: P4", not_fetched_again, 2),
    ("a target not asked again", "§15: P5", not_asked_again, 2),
    ("another store at a target not noticed", "§15: P6", another_store_unnoticed, 13),
    ("a replay in the same index", "§15: P7", replay_in_the_same_index, 1),
    ("what is in flight not halved by a death", "§15: P7", deaths_not_halved, 1),
    ("what is in flight not limited for long", "§15: P7", limit_lifted_early, 1),
    ("deaths of a target not noticed", "§15: P7", deaths_without_a_process, 1),
    ("what may kill a target sent among others", "§15: P7", suspects_not_alone, 2),
    ("what is unknown called again", "§15: P7", unknown_called, 18),
    ("a plain handler begun without a word", "§15: P7", begun_unsaid, 2),
    ("a skip forgotten", "§15: P7", skip_forgotten, 1),
    ("a dead letter before its skip", "§15: P7", letter_first, 1),
    ("a dead letter for each time it is told", "§15: P7", letter_twice, 4),
    ("a skip confirmed before its dead letter", "§15: P7", confirmed_first, 1),
    ("an operator's skip of any index", "§15: P7", skip_of_any_index, 6),
    ("a substream joins the others too early", "§15: P7", rejoins_too_early, 12),
    ("what is behind a failed message sent", "§15: P7", behind_what_failed_sent, 1),
)
