"""A follower's hold keeps what it has not done, and says so (DESIGN-LOG §12, L6)."""

import pytest

from sharedlog._core.commit import Commit, Put, Refused
from sharedlog._core.errors import (
    CorruptLog,
    HoldMoved,
    InvalidRequest,
    LogForked,
    NewerFormat,
    TrimmedLog,
)
from sharedlog._core.holds import BEGINNING, END, all_holds, drop, forget, hold_key, move, take
from sharedlog._core.player.holding import move_holds
from sharedlog._core.position import Position
from sharedlog._core.producers import append
from sharedlog._core.trim import Committers, trim
from sharedlog._engines.driving import carry_out, do
from tests.sharedlog.logs import (
    INCARNATION,
    carry_out_at,
    carry_out_from,
    message,
    producer,
    read,
    to_commit,
)

# Later than every clock.
LATE = 10**17


@pytest.fixture
def engine(each_engine):
    """A log of ten messages, each an append, at the times 1 to 10."""
    mine = producer(each_engine)
    for seq in range(1, 11):
        carry_out_at(each_engine, append(mine, seq, [message(str(seq))]), seq)
    return each_engine


def taken(engine, start, name="me", now_us=100, retention_us=50):
    return carry_out(engine, take(name, {"s/0": start}, INCARNATION, now_us, retention_us))


def trimmed(engine):
    """Everything that nothing holds."""
    return carry_out_at(engine, trim(Committers(), LATE, 0), LATE).trimmed


def test_a_hold_is_found_again_where_it_was_left(engine):
    """What it is asked to begin at counts for a new one alone."""
    positions = [position for position, _ in read(engine)]
    held = taken(engine, positions[2])
    assert (held["s/0"].lsn, held["s/0"].position) == (3, positions[2])
    held = carry_out(engine, move(held, {"s/0": positions[5]}, 110))
    assert held == taken(engine, BEGINNING, now_us=120)
    assert (held["s/0"].start(), held["s/0"].renewed_us) == (positions[5], 110)
    assert carry_out(engine, all_holds()) == list(held.values())
    assert carry_out(engine, all_holds("you")) == []


@pytest.mark.parametrize(("start", "lsn"), [(BEGINNING, 1), (END, 11), (4, 4)])
def test_a_hold_begins_where_it_is_told(engine, start, lsn):
    """At the beginning, at the end, at an LSN; no message is done yet."""
    hold = taken(engine, start)["s/0"]
    assert (hold.lsn, hold.position, hold.start()) == (lsn, None, lsn)
    trimmed(engine)
    assert [text for _, text in read(engine, after=hold.start())] == [
        str(each) for each in range(lsn, 11)
    ]


def test_a_hold_moves_forward_only(engine):
    """Of two followers of one name the one that is behind learns of the other."""
    positions = [position for position, _ in read(engine)]
    mine = theirs = taken(engine, BEGINNING)
    mine = carry_out(engine, move(mine, {"s/0": positions[5]}, 101))
    for places in (positions[4], positions[0]):
        with pytest.raises(HoldMoved):
            carry_out(engine, move(theirs, {"s/0": places}, 102))
        with pytest.raises(HoldMoved):
            carry_out(engine, move(mine, {"s/0": places}, 102))
    theirs = carry_out(engine, move(theirs, {"s/0": positions[7]}, 103))
    # A renewal finds it further on, and leaves it there.
    mine = carry_out(engine, move(mine, {"s/0": None}, 90))
    assert mine["s/0"].position == positions[7]
    assert mine["s/0"].renewed_us == 103


def test_a_move_whose_reply_was_lost_is_made_once_more(engine):
    """It finds its own work, and ends as if it had been answered (L3's spirit for holds)."""
    positions = [position for position, _ in read(engine)]
    held = taken(engine, BEGINNING)
    do(engine, next(move(held, {"s/0": positions[3]}, 101)))
    again = carry_out(engine, move(held, {"s/0": positions[3]}, 102))
    assert again["s/0"].position == positions[3]


def test_a_hold_that_nobody_renews_is_overdue_and_keeps_all_the_same(engine):
    """It is reported; only an operator drops it (L6)."""
    held = taken(engine, 4, now_us=100, retention_us=50)
    assert not held["s/0"].overdue(150)
    assert held["s/0"].overdue(151)
    outcome = carry_out_at(engine, trim(Committers(), LATE, 0), LATE)
    assert outcome.overdue == list(held.values())
    assert outcome.trimmed.whole == 4
    assert "'me'" in outcome.kept_by
    held = carry_out(engine, move(held, {"s/0": None}, 200))
    assert not held["s/0"].overdue(250)


def test_who_held_what_an_operator_dropped_learns_what_it_lost(engine):
    """Not a gap: the move and the next start are ``TrimmedLog``, until the name is forgotten."""
    positions = [position for position, _ in read(engine)]
    held = carry_out(engine, move(taken(engine, BEGINNING), {"s/0": positions[1]}, 1))
    assert [each.position for each in carry_out(engine, drop("me"))] == [positions[1]]
    assert carry_out(engine, drop("me")) == []
    with pytest.raises(TrimmedLog) as caught:
        carry_out(engine, move(held, {"s/0": positions[2]}, 2))
    assert caught.value.lost is None
    assert trimmed(engine).whole == 10
    for rule in (
        move(held, {"s/0": positions[2]}, 2),
        take("me", {"s/0": BEGINNING}, INCARNATION, 2, 5),
    ):
        with pytest.raises(TrimmedLog) as caught:
            carry_out(engine, rule)
        assert (caught.value.first, caught.value.lost) == (10, (3, 9))
    assert len(carry_out(engine, forget("me"))) == 1
    with pytest.raises(TrimmedLog):
        carry_out(engine, move(held, {"s/0": positions[2]}, 2))
    assert taken(engine, BEGINNING)["s/0"].lsn == 10


@pytest.mark.parametrize("end", [drop, forget])
def test_each_step_on_a_hold_that_is_gone_is_an_error(engine, end):
    """Dropped or removed: moved, renewed, begun again, or passed by another player (L6)."""
    positions = [position for position, _ in read(engine)]
    starts = {"s/0": 1, "s/1": 1}
    held = carry_out(engine, take("me", starts, INCARNATION, 100, 50))
    carry_out(engine, end("me", ["s/1"]))
    further = carry_out(engine, move(held, {"s/0": positions[5]}, 110))
    for step in (
        move(held, {"s/1": None}, 110),
        move_holds("me", held, {}, 1000),
        # Another player was further on with the other one.
        move_holds("me", held, {"s/0": positions[2]}, 100),
        take("me", starts, INCARNATION, 110, 50, held=True),
    ):
        with pytest.raises(TrimmedLog, match="on s/1 was dropped"):
            carry_out(engine, step)
    assert carry_out(engine, move_holds("me", further, {}, 111)) == further


def test_a_new_hold_below_what_is_whole_is_refused(engine):
    """By position and by LSN; the beginning is what is whole (L6)."""
    positions = [position for position, _ in read(engine)]
    taken(engine, 6, name="other")
    trimmed(engine)
    for start in (positions[4], 5, 1):
        with pytest.raises(TrimmedLog) as caught:
            taken(engine, start)
        assert caught.value.first == 6
    assert carry_out(engine, all_holds("me")) == []
    assert taken(engine, BEGINNING)["s/0"].lsn == 6


def test_a_hold_that_meets_a_trim_keeps_or_is_refused(engine):
    """Whichever comes first; the other one sees it (L6: the commits' conditions)."""
    # The trim has looked, and then the hold is made.
    rule = trim(Committers(), LATE, 0)
    declaring = to_commit(engine, rule)
    taken(engine, 2)
    with pytest.raises(Refused) as caught:
        do(engine, declaring)
    ended = carry_out_from(engine, rule, caught.value)
    assert ended.trimmed.whole == 2
    # The hold has looked, and then there is a trim.
    rule = take("late", {"s/0": 3}, INCARNATION, 1, 1)
    making = to_commit(engine, rule)
    carry_out(engine, drop("me"))
    trimmed(engine)
    with pytest.raises(Refused) as caught:
        do(engine, making)
    with pytest.raises(TrimmedLog):
        carry_out_from(engine, rule, caught.value)


def test_of_holds_that_are_made_at_once_a_trim_misses_none(engine):
    """One that would be counted as another one is refused, and made again (L6)."""
    rule = take("late", {"s/0": 2}, INCARNATION, 1, 1)
    making = to_commit(engine, rule)
    taken(engine, 6)
    # It has seen the other one, and that one more was made.
    trimming = trim(Committers(), LATE, 0)
    declaring = to_commit(engine, trimming)
    with pytest.raises(Refused) as caught:
        do(engine, making)
    assert carry_out_from(engine, rule, caught.value)["s/0"].lsn == 2
    with pytest.raises(Refused) as caught:
        do(engine, declaring)
    assert carry_out_from(engine, trimming, caught.value).trimmed.whole == 2


def test_a_hold_begins_at_a_position_of_this_log_only(engine):
    """Else it would keep from nowhere on (§12)."""
    ((position, _), *_) = read(engine)
    wrong = (
        Position(position.lsn, 0, position.checksum, "beef", 0),
        Position(position.lsn, 0, position.checksum ^ 1, INCARNATION, 0),
        Position(99, 0, position.checksum, INCARNATION, 0),
    )
    for each in wrong:
        with pytest.raises(LogForked):
            taken(engine, each)
    for name in ("", "a/b"):
        with pytest.raises(InvalidRequest):
            taken(engine, END, name=name)
    with pytest.raises(InvalidRequest):
        taken(engine, "middle")
    assert carry_out(engine, all_holds()) == []


def test_what_is_no_hold_is_not_taken_for_none(engine):
    """A trim would remove what it keeps; one of a newer release is told as that."""
    taken(engine, END)
    for value, error in ((b"\x01garbage", CorruptLog), (b"\x07garbage", NewerFormat)):
        engine.commit(Commit(puts=(Put(hold_key("me", "s/0"), value),)))
        with pytest.raises(error):
            trimmed(engine)
