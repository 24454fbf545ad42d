"""The rules of a target: an index, judged deliveries, and what becomes of them (DESIGN-LOG §15)."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharedlog._core.errors import CorruptLog, InvalidRequest, NewerFormat
from sharedlog._core.position import Position
from sharedlog._core.target_delivery import Delivery, DeliveryKind, DeliveryVerdict, judge
from sharedlog._core.target_index import (
    MAX_SKIPPED,
    Connects,
    Feed,
    Index,
    SkippedMessage,
    check_tag,
    pack_connects,
    pack_index,
    unpack_connects,
    unpack_index,
)
from sharedlog._core.target_seat import (
    Seat,
)
from sharedlog._core.target_steps import (
    AnswerKind,
    Await,
    Called,
    Confirm,
    Ended,
    FetchRows,
    HandlerKind,
    MethodRefused,
    MoveTargetRows,
    RunHandler,
    TargetUnavailable,
    TellPlayer,
)
from sharedlog._core.target_taking import (
    connect,
    take,
)
from sharedlog.v1 import sharedlog_pb2, target_pb2

FEED = Feed("shop", 1)
TAG = "orders/0"


def at(lsn: int, checksum: int | None = None, incarnation: str = "i") -> Position:
    """The place of the message with this LSN."""
    return Position(lsn, 0, lsn * 7 if checksum is None else checksum, incarnation, 0)


def delivery(lsn: int, follows: int | None, **more: Any) -> Delivery:
    """A delivery of the message with this LSN."""
    place = more.pop("place", at(lsn))
    kind = more.pop("kind", DeliveryKind.MESSAGE)
    before = None if follows is None else at(follows)
    return Delivery(FEED, kind, TAG, place, before, **more)


MESSAGE, EMPTY, SKIP = DeliveryKind
NOTHING = Index()
FIVE = Index(at(5), 3)
BEGUN = Index(at(5), 3, at(6))


@pytest.mark.parametrize(
    ("index", "given", "verdict"),
    [
        (NOTHING, delivery(1, None), DeliveryVerdict.TAKE),
        (NOTHING, delivery(2, 1), DeliveryVerdict.GAP),
        (FIVE, delivery(6, 5), DeliveryVerdict.TAKE),
        (FIVE, delivery(9, 5), DeliveryVerdict.TAKE),
        (FIVE, delivery(5, 4), DeliveryVerdict.DONE),
        (FIVE, delivery(2, None), DeliveryVerdict.DONE),
        (FIVE, delivery(7, 6), DeliveryVerdict.GAP),
        (FIVE, delivery(7, 4), DeliveryVerdict.GAP),
        (FIVE, delivery(6, None), DeliveryVerdict.GAP),
        (FIVE, delivery(5, 4, place=at(5, 1)), DeliveryVerdict.FORKED),
        (FIVE, delivery(6, 5)._replace(follows=at(5, 1)), DeliveryVerdict.FORKED),
        (FIVE, delivery(6, 5, place=at(6, incarnation="j")), DeliveryVerdict.FORKED),
        (FIVE, delivery(2, 1, place=at(2, incarnation="j")), DeliveryVerdict.FORKED),
        (BEGUN, delivery(6, 5), DeliveryVerdict.UNKNOWN),
        (BEGUN, delivery(6, 5, again=True), DeliveryVerdict.TAKE),
        (BEGUN, delivery(6, 5, kind=SKIP), DeliveryVerdict.TAKE),
        (BEGUN, delivery(7, 5, again=True), DeliveryVerdict.UNKNOWN),
        (BEGUN, delivery(7, 5, kind=EMPTY), DeliveryVerdict.UNKNOWN),
        (BEGUN, delivery(5, 4), DeliveryVerdict.DONE),
        (BEGUN, delivery(8, 7), DeliveryVerdict.GAP),
        (Index(None, 0, at(1)), delivery(1, None), DeliveryVerdict.UNKNOWN),
        (
            Index(None, 0, at(1)),
            delivery(1, None, place=at(1, incarnation="j")),
            DeliveryVerdict.FORKED,
        ),
    ],
)
def test_a_delivery_is_judged_by_the_index(
    index: Index, given: Delivery, verdict: DeliveryVerdict
) -> None:
    """It is taken where it follows the index, and answered, or refused, everywhere else (P2)."""
    assert judge(index, given) is verdict


@pytest.mark.parametrize(
    "wrong",
    [
        delivery(0, None),
        delivery(1 << 63, None),
        delivery(5, 5),
        delivery(5, 6),
        delivery(5, 4)._replace(tag="orders/1"),
        delivery(5, 4)._replace(tag="orders"),
        delivery(5, 4)._replace(tag="/0"),
        delivery(5, 4)._replace(tag="orders/0001"),
        delivery(5, 4, place=at(5)._replace(substream=1)),
    ],
)
def test_what_no_player_sends_is_refused(wrong: Delivery) -> None:
    """Places that are none, of another substream, or not behind what they follow (P2)."""
    with pytest.raises(InvalidRequest):
        wrong.check()


POSITIONS = st.builds(
    Position,
    st.integers(1, (1 << 63) - 1),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 32) - 1),
    st.just("some incarnation"),
    st.integers(0, 511),
)
SKIPS = st.builds(
    SkippedMessage,
    POSITIONS,
    st.integers(1, 1 << 40),
    st.text(max_size=20),
    st.text(max_size=5),
    st.just(-7),
)


@given(
    st.none() | POSITIONS,
    st.integers(0, (1 << 63) - 1),
    st.none() | POSITIONS,
    st.lists(SKIPS, max_size=3),
)
def test_an_index_is_kept_as_it_is(
    place: Position | None, taken: int, begun: Position | None, skips: list[SkippedMessage]
) -> None:
    """What the store has of an index is what was put there (P6)."""
    if place is None and begun is None:
        # A skip moves the index.
        skips = []
    index = Index(place, taken, begun, len(skips), tuple(skips))
    assert unpack_index(pack_index(index)) == index
    connects = Connects(place, taken & 0xFFFF)
    assert unpack_connects(pack_connects(connects)) == connects


def test_what_a_newer_release_wrote_is_left_alone() -> None:
    """A row of a newer format, or one that is none, is never taken for an index (P6)."""
    for kept, unpack in (
        (target_pb2.KeptIndex(version=2), unpack_index),
        (target_pb2.KeptConnects(version=2), unpack_connects),
    ):
        with pytest.raises(NewerFormat):
            unpack(kept.SerializeToString())
        with pytest.raises(CorruptLog):
            unpack(b"\xff\xff")
        with pytest.raises(CorruptLog):
            unpack(b"")


def test_keys_of_different_indexes_differ() -> None:
    """Log, number and substream make the key; no name makes that of another (P6)."""
    logs, tags = ("a", "a@b", "0/x/1@a"), ("x/1", "x.y/1")
    keys = {
        key
        for log, number, tag in itertools.product(logs, (0, 1, 10), tags)
        for key in (Feed(log, number).index_key(tag), Feed(log, number).connects_key(tag))
    }
    assert len(keys) == 36
    for tag in tags:
        check_tag(tag)


class World:
    """A store, and handlers, that fail when they are told to; what was done, in its order."""

    def __init__(self, kind: HandlerKind, faults: Iterator[str]) -> None:
        self.kind = kind
        self.faults = faults
        self.rows: dict[str, bytes] = {}
        self.effects: list[int] = []
        self.told: list[Any] = []
        # What handlers left in the transaction that they share, which has yet to commit.
        self.open: list[tuple[Any, int]] = []

    def commit(self, *, aborts: bool = False) -> None:
        """End the shared transaction."""
        found, self.open = self.open, []
        for move, lsn in () if aborts else found:
            self.rows[move.key] = move.value
            self.effects.append(lsn)

    def put(self, moves: Any) -> bool:
        # Whoever writes has the shared transaction end first.
        self.commit()
        if any(self.rows.get(each.key) != each.expected for each in moves):
            return False
        self.rows.update((each.key, each.value) for each in moves)
        return True

    def step(self, step: Any) -> Any:
        """Do what a rule asks."""
        if isinstance(step, TellPlayer):
            self.told.append(step.answer)
            return None
        fault = next(self.faults, "")
        if fault == "dies":
            self.commit(aborts=True)
            raise KeyboardInterrupt
        if isinstance(step, Await):
            self.commit(aborts=fault == "aborts")
            if fault == "lost":
                return 0, "nobody can tell"
            stand = [lsn in self.effects for lsn in step.committing]
            return [*stand, False].index(False), "it failed"
        if isinstance(step, FetchRows):
            if fault == "away":
                raise TargetUnavailable("away")
            return {key: self.rows.get(key) for key in step.keys}
        if isinstance(step, MoveTargetRows):
            if fault == "away":
                raise TargetUnavailable("away")
            moved = self.put(step.moves)
            if fault == "lost":
                raise TargetUnavailable("nobody can tell")
            return moved
        assert isinstance(step, RunHandler)
        lsn = step.delivery.place.lsn
        if fault == "away":
            raise TargetUnavailable("draining")
        if fault == "refused":
            raise MethodRefused(5, "no")
        if fault == "fails":
            return Ended(13, "failed")
        if step.move is None:
            self.effects.append(lsn)
            return Ended()
        found = self.open[-1][0].value if self.open else self.rows.get(step.move.key)
        if found != step.move.expected:
            return Ended(10, "it moved")
        self.open.append((step.move, lsn))
        if step.more:
            return Ended(committing=lsn)
        self.commit(aborts=fault == "aborts")
        if fault == "aborts":
            return Ended(14, "it was rolled back", broken=True)
        if fault == "lost":
            return Ended(14, "nobody can tell", pending=True)
        return Ended(committed=True)

    def drive(self, rule: Any) -> Any:
        """Carry a rule out; what a process is that dies in it, is not there any more."""
        value, error = None, None
        try:
            while True:
                step = rule.send(value) if error is None else rule.throw(error)
                value, error = None, None
                try:
                    value = self.step(step)
                except (TargetUnavailable, MethodRefused) as failed:
                    error = failed
        except StopIteration as stop:
            return stop.value

    def resolve(self, delivery: Delivery) -> Called:
        """Everything may be called."""
        return Called("/s/m", self.kind, sharedlog_pb2.Envelope())

    def index(self) -> Index:
        """What the store has."""
        return unpack_index(self.rows.get(FEED.index_key(TAG)))


FAULTS = st.sampled_from(["", "", "", "", "away", "lost", "fails", "refused", "dies", "aborts"])


@settings(max_examples=300)
@given(
    st.sampled_from(HandlerKind),
    st.lists(FAULTS, max_size=60),
    # Which process; from where, as seen from the index (None: a player connects); how many.
    st.lists(
        st.tuples(
            st.integers(0, 1), st.sampled_from([1, 1, 1, 1, 0, -1, 2, None]), st.integers(1, 5)
        ),
        max_size=25,
    ),
)
def test_whatever_fails_each_message_is_taken_in_order(
    kind: HandlerKind, faults: list[str], turns: list[tuple[int, int | None, int]]
) -> None:
    """Of two processes over one store, which die and whose store fails (P1, P2).

    An atomic method's effects are each message's once, in order. What is answered DONE is in the
    store, and no message is passed over by any kind.
    """
    world = World(kind, iter(faults))
    seats = [Seat(FEED, TAG), Seat(FEED, TAG)]

    def turn(which: int, first: int, count: int, *, again: bool = False) -> None:
        some = [
            delivery(lsn, lsn - 1 if lsn > 1 else None, again=again)
            for lsn in range(first, min(first + count, 10))
        ]
        try:
            if first == 0:
                world.drive(connect([seats[which]]))
            else:
                waiting = deque(some)
                rest = iter(lambda: waiting.popleft() if waiting else None, None)
                world.drive(take(seats[which], rest, world.resolve, lambda: bool(waiting)))
        except KeyboardInterrupt:
            # Another process begins in its place.
            seats[which] = Seat(FEED, TAG)
        except TargetUnavailable:
            assert first == 0
        at_now = world.index().at
        reached = 0 if at_now is None else at_now.lsn
        done = [each.place.lsn for each in world.told if each.kind is AnswerKind.DONE]
        assert max(done, default=0) <= reached
        # Nothing is passed over, and what is in the index was done.
        assert set(range(1, reached + 1)) <= set(world.effects)
        if kind is HandlerKind.ATOMIC:
            assert world.effects == list(range(1, reached + 1))

    for which, offset, count in turns:
        there = world.index().at
        first = 0 if offset is None else max(1, (0 if there is None else there.lsn) + offset)
        turn(which, first, count)
    world.faults = iter(())
    for lsn in range(1, 10):
        # What nobody knows of is called anew by a word of the player's. Another process may have
        # moved the row, so that the first time is refused.
        for _ in range(2):
            turn(0, lsn, 1, again=world.index().begun is not None)
    assert world.index().at == at(9)
    assert world.index().taken == 9
    if kind is HandlerKind.PLAIN and not {"dies", "lost", "away"} & set(faults):
        assert world.effects == list(range(1, 10))


def test_several_idempotent_messages_share_a_move() -> None:
    """What came together moves the index once, behind the last of them."""
    world = World(HandlerKind.IDEMPOTENT, iter(()))
    puts: list[Any] = []
    put = world.put
    world.put = lambda moves: (puts.append(moves), put(moves))[1]  # type: ignore[method-assign]
    some = [delivery(lsn, lsn - 1 if lsn > 1 else None) for lsn in range(1, 6)]
    assert world.drive(take(Seat(FEED, TAG), iter(some), world.resolve))
    assert (len(puts), world.effects) == (1, [1, 2, 3, 4, 5])
    assert [(each.kind, each.place.lsn) for each in world.told] == [(AnswerKind.DONE, 5)]


def test_skips_are_bounded_and_confirmed_in_order() -> None:
    """An index keeps a hundred skips that are not confirmed, and takes no more (P7)."""
    world = World(HandlerKind.PLAIN, iter(()))
    seat = Seat(FEED, TAG)
    skip = SkippedMessage(at(1), 0, "x" * 5000, "y" * 5000, 1)

    def skipping(first: int, count: int) -> Iterator[Delivery]:
        for lsn in range(first, first + count):
            yield delivery(lsn, lsn - 1 if lsn > 1 else None, kind=SKIP, skip=skip)

    assert world.drive(take(seat, skipping(1, MAX_SKIPPED), world.resolve))
    index = world.index()
    assert [each.number for each in index.skipped] == list(range(1, MAX_SKIPPED + 1))
    assert (len(index.skipped[0].reason), len(index.skipped[0].by)) == (1000, 200)
    assert not world.drive(take(seat, skipping(MAX_SKIPPED + 1, 1), world.resolve))
    assert world.told[-1].kind is AnswerKind.UNAVAILABLE
    some = [Confirm(99), *skipping(MAX_SKIPPED + 1, 1)]
    assert world.drive(take(seat, iter(some), world.resolve))
    assert [each.number for each in world.index().skipped] == [100, 101]


def test_a_replica_that_did_not_skip_forgets_what_is_confirmed() -> None:
    """A confirmation counts at whichever replica it comes to, however old its index is (P7)."""
    world = World(HandlerKind.ATOMIC, iter(()))
    skipped, other = Seat(FEED, TAG), Seat(FEED, TAG)
    assert world.drive(take(other, iter([delivery(1, None)]), world.resolve))
    skip = SkippedMessage(at(2), 0, "it fails", "rule", 1)
    some = iter([delivery(2, 1, kind=SKIP, skip=skip)])
    assert world.drive(take(skipped, some, world.resolve))
    assert [each.number for each in world.index().skipped] == [1]
    assert world.drive(take(other, iter([Confirm(1)]), world.resolve))
    assert world.index().skipped == ()
