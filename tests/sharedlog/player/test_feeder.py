"""The feed of a target: in order, once, all of it, whatever breaks (DESIGN-LOG §15)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharedlog._core.player.feeder import Feeder, FeederBounds, FeederState
from sharedlog._core.player.feeding import Feeding
from sharedlog._core.player.item import Item, Skip
from sharedlog._core.player.trouble import Cause, Trouble
from sharedlog._core.target_delivery import DeliveryKind
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
        return self.state in (FeederState.RF, FeederState.FC, FeederState.N)

    def fix(self, dispatched):
        super().fix(dispatched)
        self._end = min(self._end, (self._read or 0) - 1)


class MovedInRecovery(Feeder):
    """Targets are moved forward while they are recovered (P5)."""

    def move_on(self, places):
        state = self.state
        if state in (FeederState.RF, FeederState.FC):
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


class JoinsEarly(Feeding):
    """A substream joins the others while something of it is still on its way (P7)."""

    def _join(self):
        for tag, each in list(self._aside.items()):
            if self.state is FeederState.N and each.feeder.state in (FeederState.FC, FeederState.N):
                del self._aside[tag]
                self.main.join(tag, self._at.get(tag))


class Overtaken(Feeder):
    """What is behind a message that failed stays queued, and is sent before it (P1)."""

    def leave(self, tag):
        place = self._sent[tag]
        self._flight.drop(tag)
        self._sent[tag] = place


@pytest.mark.parametrize(
    ("feeder", "conditional"),
    [
        (TermsUnchecked, True),
        (EndUnlocked, True),
        (QueuedInRecovery, True),
        (MovedInRecovery, True),
        (IndexNotAsked, True),
        (JoinsEarly, True),
        (Overtaken, True),
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


def fed(*, bounds=FeederBounds(), **suspects):  # noqa: B008 - it does not change
    """A target that is in N, at the beginning of one substream."""
    feeder = Feeder(bounds)
    feeder.begin(feeder.connect(), {"s/0": None}, **suspects)
    feeder.fetch(feeder.term, (), 0)
    feeder.fix(0)
    assert feeder.state is FeederState.N
    return feeder


def item(lsn, ordinal=0, *, more=False, size=1):
    return Item("s/0", position(lsn, "s/0", ordinal), b"x" * size, lsn, more)


def lsns(found):
    return [each.item.place.lsn for each in found]


def test_a_full_queue_is_cut_and_nothing_of_it_is_kept():
    """S costs no memory: the rest is fetched from the log again (P4)."""
    feeder = fed(bounds=FeederBounds(queue_count=3))
    feeder.dispatch(item(each) for each in range(1, 4))
    assert (feeder.state, feeder.queued, feeder.crowded) == (FeederState.N, 3, True)
    feeder.dispatch([item(4)])
    assert (feeder.state, feeder.queued) == (FeederState.S, 0)
    assert feeder.trouble.cause is Cause.FULL
    feeder = fed(bounds=FeederBounds(queue_bytes=1000))
    feeder.dispatch([item(1, size=600), item(2, size=600)])
    assert feeder.trouble.cause is Cause.FULL


def test_the_window_and_the_batch_are_bounded():
    """By count and bytes; what is answered makes room."""
    feeder = fed(bounds=FeederBounds(window_count=3, batch_count=2))
    feeder.dispatch(item(each) for each in range(1, 7))
    assert [lsns(feeder.take(0.0)) for _ in range(3)] == [[1, 2], [3], []]
    feeder.taken(1, "s/0", position(2, "s/0"), 0.0)
    assert lsns(feeder.take(0.0)) == [4, 5]
    feeder = fed(bounds=FeederBounds(batch_bytes=1000, window_bytes=2000))
    feeder.dispatch(item(each, size=450) for each in range(1, 7))
    assert [lsns(feeder.take(0.0)) for _ in range(5)] == [[1], [2], [3], [4], []]


def test_a_transactions_messages_are_sent_together():
    """Past the window, and past the batch's count (P1)."""
    feeder = fed(bounds=FeederBounds(window_count=2, batch_count=2))
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
        (DeliveryKind.MESSAGE, (1, 0), False),
        (DeliveryKind.MESSAGE, (2, 0), False),
        (DeliveryKind.SKIP, (2, 1), False),
        (DeliveryKind.MESSAGE, (2, 2), False),
    ]
    assert feeder.decided("s/0") is None


def test_a_message_that_is_to_be_called_anew_says_so():
    """Of unknown outcome, where that was declared (P7)."""
    feeder = Feeder()
    feeder.decide("s/0", position(1, "s/0"), None)
    feeder.begin(feeder.connect(), {"s/0": None})
    feeder.fetch(1, [item(1), item(2)], 2)
    (sent,) = feeder.take(0.0)
    assert (sent.kind, sent.again, sent.skip) == (DeliveryKind.MESSAGE, True, None)


def test_an_answer_to_what_was_not_sent_cuts_it_off():
    """A target that answers garbage is in S, and nothing counts as taken (§15)."""
    feeder = fed()
    feeder.dispatch([item(1)])
    feeder.take(0.0)
    assert not feeder.taken(1, "s/0", position(9, "s/0"), 0.0)
    assert (feeder.state, feeder.trouble.cause) == (FeederState.S, Cause.GARBAGE)
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
    assert feeder.state is FeederState.RF


def failing(*, tags=("s/0", "s/1"), bounds=FeederBounds()):  # noqa: B008 - it does not change
    """A target in N, of whose first substream the first message has failed."""
    feeding = Feeding(bounds)
    feeding.begin(feeding.connect(), dict.fromkeys(tags))
    feeding.main.fetch(feeding.term, (), 0)
    feeding.fix(0)
    feeding.dispatch([item(1), item(2), Item("s/1", position(3, "s/1"))])
    assert lsns(feeding.take(0.0)) == [1, 2, 3]
    trouble = Trouble(Cause.FAILED, "s/0", position(1, "s/0"))
    assert feeding.hold_up(feeding.term, trouble, 5.0)
    return feeding


def test_a_message_that_fails_holds_up_its_own_substream():
    """Others go on; it is tried again by itself, then what is behind it, once it is time (P7)."""
    feeding = failing()
    assert (feeding.in_flight, feeding.state, feeding.due(4.0)) == (1, FeederState.N, [])
    feeding.dispatch([item(4), Item("s/1", position(5, "s/1"))])
    assert lsns(feeding.take(4.0)) == [5]
    assert (feeding.due_s(), feeding.due(5.0)) == (5.0, ["s/0"])
    one, at = feeding.open("s/0")
    assert at is None
    one.fetch(one.term, [item(1), item(2), item(4)], 5)
    feeding.fix(5)
    assert lsns(feeding.take(5.0)) == [1]
    assert feeding.take(5.0) == []
    for place in (position(3, "s/1"), position(5, "s/1"), position(1, "s/0")):
        assert feeding.taken(feeding.term, f"s/{place.substream}", place, 5.0)
    (behind,) = [feeding.take(5.0)]
    assert [(each.item.place.lsn, each.follows) for each in behind] == [
        (2, position(1, "s/0")),
        (4, position(2, "s/0")),
    ]
    assert feeding.taken(feeding.term, "s/0", position(4, "s/0"), 5.0)
    assert not feeding.settled
    feeding.dispatch([item(6)])
    assert not feeding.aside
    (sent,) = feeding.take(6.0)
    assert sent.follows == position(4, "s/0")


def test_a_substream_that_waits_costs_nothing():
    """Nothing of it is queued, however long it waits, and the others' queue is theirs (P4)."""
    feeding = failing(bounds=FeederBounds(queue_count=16))
    feeding.taken(feeding.term, "s/1", position(3, "s/1"), 0.0)
    feeding.dispatch(item(lsn) for lsn in range(4, 10_000))
    assert (feeding.queued, feeding.in_flight, feeding.state) == (0, 0, FeederState.N)
    one, _ = feeding.open("s/0")
    one.fetch(one.term, [item(1), item(2)], 2)
    feeding.fix(9999)
    assert one.state is FeederState.RF
    assert one.wants() is False or one.queued <= 2


def test_as_many_substreams_as_fail_go_on_a_few_at_a_time():
    """What they may have here is bounded, too; one whose turn has not come keeps waiting (P4)."""
    tags = [f"s/{number}" for number in range(20)]
    feeding = Feeding()
    feeding.begin(feeding.connect(), dict.fromkeys(tags), failed=tags)
    opened = feeding.due(0.0)
    assert len(opened) == 8
    for tag in opened:
        feeding.open(tag)
    assert (feeding.due(0.0), feeding.due_s()) == ([], None)
    feeding.aside[opened[0]].feeder.cut(Trouble(Cause.FULL))
    assert len(feeding.due(0.0)) == 1


def test_a_substream_joins_no_others_that_are_recovered():
    """What their recovery reads is not of it: it would lose what was dispatched meanwhile (P4)."""
    feeding = Feeding()
    feeding.begin(feeding.connect(), dict.fromkeys(("s/0", "s/1")), failed=["s/0"])
    one, _ = feeding.open("s/0")
    one.fetch(one.term, [], 5)
    feeding.fix(5)
    assert (one.state, feeding.state) == (FeederState.N, FeederState.RF)
    assert feeding.take(0.0) == []
    assert list(feeding.aside) == ["s/0"]
    feeding.main.fetch(feeding.term, [Item("s/1", position(2, "s/1"))], 5)
    feeding.fix(5)
    feeding.take(0.0)
    assert feeding.state is FeederState.N
    feeding.dispatch([item(6), Item("s/1", position(7, "s/1"))])
    assert not feeding.aside
    assert lsns(feeding.take(0.0)) == [6, 7]


def test_what_does_not_fit_is_fetched_again_behind_what_was_sent():
    """Of a substream that goes on by itself: what is in flight is still answered (P3, P4)."""
    feeding = failing(bounds=FeederBounds(queue_count=16))
    one, _ = feeding.open("s/0")
    one.fetch(one.term, [item(1)], 3)
    feeding.fix(3)
    assert lsns(feeding.take(5.0)) == [1]
    feeding.dispatch([item(4), item(5), item(6)])
    assert (one.state, one.queued, one.in_flight) == (FeederState.RF, 0, 1)
    assert feeding.due(0.0) == ["s/0"]
    assert feeding.open("s/0") == (one, position(1, "s/0"))
    assert feeding.due(0.0) == []
    one.fetch(one.term, [item(4), item(5)], 5)
    assert feeding.taken(feeding.term, "s/0", position(1, "s/0"), 5.0)
    assert lsns(feeding.take(5.0)) == [4, 5]


def test_what_may_kill_its_target_has_nothing_beside_it():
    """Neither of the others, nor of a substream that goes on by itself (P7)."""
    feeding = Feeding()
    feeding.begin(feeding.connect(), dict.fromkeys(("s/0", "s/1")), ["s/1"], failed=["s/0"])
    one, _ = feeding.open("s/0")
    one.fetch(one.term, [item(1)], 1)
    assert lsns(feeding.take(0.0)) == [1]
    feeding.main.fetch(feeding.term, [Item("s/1", position(2, "s/1"))], 2)
    assert feeding.take(0.0) == []
    feeding.taken(feeding.term, "s/0", position(1, "s/0"), 0.0)
    assert lsns(feeding.take(0.0)) == [2]
    feeding.cut(Trouble(Cause.BROKEN))
    assert feeding.trouble == Trouble(Cause.BROKEN, "s/1", position(2, "s/1"), alone=True)


def test_of_a_substream_that_waits_the_skip_is_sent_at_once():
    """What was decided of its message does not wait, and the others do not wait for it (P7)."""
    feeding = failing()
    feeding.decide("s/0", position(1, "s/0"), Skip("it fails", "rule"))
    feeding.cut(Trouble(Cause.ORDERED))
    feeding.begin(feeding.connect(), {"s/0": None, "s/1": position(3, "s/1")})
    assert feeding.due(0.0) == ["s/0"]
    one, _ = feeding.open("s/0")
    one.fetch(one.term, [item(1), item(2)], 3)
    (sent,) = feeding.take(0.0)
    assert (sent.kind, sent.item.place) == (DeliveryKind.SKIP, position(1, "s/0"))
    assert feeding.taken(feeding.term, "s/0", position(1, "s/0"), 0.0)
    assert feeding.decided("s/0") is None


def test_a_substream_joins_no_others_that_fetched_what_it_has_yet_to_get():
    """What the others fetched for themselves is not left out of a substream that joins (P4, P7)."""
    feeding = Feeding()
    term = feeding.connect()
    begun = {"s/0": None, "s/1": None}
    assert feeding.begin(term, begun, failed=["s/0"])
    aside, _ = feeding.open("s/0")
    aside.fetch(aside.term, [item(1)], 3)
    feeding.fix(2)
    assert [each.item.place.lsn for each in feeding.take(0.0)] == [1]
    feeding.taken(term, "s/0", position(1, "s/0"), 0.0)
    assert aside.state is FeederState.N
    # The others' recovery went further than its own, and than the main stream.
    feeding.main.fetch(term, [], 9)
    feeding.fix(2)
    assert (feeding.state, feeding.take(0.0)) == (FeederState.N, [])
    feeding.dispatch([item(5), item(10)])
    feeding.fix(10)
    sent = [each for _ in range(2) for each in feeding.take(0.0)]
    assert [(each.follows and each.follows.lsn, each.item.place.lsn) for each in sent] == [
        (1, 5),
        (5, 10),
    ]


@pytest.mark.parametrize("failed", [[], ["s/0"]])
def test_a_target_whose_store_was_put_back_is_where_it_says(failed):
    """What it had acknowledged is not its index any more: a skip before that counts (P6, P7)."""
    feeding = Feeding()
    for begun in (position(5, "s/0"), position(2, "s/0"), None):
        feeding.begin(feeding.connect(), {"s/0": begun}, failed=failed)
        assert feeding.acknowledged.get("s/0") == begun
        feeding.cut(Trouble(Cause.BROKEN))
