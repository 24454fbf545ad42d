"""Trimming takes away what nobody needs, and never a part of what somebody reads (L6)."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharedlog._core.commit import Commit, Refused
from sharedlog._core.entry import ProducerDecision
from sharedlog._core.errors import ProducerRetired, SpanGone, TrimmedLog
from sharedlog._core.holds import BEGINNING, all_holds, drop, forget, move, take
from sharedlog._core.producers import append
from sharedlog._core.reading import Reader
from sharedlog._core.spans import decide, pend, retire
from sharedlog._core.steps import Remove
from sharedlog._core.streams import tag_of
from sharedlog._core.times import first_after
from sharedlog._core.trim import Committers, trim
from sharedlog._core.whole import TRIMMED, read_trimmed
from sharedlog._engines.driving import carry_out, do
from sharedlog._engines.memory import MemoryEngine
from tests.sharedlog.logs import (
    INCARNATION,
    Ended,
    carry_out_at,
    carry_out_from,
    message,
    next_step,
    pending,
    producer,
    read,
    to_commit,
)

# Later than every clock.
LATE = 10**17


def trimmed(engine, committers=None):
    """Trim everything that nothing keeps."""
    return carry_out_at(engine, trim(committers or Committers(), LATE, 0), LATE)


def held(engine, start=BEGINNING, name="me"):
    tags = (tag_of("s", 0), tag_of("s", 1))
    return carry_out(engine, take(name, dict.fromkeys(tags, start), INCARNATION, 0, LATE))


def test_nothing_goes_that_is_younger_than_the_retention(each_engine):
    """New followers need it (L6); the newest append stays, whatever its age."""
    mine = producer(each_engine)
    for seq in range(1, 6):
        carry_out_at(each_engine, append(mine, seq, [message("a"), message("b", 1)]), 100 * seq)
    outcome = carry_out_at(each_engine, trim(Committers(), 549, 250), 549)
    assert (outcome.trimmed, outcome.rows) == ((5, 4, 200), 4)
    assert each_engine.first() == 5
    carry_out_at(each_engine, append(mine, 6, [message("a")]), 5000)
    outcome = carry_out_at(each_engine, trim(Committers(), 5100, 250), 5100)
    assert (outcome.trimmed, outcome.rows) == ((11, 10, 500), 6)
    assert carry_out_at(each_engine, trim(Committers(), 9900, 0), 9900).rows == 0
    assert [text for _, text in read(each_engine)] == ["a"]
    assert carry_out(MemoryEngine(), trim(Committers(), 5, 5)).rows == 0


def test_an_idle_log_keeps_its_last_retention(each_engine):
    """However late it is by the trimmer's clock, which may be ahead (L6)."""
    mine = producer(each_engine)
    for seq in range(1, 6):
        carry_out_at(each_engine, append(mine, seq, [message("a")]), 100 * seq)
    outcome = carry_out_at(each_engine, trim(Committers(), LATE, 250), LATE)
    assert (outcome.trimmed, outcome.kept_by) == ((3, 2, 200), "the retention")
    assert [position.lsn for position, _ in read(each_engine)] == [3, 4, 5]


def test_nothing_young_goes_by_a_trimmer_whose_clock_is_ahead(each_engine):
    """A writer's has to be wrong, too: age counts from the newest row at most (L6)."""
    mine = producer(each_engine)
    for seq in range(1, 21):
        carry_out_at(each_engine, append(mine, seq, [message(str(seq))]), 10 * seq)
    assert carry_out(each_engine, trim(Committers(), 10_000, 500)).rows == 0
    # A writer's is ahead as far: what was written before it is old for both.
    carry_out_at(each_engine, append(mine, 21, [message("ahead")]), 10_000)
    assert carry_out(each_engine, trim(Committers(), 10_000, 500)).rows == 20


def test_what_follows_a_writer_whose_clock_was_ahead_is_kept_until_clocks_come_there(each_engine):
    """Its time stands still at the jump; nothing goes too early (L6, DESIGN-LOG §18)."""
    mine = producer(each_engine)
    jumps = {3: 1000}
    for seq in range(1, 6):
        at = jumps.get(seq, 10 * seq)
        carry_out_at(each_engine, append(mine, seq, [message(str(seq))]), at)
    # By the clock of everybody else it is 50; from the jump on nothing is old before 1200.
    assert carry_out(each_engine, trim(Committers(), 50, 200)).rows == 0
    assert carry_out(each_engine, trim(Committers(), 260, 200)).trimmed.whole == 3
    assert carry_out(each_engine, trim(Committers(), 1199, 200)).rows == 0
    carry_out_at(each_engine, append(mine, 6, [message("6")]), 1250)
    assert carry_out(each_engine, trim(Committers(), 1250, 200)).trimmed.whole == 6


def test_nothing_goes_that_a_hold_is_before(each_engine):
    """Not even a part of the append that the hold is in (L6, C4)."""
    mine = producer(each_engine)
    for seq in range(1, 6):
        carry_out(each_engine, append(mine, seq, [message("a"), message("b"), message("c")]))
    positions = [position for position, _ in read(each_engine)]
    hold = held(each_engine)
    assert trimmed(each_engine).rows == 0
    carry_out(each_engine, move(hold, {"s/0": positions[7], "s/1": positions[10]}, 0))
    outcome = trimmed(each_engine)
    assert outcome.trimmed.whole == 7
    assert "s/0" in outcome.kept_by
    assert read(each_engine, after=positions[7]) == read(each_engine)[2:]
    assert len(read(each_engine)) == 9


def test_nothing_goes_that_is_pending(each_engine):
    """It may be committed yet (L6); reading from the beginning finds it then."""
    mine, other = producer(each_engine), producer(each_engine)
    carry_out(each_engine, append(other, 1, [message("a")]))
    begins = carry_out(each_engine, pend(mine, 1, [pending("b")], [])).begins
    for seq in range(2, 9):
        carry_out(each_engine, append(other, seq, [message(f"c{seq}")]))
    outcome = trimmed(each_engine)
    assert (outcome.trimmed.whole, each_engine.first()) == (9, 2)
    assert f"producer {mine.id}" in outcome.kept_by
    assert [text for _, text in read(each_engine)] == ["c8"]
    carry_out(each_engine, decide(mine, 2, [ProducerDecision(mine.id, 1, begins)], commits=True))
    assert [text for _, text in read(each_engine)] == ["c8", "b"]


@pytest.mark.parametrize("by", ["hold", "retention"])
def test_nothing_goes_of_a_transaction_that_was_committed_above_what_stays(each_engine, by):
    """Its marker says where it begins, and markers are found by a tag of their own (L6)."""
    mine, other = producer(each_engine), producer(each_engine)
    carry_out_at(each_engine, append(other, 1, [message("a")]), 1)
    begins = carry_out_at(each_engine, pend(mine, 1, [pending("b")], []), 1).begins
    carry_out_at(each_engine, append(other, 2, [message("c")]), 1)
    (*_, (position, _)) = read(each_engine)
    decision = ProducerDecision(mine.id, 1, begins)
    carry_out_at(each_engine, decide(mine, 2, [decision], commits=True), 9)
    carry_out_at(each_engine, append(other, 3, [message("d")]), 9)
    if by == "hold":
        held(each_engine, position)
        outcome = trimmed(each_engine)
    else:
        outcome = carry_out_at(each_engine, trim(Committers(), 10, 5), 10)
    assert (outcome.trimmed.removed, each_engine.first()) == (1, 2)
    assert "committed later" in outcome.kept_by
    assert [text for _, text in read(each_engine)][-2:] == ["b", "d"]


def test_a_transaction_that_lost_a_part_is_delivered_to_nobody(each_engine):
    """A reader whose own part is there gets ``TrimmedLog``, and nothing of it (L6)."""
    mine, other, third = (producer(each_engine) for _ in range(3))
    first = carry_out(each_engine, pend(mine, 1, [pending("torn", 0)], [])).begins
    # Keeps the rows from here on.
    carry_out(each_engine, pend(third, 1, [pending("open", 0)], []))
    second = carry_out(each_engine, pend(mine, 2, [pending("torn", 1)], ["s/0"])).begins
    behind = Reader(tag_of("s", 1), INCARNATION)
    assert carry_out(each_engine, behind.read(10)).messages == []
    carry_out(
        each_engine, decide(mine, 3, [ProducerDecision(mine.id, 2, first | second)], commits=True)
    )
    carry_out(each_engine, append(other, 1, [message("whole", 1)]))
    outcome = trimmed(each_engine)
    assert (outcome.trimmed.whole, each_engine.first()) == (5, 2)
    with pytest.raises(TrimmedLog) as caught:
        carry_out(each_engine, behind.read(10))
    assert caught.value.first == 5
    with pytest.raises(TrimmedLog):
        carry_out(each_engine, Reader(tag_of("s", 1), INCARNATION, 2).read(10))
    assert [text for _, text in read(each_engine, 1)] == ["whole"]


def test_a_reader_without_a_hold_that_falls_behind_is_told(each_engine):
    """By position, and while it reads: never a gap (L6)."""
    mine = producer(each_engine)
    for seq in range(1, 10):
        carry_out(each_engine, append(mine, seq, [message(str(seq))]))
    reader = Reader(tag_of("s", 0), INCARNATION)
    seen = carry_out(each_engine, reader.read(3)).messages
    trimmed(each_engine)
    with pytest.raises(TrimmedLog):
        carry_out(each_engine, reader.read(3))
    with pytest.raises(TrimmedLog):
        read(each_engine, after=seen[-1].position)
    assert [text for _, text in read(each_engine)] == ["9"]


def test_a_trim_that_died_before_it_removed_is_finished_by_the_next(each_engine):
    """What is declared is gone for readers already (L6)."""
    mine = producer(each_engine)
    for seq in range(1, 10):
        carry_out(each_engine, append(mine, seq, [message(str(seq))]))
    declaring = to_commit(each_engine, trim(Committers(), LATE, 0))
    do(each_engine, declaring)
    assert each_engine.first() == 1
    assert [text for _, text in read(each_engine)] == ["9"]
    assert trimmed(each_engine).rows == 8
    assert each_engine.first() == 9


@pytest.mark.parametrize("place", range(8))
@pytest.mark.parametrize("meanwhile", ["opens", "commits"])
def test_what_is_pending_while_a_trim_looks_is_seen_by_it(each_engine, place, meanwhile):
    """By its span or by its marker, whatever opens or commits between two steps (L6)."""
    mine, other = producer(each_engine), producer(each_engine)
    seqs = iter(range(1, 99))

    def single():
        seq = next(seqs)
        carry_out(each_engine, append(other, seq, [message(f"b{seq}")]))

    def opens():
        return carry_out(each_engine, pend(mine, 1, [pending("mine")], [])).begins

    def commits(begins):
        carry_out(
            each_engine, decide(mine, 2, [ProducerDecision(mine.id, 1, begins)], commits=True)
        )

    single()
    if meanwhile == "commits":
        begins = opens()
    single()
    rule = trim(Committers(), LATE, 0)
    step = next_step(rule, None)
    for _ in range(place):
        step = next_step(rule, do(each_engine, step))
    answer = do(each_engine, step)
    if meanwhile == "commits":
        commits(begins)
    else:
        begins = opens()
    single()
    whole = carry_out_from(each_engine, rule, answer).trimmed.whole
    if meanwhile == "opens":
        commits(begins)
    found = [text for position, text in read(each_engine) if position.lsn >= whole]
    assert "mine" in found or meanwhile == "commits"
    assert found == [text for _, text in read(each_engine)]


def test_two_trims_that_meet_declare_one_after_the_other(each_engine):
    """The second looks again (L6)."""
    mine = producer(each_engine)
    for seq in range(1, 6):
        carry_out(each_engine, append(mine, seq, [message(str(seq))]))
    rule = trim(Committers(), LATE, 0)
    declaring = to_commit(each_engine, rule)
    trimmed(each_engine)
    with pytest.raises(Refused) as caught:
        do(each_engine, declaring)
    assert carry_out_from(each_engine, rule, caught.value).rows == 0
    assert carry_out(each_engine, read_trimmed()).whole == 5


class Shadowed(MemoryEngine):
    """A log beside which a second one keeps everything."""

    def __init__(self):
        super().__init__()
        self.shadow = MemoryEngine()

    def commit(self, commit):
        lsns = super().commit(commit)
        # Nobody tells it of a trim.
        puts = tuple(each for each in commit.puts if each.key != TRIMMED)
        self.shadow.commit(commit._replace(conditions=(), puts=puts))
        return lsns


class Actor:
    """Whoever carries out one rule at a time, step by step; it may lose a reply and do it again."""

    def __init__(self, engine):
        self.engine = engine
        self.make = self.rule = self.then = None
        self.answer = None

    def begin(self, make, then=lambda _: None):
        self.make, self.rule, self.then, self.answer = make, make(), then, None

    def step(self, *, lose, at_us):
        try:
            step = next_step(self.rule, self.answer)
            if isinstance(step, Ended):
                self.rule = None
                self.then(step.value)
                return
            if isinstance(step, Commit):
                step = step._replace(at_us=at_us)
                self.answer = self.engine.commit(step)
            else:
                self.answer = do(self.engine, step)
            if lose and isinstance(step, Commit | Remove):
                # It died, or its reply was lost: the same rule again.
                self.rule, self.answer = self.make(), None
        except Refused as refused:
            self.answer = refused
        except (ProducerRetired, SpanGone, TrimmedLog) as error:
            self.rule = None
            self.failed(error)

    def failed(self, error):
        # Of a trim: another one removed what it was to look at.
        assert isinstance(error, TrimmedLog)


class Writer(Actor):
    """A producer with transactions."""

    def __init__(self, engine, name):
        super().__init__(engine)
        self.name = name
        self.number = 0
        self.anew()

    def anew(self):
        self.producer = producer(self.engine)
        self.seq, self.begins, self.over = 0, {}, False

    def failed(self, error):
        assert isinstance(error, ProducerRetired | SpanGone)
        self.over = True

    def act(self, data):
        seq = self.seq + 1
        kind = data.draw(st.sampled_from(["append", "pend", "pend", "commit", "rollback"]))
        if kind in ("append", "pend"):
            places = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=3))
            make = message if kind == "append" else pending
            texts = [f"{self.name}{self.number + at}" for at in range(len(places))]
            self.number += len(texts)
            messages = [make(text, place) for text, place in zip(texts, places, strict=True)]

            def done(found):
                self.seq = seq
                self.begins |= getattr(found, "begins", {})

            opened = sorted(self.begins)
            if kind == "append":
                self.begin(lambda: append(self.producer, seq, messages), done)
            else:
                self.begin(lambda: pend(self.producer, seq, messages, opened), done)
        elif self.begins:
            decision = ProducerDecision(self.producer.id, self.seq, dict(self.begins))

            def decided(_):
                self.seq, self.begins = seq, {}

            self.begin(
                lambda: decide(self.producer, seq, [decision], commits=kind == "commit"), decided
            )


class Follower(Actor):
    """It has a hold, and says what it has done; it checks that it misses nothing."""

    def __init__(self, engine, name):
        super().__init__(engine)
        self.name, self.held, self.over, self.late = name, None, False, False

    def failed(self, error):
        # Where an operator dropped it, or it began too late.
        assert isinstance(error, TrimmedLog)
        assert (self.late and self.held is None) or self.dropped()
        self.over = True

    def dropped(self):
        return any(each.dropped for each in carry_out(self.engine, all_holds(self.name)))

    def act(self, data, now_us):
        def held(found):
            self.held = found

        if self.held is None:
            place = data.draw(st.integers(0, 1))
            known = read(self.engine.shadow, place)
            starts = [BEGINNING, *(position for position, _ in known[-3:])]
            start = data.draw(st.sampled_from(starts))
            # It may be trimmed by now, or before the hold is there.
            self.late = start is not BEGINNING
            self.tag, self.place = tag_of("s", place), place
            self.begin(lambda: take(self.name, {self.tag: start}, INCARNATION, now_us, 9), held)
            return
        try:
            ahead = self.behind()
        except TrimmedLog as error:
            self.failed(error)
            return
        if ahead:
            position, _ = data.draw(st.sampled_from(ahead))
            mine = self.held
            self.begin(lambda: move(mine, {self.tag: position}, now_us), held)

    def behind(self):
        """What it has not done: exactly what is in the shadow."""
        hold = self.held[self.tag]
        found = read(self.engine, self.place, hold.start())
        everything = read(self.engine.shadow, self.place)
        # What is whole, where it began; else behind what it has done.
        done = (hold.lsn, -1) if hold.position is None else hold.place
        wanted = [each for each in everything if (each[0].lsn, each[0].ordinal) > done]
        assert found == wanted
        return found


def test_whatever_meets_a_trim_nothing_is_missed_silently():
    """Writers, transactions, retiring, holds, trims and crashes, step by step, beside a log
    that keeps everything: a held follower misses nothing, any position reads the exact rest or
    is ``TrimmedLog``, the beginning is what is whole, and times are exact (L6, C3, C4).
    """
    wholes = []

    @settings(max_examples=80, deadline=None)
    @given(data=st.data())
    def each_schedule(data):
        wholes.append(_beside_one_that_keeps_everything(data))

    each_schedule()
    # Else it says nothing of trims.
    assert sum(whole > 1 for whole in wholes) > len(wholes) / 8


def _beside_one_that_keeps_everything(data):
    """Carry a schedule out; from where on commits are whole in the end."""
    engine = Shadowed()
    writers = [Writer(engine, name) for name in "abc"]
    followers = [Follower(engine, name) for name in ("f", "g")]
    retention_us = data.draw(st.sampled_from([0, 5, 20]))
    trimmers = [Actor(engine) for _ in range(2)]
    committers = [Committers(), Committers()]
    now = 0

    def whole_enough(outcome):
        # Another one may have declared it, which began later.
        old = carry_out(engine.shadow, first_after(now - retention_us))
        assert outcome.trimmed.whole <= max(old, 1)

    for _ in range(data.draw(st.integers(30, 120))):
        now += data.draw(st.integers(0, 2))
        lose = data.draw(st.integers(0, 5)) == 0
        actor = data.draw(st.sampled_from([*writers, *followers, *trimmers]))
        if actor.rule is not None:
            for _ in range(data.draw(st.sampled_from([1, 2, 20]))):
                if actor.rule is None:
                    break
                actor.step(lose=lose, at_us=now)
                lose = False
        elif actor in trimmers:
            at = trimmers.index(actor)
            if lose:
                committers[at] = Committers()
            actor.begin(partial(trim, committers[at], now, retention_us), whole_enough)
        elif actor in followers:
            if actor.over:
                carry_out(engine, forget(actor.name))
                followers[followers.index(actor)] = Follower(engine, actor.name)
            elif data.draw(st.integers(0, 20)) == 0:
                carry_out(engine, drop(actor.name))
            else:
                actor.act(data, now)
        elif actor.over or data.draw(st.integers(0, 30)) == 0:
            carry_out_at(engine, retire(actor.producer.id), now)
            actor.anew()
        else:
            actor.act(data)

    shadow = engine.shadow
    declared = carry_out(engine, read_trimmed())
    for follower in followers:
        if follower.held and follower.rule is None and not follower.over:
            found = carry_out(engine, all_holds(follower.name))
            if found and not found[0].dropped:
                follower.held = {found[0].tag: found[0]}
                follower.behind()
    for place in (0, 1):
        everything = read(shadow, place)
        whole = [each for each in everything if each[0].lsn >= declared.whole]
        assert read(engine, place) == whole
        for at, (position, _) in enumerate(everything):
            try:
                found = read(engine, place, position, ring=0)
            except TrimmedLog:
                assert position.lsn < declared.whole
            else:
                assert found == everything[at + 1 :]
    for at_us in range(-1, now + 2):
        exact = carry_out(shadow, first_after(at_us))
        try:
            assert carry_out(engine, first_after(at_us)) == exact
        except TrimmedLog:
            assert exact < declared.whole
    return declared.whole
