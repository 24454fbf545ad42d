"""A target that fails: again, a dead letter, or stop (DESIGN-LOG §15, P6, P7)."""

import pytest

from sharedlog._core.commit import Commit, Put
from sharedlog._core.holds import Hold
from sharedlog._core.player.backoff import Backoff
from sharedlog._core.player.failing import (
    Again,
    Anew,
    Failing,
    FailurePolicy,
    Skipped,
    Suspended,
    Then,
    Why,
)
from sharedlog._core.player.indexes import Begins, KnownIndex, held_against, main_begins
from sharedlog._core.player.trouble import Cause, Trouble
from sharedlog._core.producers import append
from sharedlog._core.reading import Reader
from sharedlog._core.whole import TRIMMED, Trimmed
from sharedlog._engines.driving import carry_out
from sharedlog._engines.memory import MemoryEngine
from tests.sharedlog.logs import INCARNATION, message, producer
from tests.sharedlog.player.course import position

TAG = "s/0"
PLACE = position(7, TAG)


def about(cause, *, alone=False):
    return Trouble(cause, TAG, PLACE, 13, "no room", alone)


@pytest.mark.parametrize(
    ("cause", "pause"),
    [(each, False) for each in (Cause.FULL, Cause.RESTARTED, Cause.ORDERED)]
    + [(each, True) for each in (Cause.GAP, Cause.LATE, Cause.BROKEN, Cause.GARBAGE)]
    + [(each, True) for each in (Cause.UNAVAILABLE, Cause.NOT_ALLOWED, Cause.CONFIG)],
)
def test_what_is_no_messages_doing_is_tried_again(cause, pause):
    """For ever, and nothing is counted; after a pause, unless it was ours to cut it off (P4)."""
    failing = Failing(FailurePolicy(1, Then.DEAD_LETTER, Then.DEAD_LETTER, Then.DEAD_LETTER))
    assert [failing.judge(about(cause)) for _ in range(9)] == 9 * [Again(pause)]


def test_many_messages_in_a_row_with_the_same_error_stop_the_target():
    """The handler is wrong, not they; another error, or a message that was taken, ends the row."""
    failing = Failing(FailurePolicy(1, Then.DEAD_LETTER, same_error=3))

    def fail(at, error="no room"):
        return failing.judge(Trouble(Cause.FAILED, TAG, position(at, TAG), 13, error))

    failing.done(TAG, position(1, TAG))
    for first, ends in (
        (10, lambda: failing.done(TAG, position(15, TAG))),
        (20, lambda: fail(25, "other")),
        (30, failing.forget),
    ):
        for at in (first, first + 1):
            # What is judged twice counts once.
            assert isinstance(fail(at), Skipped)
            assert isinstance(fail(at), Skipped)
            failing.done(TAG, position(at, TAG))
        ends()
    assert [type(fail(at)) for at in (40, 41)] == [Skipped, Skipped]
    stopped = fail(42)
    assert (stopped.why, stopped.about) == (Why.SAME_ERROR, position(42, TAG))
    assert "3 messages in a row" in stopped.details
    failing.forget()
    assert isinstance(fail(42), Skipped)
    off = Failing(FailurePolicy(1, Then.DEAD_LETTER, same_error=0))
    for at in range(50):
        assert isinstance(off.judge(Trouble(Cause.FAILED, TAG, position(at, TAG))), Skipped)


@pytest.mark.parametrize(
    ("cause", "field", "why"),
    [(Cause.REFUSED, "refused", Why.REFUSED), (Cause.UNKNOWN, "unknown", Why.UNKNOWN)],
)
@pytest.mark.parametrize("then", Then)
def test_what_cannot_be_called_becomes_what_was_declared(cause, field, why, then):
    """A dead letter, one more call, or the target stops; nothing else is undeclared (P7)."""
    found = Failing(FailurePolicy(**{field: then})).judge(about(cause))
    if then is Then.STOP:
        assert found == Suspended(why, "no room", TAG, PLACE)
    elif then is Then.AGAIN:
        assert found == Anew(TAG, PLACE)
    else:
        assert isinstance(found, Skipped)
        assert (found.tag, found.place, found.skip.by) == (TAG, PLACE, "rule")
        assert "no room" in found.skip.reason
        assert found.instead == Suspended(why, "no room", TAG, PLACE)
    assert isinstance(Failing(FailurePolicy()).judge(about(cause)), Suspended)


@pytest.mark.parametrize("cause", [Cause.FAILED, Cause.DIED, Cause.HUNG])
def test_a_message_fails_as_often_as_was_declared(cause):
    """A raising handler, a death and a hang with it alone in flight count alike (P7)."""
    failing = Failing(FailurePolicy(3, Then.DEAD_LETTER))
    trouble = about(cause, alone=True)
    assert [failing.judge(trouble) for _ in range(2)] == 2 * [Again(pause=True)]
    # Another player goes on counting.
    failing = Failing(failing.rules, failing.attempts)
    assert isinstance(failing.judge(trouble), Skipped)
    stops = Failing(FailurePolicy(3), {TAG: (PLACE, 2)})
    said = stops.judge(trouble)
    died = cause is Cause.DIED
    assert said[:1] + said[2:] == (Why.FAILED, TAG, PLACE)
    assert said.details.startswith("the target's process ended" if died else "no room")
    assert Failing(FailurePolicy(None)).judge(trouble) == Again(pause=True)


def test_attempts_are_of_one_message():
    """What was taken, another message, and an operator's word begin anew (P7)."""
    failing = Failing(FailurePolicy(2))
    failing.judge(about(Cause.FAILED))
    failing.done(TAG, position(6, TAG))
    assert failing.attempts == {TAG: (PLACE, 1)}
    failing.done(TAG, PLACE)
    assert failing.attempts == {}
    failing.judge(about(Cause.FAILED))
    assert failing.judge(about(Cause.FAILED)._replace(place=position(8, TAG))) == Again(pause=True)
    failing.forget()
    assert failing.judge(about(Cause.FAILED)._replace(place=position(8, TAG))) == Again(pause=True)


def test_pauses_double_up_to_a_bound_and_begin_anew():
    """Each is drawn from its upper half (P4)."""
    backoff = Backoff(1.0, 5.0)
    assert [backoff.pause_s(1.0) for _ in range(4)] == [1.0, 2.0, 4.0, 5.0]
    assert backoff.pause_s(0.0) == 2.5
    backoff.reset()
    assert backoff.pause_s(0.0) == 0.5


@pytest.fixture
def engine():
    """A log with ten messages in one substream."""
    made = MemoryEngine()
    granted = producer(made)
    for seq in range(1, 11):
        carry_out(made, append(granted, seq, [message(f"{seq}")]))
    yield made
    made.close()


def places(engine):
    reader = Reader(TAG, INCARNATION)
    return [each.position for each in carry_out(engine, reader.read(100)).messages]


def held(place=None, lsn=1):
    return {TAG: Hold("h", TAG, lsn if place is None else place.lsn, place, 0, 0)}


def judged(engine, at, hold):
    return carry_out(engine, held_against([KnownIndex(TAG, at)], hold, INCARNATION))


def test_a_target_goes_on_where_its_index_is(engine):
    """A new one where its hold was made (P5)."""
    third = places(engine)[2]
    assert judged(engine, third, held()) == Begins({TAG: third}, {TAG: third})
    assert judged(engine, None, held(lsn=5)) == Begins({TAG: None}, {TAG: 5})


def test_an_index_that_is_not_in_the_log_suspends(engine):
    """Restored, wiped, of another incarnation, trimmed: never skipped, never guessed (P6)."""
    third = places(engine)[2]
    assert judged(engine, None, held(third)).why is Why.WIPED
    assert judged(engine, third._replace(incarnation="beef"), held()).why is Why.FORKED
    assert judged(engine, third._replace(checksum=1), held()).why is Why.NOT_IN_LOG
    assert judged(engine, third._replace(lsn=99), held()).why is Why.NOT_IN_LOG
    engine.commit(Commit((), (Put(TRIMMED, Trimmed(6, 5, 0).value()),)))
    assert judged(engine, third, held()).why is Why.TRIMMED
    engine.remove(5)
    assert judged(engine, third, held()).why is Why.TRIMMED


def test_the_main_stream_begins_at_the_lowest_index_that_is_near(engine):
    """Others are recovered; at the beginning of an append, and never before what is kept (P5)."""
    assert carry_out(engine, main_begins([], 5)) == 11
    assert carry_out(engine, main_begins([9, 7, 2], 5)) == 8
    assert carry_out(engine, main_begins([2, 1], 5)) == 11
    assert carry_out(engine, main_begins([40], 5)) == 11
    granted = producer(engine)
    carry_out(engine, append(granted, 1, [message(each) for each in "abc"]))
    assert carry_out(engine, main_begins([12], 5)) == 11
