"""What a target is sent: in order, once, all of it, whatever breaks (DESIGN-LOG §15)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharedlog._core.player.feeder import Bounds, Feeder, State
from sharedlog._core.player.item import Item, Kind, Skip
from sharedlog._core.player.trouble import Cause, Trouble
from tests.sharedlog.player.course import position, run


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 32), players=st.integers(1, 2), targets=st.integers(1, 2))
def test_every_message_is_delivered_once_and_in_order(seed, players, targets):
    """Through breaks of either end, late connections, restarts, two players (P1 to P5)."""
    run(seed, players=players, targets=targets)


class TermsUnchecked(Feeder):
    """What came under an older term counts (P3)."""

    def taken(self, term, tag, place, now_s):
        return super().taken(self.term, tag, place, now_s)

    def connect(self):
        queue = self._queue
        term = super().connect()
        self._queue = queue
        return term

    def cut(self, trouble):
        queue = self._queue
        super().cut(trouble)
        self._queue = queue


class EndUnlocked(Feeder):
    """The end of recovery is what the main stream was at a while before (P4)."""

    looked = None

    def connect(self):
        self.looked = None
        return super().connect()

    def fix(self, dispatched):
        if self.looked is None and self._read is not None:
            self.looked = dispatched
        else:
            super().fix(self.looked)


class QueuedInRecovery(Feeder):
    """The main stream queues for a target that is being recovered (P4)."""

    @property
    def fed(self):
        return self.state in (State.RF, State.FC, State.N)

    def fix(self, dispatched):
        super().fix(dispatched)
        self._end = min(self._end, (self._read or 0) - 1)


class MovedInRecovery(Feeder):
    """Targets are moved forward while they are recovered (P5)."""

    def move_on(self, places):
        state = self.state
        if state in (State.RF, State.FC):
            for tag, place in places.items():
                self._fetched._items.appendleft(Item(tag, place, empty=True))
        else:
            super().move_on(places)


class IndexNotAsked(Feeder):
    """A player goes on where it was, without asking (P5)."""

    def begin(self, term, indexes, suspects=()):
        last = getattr(self, "_known", {})
        self._known = indexes | last
        return super().begin(term, self._known, suspects)


@pytest.mark.parametrize(
    ("feeder", "conditional"),
    [
        (TermsUnchecked, True),
        (EndUnlocked, True),
        (QueuedInRecovery, True),
        (MovedInRecovery, True),
        (IndexNotAsked, True),
        (Feeder, False),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_rule_that_is_broken_is_found(feeder, conditional):
    """Each rule that the model breaks is needed here, too (P1 to P5)."""

    def fails(seed):
        try:
            run(seed, players=1 + seed % 2, feeder=feeder, conditional=conditional)
        except AssertionError:
            return True
        return False

    assert any(fails(seed) for seed in range(300))


def fed(*, bounds=Bounds(), **suspects):  # noqa: B008 - it does not change
    """A target that is in N, at the beginning of one substream."""
    feeder = Feeder(bounds)
    feeder.begin(feeder.connect(), {"s/0": None}, **suspects)
    feeder.fetch(feeder.term, (), 0)
    feeder.fix(0)
    assert feeder.state is State.N
    return feeder


def item(lsn, ordinal=0, *, more=False, size=1):
    return Item("s/0", position(lsn, "s/0", ordinal), b"x" * size, lsn, more)


def lsns(found):
    return [each.item.place.lsn for each in found]


def test_a_full_queue_is_cut_and_nothing_of_it_is_kept():
    """S costs no memory: the rest is fetched from the log again (P4)."""
    feeder = fed(bounds=Bounds(queue_count=3))
    feeder.dispatch(item(each) for each in range(1, 4))
    assert (feeder.state, feeder.queued, feeder.crowded) == (State.N, 3, True)
    feeder.dispatch([item(4)])
    assert (feeder.state, feeder.queued) == (State.S, 0)
    assert feeder.trouble.cause is Cause.FULL
    feeder = fed(bounds=Bounds(queue_bytes=1000))
    feeder.dispatch([item(1, size=600), item(2, size=600)])
    assert feeder.trouble.cause is Cause.FULL


def test_the_window_and_the_batch_are_bounded():
    """By count and bytes; what is answered makes room."""
    feeder = fed(bounds=Bounds(window_count=3, batch_count=2))
    feeder.dispatch(item(each) for each in range(1, 7))
    assert [lsns(feeder.take(0.0)) for _ in range(3)] == [[1, 2], [3], []]
    feeder.taken(1, "s/0", position(2, "s/0"), 0.0)
    assert lsns(feeder.take(0.0)) == [4, 5]
    feeder = fed(bounds=Bounds(batch_bytes=1000, window_bytes=2000))
    feeder.dispatch(item(each, size=450) for each in range(1, 7))
    assert [lsns(feeder.take(0.0)) for _ in range(5)] == [[1], [2], [3], [4], []]


def test_a_transactions_messages_are_sent_together():
    """Past the window, and past the batch's count (P1)."""
    feeder = fed(bounds=Bounds(window_count=2, batch_count=2))
    feeder.dispatch([item(1, at, more=at < 4) for at in range(5)])
    found = feeder.take(0.0)
    assert [each.item.place.ordinal for each in found] == [0, 1, 2, 3, 4]
    assert [each.more for each in found] == [True, True, True, True, False]


def test_what_may_kill_its_target_is_sent_alone():
    """One message at a time, and none beside it, until one is taken (P7)."""
    feeder = fed(suspects=["s/0"])
    feeder.dispatch([item(1, more=True), item(1, 1), item(2)])
    found = feeder.take(0.0)
    assert ([each.more for each in found], feeder.take(0.0)) == ([False], [])
    feeder.cut(Trouble(Cause.BROKEN))
    assert feeder.trouble == Trouble(Cause.BROKEN, "s/0", position(1, "s/0"), alone=True)
    feeder = fed(suspects=["s/0"])
    feeder.dispatch([item(1), item(2), item(3)])
    feeder.take(0.0)
    assert feeder.taken(1, "s/0", position(1, "s/0"), 0.0)
    assert lsns(feeder.take(0.0)) == [2, 3]


def test_what_was_decided_of_a_message_is_sent_in_its_turn():
    """Those before it are called, one by one, then it is skipped; those behind it are called."""
    feeder = Feeder()
    feeder.decide("s/0", position(2, "s/0", 1), Skip("it fails", "rule"))
    feeder.begin(feeder.connect(), {"s/0": None})
    feeder.fetch(1, [item(1), item(2, 0, more=True), item(2, 1, more=True), item(2, 2)], 2)
    sent = []
    while found := feeder.take(0.0):
        sent += [(each.kind, each.item.place[:2], each.more) for each in found]
        feeder.taken(1, "s/0", found[-1].item.place, 0.0)
    assert sent == [
        (Kind.MESSAGE, (1, 0), False),
        (Kind.MESSAGE, (2, 0), False),
        (Kind.SKIP, (2, 1), False),
        (Kind.MESSAGE, (2, 2), False),
    ]
    assert feeder.decided("s/0") is None


def test_a_message_that_is_to_be_called_anew_says_so():
    """Of unknown outcome, where that was declared (P7)."""
    feeder = Feeder()
    feeder.decide("s/0", position(1, "s/0"), None)
    feeder.begin(feeder.connect(), {"s/0": None})
    feeder.fetch(1, [item(1), item(2)], 2)
    (sent,) = feeder.take(0.0)
    assert (sent.kind, sent.again, sent.skip) == (Kind.MESSAGE, True, None)


def test_an_answer_to_what_was_not_sent_cuts_it_off():
    """A target that answers garbage is in S, and nothing counts as taken (§15)."""
    feeder = fed()
    feeder.dispatch([item(1)])
    feeder.take(0.0)
    assert not feeder.taken(1, "s/0", position(9, "s/0"), 0.0)
    assert (feeder.state, feeder.trouble.cause) == (State.S, Cause.GARBAGE)
    assert not feeder.acknowledged


def test_a_target_is_late_only_while_something_is_in_flight():
    """From the oldest message, or the last answer, on (P4)."""
    feeder = fed()
    assert not feeder.late(100.0, 5.0)
    feeder.dispatch([item(1), item(2)])
    feeder.take(100.0)
    assert not feeder.late(104.0, 5.0)
    assert feeder.late(106.0, 5.0)
    feeder.taken(1, "s/0", position(1, "s/0"), 104.0)
    assert not feeder.late(106.0, 5.0)
    assert feeder.late(110.0, 5.0)


def test_one_substream_that_hangs_is_late_though_others_are_answered():
    """Its handler holds nobody up, and is noticed all the same (P4)."""
    feeder = Feeder()
    feeder.begin(feeder.connect(), {"s/0": None, "s/1": None})
    feeder.fetch(1, [item(1), Item("s/1", position(2, "s/1")), Item("s/1", position(3, "s/1"))], 3)
    feeder.take(100.0)
    feeder.taken(1, "s/1", position(2, "s/1"), 105.0)
    assert not feeder.late(105.0, 5.0)
    assert feeder.late(106.0, 5.0)
    feeder.taken(1, "s/0", position(1, "s/0"), 106.0)
    assert not feeder.late(106.0, 5.0)


def test_nothing_is_fixed_before_the_main_stream_began():
    """Its end would lie before where that begins (P4)."""
    feeder = Feeder()
    feeder.begin(feeder.connect(), {"s/0": None})
    feeder.fetch(1, [item(1)], 1)
    feeder.fix(None)
    assert feeder.state is State.RF
