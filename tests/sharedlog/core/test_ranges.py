"""Ranges of a log, which several readers share (DESIGN-LOG §16)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharedlog._core.entry import ProducerDecision
from sharedlog._core.errors import LogForked, LogUnavailable, TrimmedLog
from sharedlog._core.position import Position
from sharedlog._core.producers import append
from sharedlog._core.ranges import Range, RangeReader, last_offset, split
from sharedlog._core.reading import Reader
from sharedlog._core.spans import decide, pend
from sharedlog._core.steps import Ends
from sharedlog._core.streams import tag_of
from sharedlog._core.trim import Committers, trim
from sharedlog._engines.driving import carry_out, do
from sharedlog._engines.memory import MemoryEngine
from tests.sharedlog.logs import (
    INCARNATION,
    Ended,
    carry_out_at,
    message,
    next_step,
    pending,
    producer,
)

SUBSTREAMS = 3
TAGS = [tag_of("s", each) for each in range(SUBSTREAMS)]
_appends = st.lists(
    st.tuples(
        st.sampled_from(["commit", "pend", "decide", "rollback"]),
        st.lists(st.integers(0, SUBSTREAMS - 1), min_size=1, max_size=4),
    ),
    max_size=25,
)


def _ends():
    found = yield Ends()
    return found.last


def _written(appends):
    """A log, and the LSNs at which its appends end."""
    engine = MemoryEngine()
    writer, other = producer(engine), producer(engine)
    seq = other_seq = 0
    begins = {}
    bounds = [carry_out(engine, _ends())]
    for number, (kind, substreams) in enumerate(appends):
        texts = [(f"{number}-{at}", substream) for at, substream in enumerate(substreams)]
        if kind == "commit":
            seq += 1
            carry_out(engine, append(writer, seq, [message(*each) for each in texts]))
        elif kind == "pend":
            other_seq += 1
            found = carry_out(
                engine, pend(other, other_seq, [pending(*each) for each in texts], sorted(begins))
            )
            begins |= {tag: lsn for tag, lsn in found.begins.items() if tag not in begins}
        elif begins:
            other_seq += 1
            decision = ProducerDecision(other.id, other_seq - 1, begins)
            carry_out(engine, decide(other, other_seq, [decision], commits=kind == "decide"))
            begins = {}
        bounds.append(carry_out(engine, _ends()))
    return engine, bounds


def _messages(engine, tag):
    return carry_out(engine, Reader(tag, INCARNATION).read(10_000)).messages


def _read(engine, of, limit):
    reader = RangeReader(of, INCARNATION)
    found = []
    while batch := carry_out(engine, reader.read(limit)):
        found += batch
    return found


@settings(max_examples=60, deadline=None)
@given(_appends, st.data())
def test_ranges_have_each_message_once_however_they_are_cut(appends, data):
    """What was committed between two offsets is in one range of its substream, in order."""
    engine, bounds = _written(appends)
    after = data.draw(st.sampled_from(bounds))
    through = data.draw(st.sampled_from([each for each in bounds if each >= after]))
    ranges = carry_out(engine, split(TAGS, after, through, data.draw(st.integers(1, 30))))
    limit = data.draw(st.integers(1, 5))
    for tag in TAGS:
        mine = [each for each in ranges if each.tag == tag]
        found = [message for each in mine for message in _read(engine, each, limit)]
        wanted = [each for each in _messages(engine, tag) if after < each.position.lsn <= through]
        assert found == wanted


@settings(max_examples=60, deadline=None)
@given(_appends, st.integers(1, 10))
def test_offsets_go_on_until_everything_was_read_and_cut_no_commit(appends, most):
    """Each range is about as large as asked, ends where an append does, and the last at the end."""
    engine, bounds = _written(appends)
    at, seen = 0, 0
    while (end := carry_out(engine, last_offset("s", at, most))) > at:
        assert end in bounds
        found = [message for tag in TAGS for message in _read(engine, Range(tag, at, end), 100)]
        commits = {each.position.lsn for each in found}
        assert commits
        assert len(found) <= most or len(commits) == 1
        seen += len(found)
        at = end
    assert seen == sum(len(_messages(engine, tag)) for tag in TAGS)
    assert carry_out(engine, last_offset("s", at)) == at


def test_a_log_in_which_other_streams_go_on_has_no_news():
    """An offset stays where it is until the stream has a commit."""
    engine, bounds = _written([("commit", [0]), ("commit", [1])])
    other = producer(engine)
    carry_out(engine, append(other, 1, [message("x")._replace(tags=("t/0", "t/*"))]))
    assert carry_out(engine, last_offset("s", bounds[-1])) == bounds[-1]
    assert carry_out(engine, last_offset("s", bounds[-2])) == bounds[-1] + 1


def test_a_range_that_was_trimmed_is_never_read_in_part():
    """Its reader is told, in place of a gap (DESIGN-LOG §12, L6)."""
    engine, bounds = _written([("commit", [0])] * 6)
    late = 10**17
    carry_out_at(engine, append(producer(engine), 1, [message("young")]), late)
    carry_out_at(engine, trim(Committers(), late, 0), late)
    with pytest.raises(TrimmedLog):
        _read(engine, Range(TAGS[0], bounds[0], bounds[-1]), 10)


@pytest.mark.parametrize("at", range(4))
def test_a_read_of_a_range_that_broke_off_is_done_again(at):
    """Whichever of its steps was not answered, nothing of the range is left out (C4)."""
    engine, bounds = _written([("commit", [0]), ("pend", [0]), ("decide", []), ("commit", [0])])
    of = Range(TAGS[0], bounds[0], bounds[-1])
    whole = _read(engine, of, 10)
    reader = RangeReader(of, INCARNATION)
    rule, answer = reader.read(10), None
    for _ in range(at):
        step = next_step(rule, answer)
        assert not isinstance(step, Ended)
        answer = do(engine, step)
    assert not isinstance(next_step(rule, answer), Ended)
    with pytest.raises(LogUnavailable):
        rule.throw(LogUnavailable("for a moment"))
    assert carry_out(engine, reader.read(10)) == whole
    assert len(whole) == 3


def test_a_range_behind_a_message_of_another_log_is_refused():
    """The position that begins it is looked for in the log (DESIGN-LOG §12)."""
    engine, bounds = _written([("commit", [0, 0])] * 2)
    begun = Position(bounds[1], 0, 7, INCARNATION, 0)
    with pytest.raises(LogForked):
        _read(engine, Range(TAGS[0], bounds[0], bounds[-1], begun), 10)


def test_a_range_may_be_bounded_by_bytes():
    """Of the stream's own messages; one commit is never cut (§16)."""
    engine = MemoryEngine()
    mine = producer(engine)
    for seq in range(1, 7):
        carry_out(engine, append(mine, seq, [message("x" * 1000, seq % SUBSTREAMS)]))
    found, ends = 0, []
    while (end := carry_out(engine, last_offset("s", found, most_bytes=2200))) > found:
        ends.append(end)
        found = end
    assert ends == [2, 4, 6]
    # A commit that is larger alone, of two appends.
    begins = carry_out(engine, pend(mine, 7, [pending("y" * 3000)], [])).begins
    carry_out(engine, append(producer(engine), 1, [message("between")]))
    carry_out(engine, decide(mine, 8, [ProducerDecision(mine.id, 7, begins)], commits=True))
    assert carry_out(engine, last_offset("s", 6, most_bytes=100)) == 8
    assert carry_out(engine, last_offset("s", 8, most_bytes=100)) == 9
