"""A follower reads substreams as one, goes on from any position, and has holds (C4, L6)."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharedlog._core.commit import Commit, NewEntry
from sharedlog._core.entry import EntryKind, ProducerDecision, body_of
from sharedlog._core.errors import HoldMoved, InvalidRequest, LogForked, LogUnavailable, TrimmedLog
from sharedlog._core.following import Follower, Moment, Outstanding
from sharedlog._core.holds import END, all_holds, drop
from sharedlog._core.position import Position
from sharedlog._core.producers import append
from sharedlog._core.reading import Committed, State
from sharedlog._core.spans import decide, pend, retire
from sharedlog._core.streams import tag_of
from sharedlog._core.trim import Committers, trim
from sharedlog._engines.driving import carry_out
from sharedlog._engines.memory import MemoryEngine
from tests.sharedlog.logs import INCARNATION, carry_out_at, message, pending, producer, read

LATE = 10**17
ALL = (0, 1, 2)
# Of a stream that nobody here follows.
OTHER = NewEntry(body_of(EntryKind.COMMITTED, 99, 1, message=b"other"), ("t/0",))


def follower(start=None, substreams=ALL, **more):
    return Follower([tag_of("s", each) for each in substreams], INCARNATION, start, **more)


def followed(engine, start=None, substreams=ALL, **more):
    """Everything that a new follower returns, by its batches."""
    mine = follower(start, substreams, **more)
    found = []
    while batch := carry_out(engine, mine.read(0)):
        found += batch
    return found


def texts(messages):
    return [each.envelope.decode() for each in messages]


def fill(engine, draw):
    """Appends, transactions and other streams' entries, as drawn."""
    writers = [producer(engine) for _ in range(2)]
    seqs, begins, number = [0, 0], [{}, {}], 0
    for kind in draw:
        at = number % 2
        mine, seq = writers[at], seqs[at] + 1
        number += 1
        places = [(number * 7 + part) % 3 for part in range(1 + number % 4)]
        if kind == "other":
            engine.commit(Commit(entries=(OTHER,) * (1 + number % 9)))
            continue
        if kind == "append":
            messages = [message(f"{number}.{n}", place) for n, place in enumerate(places)]
            carry_out(engine, append(mine, seq, messages))
        elif kind == "pend":
            messages = [pending(f"{number}.{n}", place) for n, place in enumerate(places)]
            begins[at] |= carry_out(engine, pend(mine, seq, messages, sorted(begins[at]))).begins
        elif begins[at]:
            decision = ProducerDecision(mine.id, seqs[at], begins[at])
            carry_out(engine, decide(mine, seq, [decision], commits=kind == "commit"))
            begins[at] = {}
        else:
            continue
        seqs[at] = seq


KINDS = st.lists(
    st.sampled_from(["append", "append", "pend", "pend", "commit", "rollback", "other"]),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(draw=KINDS, substreams=st.sets(st.sampled_from(ALL), min_size=1), data=st.data())
def test_substreams_are_followed_as_one_from_any_position(draw, substreams, data):
    """By commit, then substream; however rows are read, and behind each message the exact rest."""
    engine = MemoryEngine()
    fill(engine, draw)
    mine = sorted(substreams)
    expected = sorted(
        (position.lsn, position.substream, position.ordinal, text)
        for each in mine
        for position, text in read(engine, each)
    )
    ahead = data.draw(st.sampled_from([1, 1 << 20]))
    found = followed(engine, None, mine, ahead_bytes=ahead)
    told = [
        (each.position.lsn, each.position.substream, each.position.ordinal, text)
        for each, text in zip(found, texts(found), strict=True)
    ]
    assert told == expected
    for at, each in enumerate(found):
        kept = Position.parse(str(each.position))
        assert texts(followed(engine, kept, mine, ahead_bytes=ahead)) == texts(found[at + 1 :])


@pytest.mark.parametrize("share", [1, 40])
def test_many_rows_are_followed_whatever_share_of_the_log_they_are(each_engine, share):
    """By tag where others are most of the log, else all at once; one way leads to the other."""
    mine, seq = producer(each_engine), 0
    for part in range(3):
        for _ in range(120):
            seq += 1
            carry_out(each_engine, append(mine, seq, [message(f"{seq}.{n}", n) for n in range(3)]))
            if part == 1:
                noise = (OTHER,) * share
                each_engine.commit(Commit(entries=noise))
    found = followed(each_engine, ahead_bytes=1 << 12)
    assert texts(found) == [f"{seq}.{n}" for seq in range(1, 361) for n in range(3)]
    assert texts(followed(each_engine, found[500].position)) == texts(found[501:])


def test_a_commit_larger_than_what_is_read_ahead_is_read_whole(each_engine):
    """A read never stops inside a commit (DESIGN-LOG §18), and others wait for it."""
    mine, other = producer(each_engine), producer(each_engine)
    carry_out(each_engine, append(mine, 1, [message(str(n), n % 3) for n in range(2500)]))
    carry_out(each_engine, append(other, 1, [message("last", 1)]))
    found = followed(each_engine, ahead_bytes=1)
    expected = [str(n) for place in ALL for n in range(place, 2500, 3)]
    assert texts(found) == [*expected, "last"]


def test_where_a_follower_begins(each_engine):
    """The beginning, the end, a moment, a position of each; nonsense is refused."""
    mine = producer(each_engine)
    for seq in range(1, 7):
        messages = [message(f"{seq}.{place}", place) for place in ALL]
        carry_out_at(each_engine, append(mine, seq, messages), 10 * seq)
    whole = followed(each_engine)
    assert texts(followed(each_engine, "beginning")) == texts(whole)
    assert texts(followed(each_engine, Moment(39))) == texts(whole[9:])
    assert texts(followed(each_engine, Moment(40))) == texts(whole[12:])
    late = follower(END)
    assert carry_out(each_engine, late.read(0)) == []
    carry_out(each_engine, append(mine, 7, [message("new", 2)]))
    assert texts(carry_out(each_engine, late.read(0))) == ["new"]
    each = {"s/0": whole[12].position, "s/2": whole[8].position}
    assert texts(followed(each_engine, each, (0, 2))) == ["4.2", "5.2", "6.0", "6.2", "new"]
    with pytest.raises(InvalidRequest):
        followed(each_engine, "middle")
    with pytest.raises(LogForked):
        followed(each_engine, whole[0].position._replace(incarnation="beef"))


def test_a_named_follower_goes_on_behind_what_it_has_done(each_engine):
    """Whatever it read beyond; what it says of one message counts for all before it (L6)."""
    mine = producer(each_engine)
    for seq in range(1, 7):
        messages = [message(f"{seq}.{place}", place) for place in ALL]
        carry_out(each_engine, append(mine, seq, messages))

    def named():
        return follower(name="me", retention_us=100)

    first = named()
    found = carry_out(each_engine, first.read(0))
    first.done(found[4].position)
    first.done(found[10].position)
    first.done(found[4].position)
    # It is killed before it has told the log.
    second = named()
    assert texts(carry_out(each_engine, second.read(0))) == texts(found)
    second.done(found[10].position)
    carry_out(each_engine, second.move(1, idle=False))
    carry_out_at(each_engine, trim(Committers(), LATE, 0), LATE)
    third = named()
    rest = carry_out(each_engine, third.read(0))
    assert texts(rest) == texts(found[11:])
    with pytest.raises(InvalidRequest):
        third.done(found[12].position._replace(ordinal=7))
    with pytest.raises(LogForked):
        third.done(found[12].position._replace(incarnation="beef"))
    third.done(rest[-1].position)
    carry_out(each_engine, third.move(2, idle=False))
    assert carry_out(each_engine, named().read(0)) == []
    second.done(found[12].position)
    with pytest.raises(HoldMoved):
        carry_out(each_engine, second.move(3, idle=False))


def returned(place):
    return Committed(place, "s", place.lsn, 0, 0, b"", 0)


def test_what_was_returned_is_done_as_a_list_would_have_it():
    """By commit, then substream, then their order there; what was not returned is refused (L6)."""
    for seed in range(60):
        dice = Random(seed)
        outstanding, listed, moved, lsn = Outstanding(), [], {}, 0
        for _ in range(60):
            if dice.random() < 0.5:
                added = []
                for _ in range(dice.randint(0, 3)):
                    lsn += dice.randint(1, 3)
                    for at in sorted(dice.sample(range(4), dice.randint(1, 4))):
                        for ordinal in range(dice.randint(1, 3)):
                            place = Position(lsn, ordinal, dice.getrandbits(32), "me", at)
                            added.append(returned(place))
                # As after an interrupt.
                for _ in range(dice.randint(1, 2)):
                    outstanding.add(added)
                listed += [each.position for each in added]
            elif listed:
                place = listed[dice.randrange(len(listed))]
                for wrong in ("ordinal", "checksum", "lsn", "substream"):
                    other = place._replace(**{wrong: getattr(place, wrong) + 9})
                    assert not outstanding.done(other)
                assert outstanding.done(place)
                count = listed.index(place) + 1
                moved |= {each.substream: each for each in listed[:count]}
                del listed[:count]
                assert not outstanding.done(place)
            assert outstanding.moved == moved
            assert outstanding.substreams == {each.substream for each in listed}


def test_as_many_messages_as_there_are_may_be_done_later():
    """More than 100,000 that are not done were refused for ever (L6)."""
    outstanding = Outstanding()
    places = [Position(at, 0, at, "me", at % 8) for at in range(1, 120_001)]
    outstanding.add([returned(each) for each in places])
    for place in (places[0], places[7], places[60_000], places[-1]):
        assert outstanding.done(place)
    assert outstanding.moved == {each.substream: each for each in places[-8:]}
    assert not outstanding.substreams


def test_a_hold_where_nothing_happens_moves_with_the_log(each_engine):
    """Else a substream without messages would keep the whole log (L6)."""
    mine, other = producer(each_engine), producer(each_engine)
    named = follower(name="me", retention_us=100)
    carry_out(each_engine, append(mine, 1, [message("a", 0)]))
    (only,) = carry_out(each_engine, named.read(0))
    begins = carry_out(each_engine, pend(other, 1, [pending("p", 1)], [])).begins
    carry_out(each_engine, append(mine, 2, [message("b", 2)]))
    (second,) = carry_out(each_engine, named.read(0))
    carry_out(each_engine, named.move(1, idle=True))
    # What is not done keeps its hold; the others pass.
    places = {each.tag: each.lsn for each in carry_out(each_engine, all_holds())}
    assert places == {"s/0": 1, "s/1": 3, "s/2": 1}
    named.done(only.position)
    named.done(second.position)
    carry_out(each_engine, named.move(2, idle=True))
    places = {each.tag: each.lsn for each in carry_out(each_engine, all_holds())}
    assert places == {"s/0": 3, "s/1": 3, "s/2": 3}
    assert carry_out_at(each_engine, trim(Committers(), LATE, 0), LATE).trimmed == (
        3,
        1,
        each_engine.read(1, 1).rows[0].at_us,
    )
    carry_out(each_engine, decide(other, 2, [ProducerDecision(other.id, 1, begins)], commits=True))
    again = follower(name="me", retention_us=100)
    assert texts(carry_out(each_engine, again.read(0))) == ["p"]


def test_a_hold_is_renewed_where_nothing_moves(each_engine):
    """An idle follower is not reported as gone (L6)."""
    named = follower(name="me", retention_us=100)
    carry_out(each_engine, named.read(0))
    for now in (20, 26, 30):
        carry_out(each_engine, named.move(now, idle=False))
    assert {each.renewed_us for each in carry_out(each_engine, all_holds())} == {26}


def test_a_follower_learns_what_it_lost(each_engine):
    """Without a hold by a trim, with one by the operator who dropped it: never a gap (L6)."""
    mine = producer(each_engine)
    carry_out(each_engine, append(mine, 1, [message("1")]))
    plain, named = follower(), follower(name="me", retention_us=100)
    carry_out(each_engine, plain.read(0))
    carry_out(each_engine, named.read(0))
    for seq in range(2, 9):
        carry_out(each_engine, append(mine, seq, [message(str(seq))]))
    carry_out(each_engine, drop("me"))
    carry_out_at(each_engine, trim(Committers(), LATE, 0), LATE)
    with pytest.raises(TrimmedLog) as caught:
        carry_out(each_engine, plain.read(0))
    told = carry_out(each_engine, plain.explain(caught.value))
    assert (told.first, told.lost) == (8, (2, 7))
    with pytest.raises(TrimmedLog) as caught:
        carry_out(each_engine, named.read(0))
    with pytest.raises(TrimmedLog, match="dropped") as dropped:
        carry_out(each_engine, named.explain(caught.value))
    assert (dropped.value.first, dropped.value.lost) == (8, (1, 7))


def test_a_follower_is_given_nothing_of_a_transaction_that_lost_a_part(each_engine):
    """Though its own part is there, and what follows it (L6)."""
    mine, other, third = (producer(each_engine) for _ in range(3))
    first = carry_out(each_engine, pend(mine, 1, [pending("torn", 0)], [])).begins
    # Keeps the rows from here on.
    carry_out(each_engine, pend(third, 1, [pending("open", 0)], []))
    second = carry_out(each_engine, pend(mine, 2, [pending("torn", 1)], ["s/0"])).begins
    behind = follower(None, (1, 2))
    assert carry_out(each_engine, behind.read(0)) == []
    carry_out(
        each_engine, decide(mine, 3, [ProducerDecision(mine.id, 2, first | second)], commits=True)
    )
    carry_out(each_engine, append(other, 1, [message("whole", 1)]))
    carry_out_at(each_engine, trim(Committers(), LATE, 0), LATE)
    assert each_engine.first() == 2
    for _ in range(2):
        with pytest.raises(TrimmedLog) as caught:
            carry_out(each_engine, behind.read(0))
        assert caught.value.first == 5
    assert texts(followed(each_engine)) == ["whole"]


class Failing(MemoryEngine):
    """An engine whose reads fail now and then."""

    def __init__(self):
        super().__init__()
        self.left = None

    def read(self, after, limit, tag=None):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left = None
                raise LogUnavailable("for a moment")
        return super().read(after, limit, tag)


@settings(max_examples=60, deadline=None)
@given(draw=KINDS, failing=st.integers(0, 12), place=st.integers(0, 5), data=st.data())
def test_a_read_that_failed_is_made_again_and_nothing_is_lost_or_doubled(
    draw, failing, place, data
):
    """Whatever was half read by then (C4)."""
    engine = Failing()
    fill(engine, draw)
    whole = followed(engine)
    start = whole[place].position if place < len(whole) else None
    mine = follower(start, ahead_bytes=data.draw(st.sampled_from([1, 1 << 20])))
    found, tried = [], 0
    engine.left = failing
    while True:
        try:
            batch = carry_out(engine, mine.read(0))
        except LogUnavailable:
            tried += 1
            continue
        if not batch:
            break
        found += batch
    assert texts(found) == texts(whole[place + 1 :] if start else whole)
    assert tried <= 1


def test_what_is_not_committed_is_shown_to_who_asks(each_engine):
    """Once, in the log's order, as what it is by then: for whoever looks into a log."""
    mine, other, third = (producer(each_engine) for _ in range(3))
    first = carry_out(
        each_engine, pend(mine, 1, [pending("kept", 0), pending("kept", 1)], [])
    ).begins
    second = carry_out(each_engine, pend(other, 1, [pending("lost", 0)], [])).begins
    carry_out(each_engine, append(third, 1, [message("single", 1)]))
    carry_out(each_engine, decide(other, 2, [ProducerDecision(other.id, 1, second)], commits=False))
    carry_out(each_engine, pend(other, 3, [pending("open", 1)], []))
    carry_out(each_engine, decide(mine, 2, [ProducerDecision(mine.id, 1, first)], commits=True))
    found = followed(each_engine, committed=False)
    assert [(text, each.state) for each, text in zip(found, texts(found), strict=True)] == [
        ("kept", State.COMMITTED),
        ("kept", State.COMMITTED),
        ("lost", State.ROLLED_BACK),
        ("single", State.COMMITTED),
        ("open", State.PENDING),
    ]
    for at, each in enumerate(found):
        assert followed(each_engine, each.position, committed=False) == found[at + 1 :]
    carry_out(each_engine, retire(other.id))
    assert followed(each_engine, committed=False)[-1].state is State.ROLLED_BACK
    assert {each.state for each in followed(each_engine)} == {State.COMMITTED}
