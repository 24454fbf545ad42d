"""Programs follow a stream: in order, from anywhere, behind a hold (DESIGN-LOG §12, §13)."""

import itertools
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

import sharedlog
from sharedlog._core import envelope as envelopes
from sharedlog._core.entry import ProducerDecision
from sharedlog._core.producers import NewMessage, append, grant
from sharedlog._core.spans import decide, pend
from tests.sharedlog.logs import TOKEN


@pytest.fixture
def filled(log):
    """A log with forty messages in four substreams."""
    log.stream("s", 4, timedelta(0))
    for number in range(40):
        log.publish("s", f"{number}", headers={"n": f"{number}"})
    return log


def numbers(messages):
    return [int(each.text) for each in messages]


def take(following, count):
    return numbers(itertools.islice(following, count))


def test_messages_are_followed_in_the_order_of_their_commits(filled):
    """With all that was said of them; some substreams are followed as well (C3)."""
    with filled.follow("s") as following:
        found = list(itertools.islice(following, 40))
    assert numbers(found) == list(range(40))
    assert [each.headers["n"] for each in found] == [each.value for each in found]
    assert {(each.stream, each.substream, each.state) for each in found} == {
        ("s", substream, sharedlog.State.COMMITTED) for substream in range(4)
    }
    with filled.follow("s", (1, 3)) as following:
        assert take(following, 20) == [each for each in range(40) if each % 2]
    for substream in range(4):
        positions = [each.position for each in found if each.substream == substream]
        assert positions == sorted(positions)


def test_each_position_is_a_whole_checkpoint(filled):
    """As a message, a position, its text, a pickle, or one of each substream (C4)."""
    found = filled.follow("s").poll()
    for at, message in list(enumerate(found))[::7]:
        position = message.position
        for after in (
            message,
            position,
            str(position),
            pickle.loads(pickle.dumps(position)),  # noqa: S301 - our own
        ):
            assert numbers(filled.follow("s", after=after).poll()) == list(range(at + 1, 40))
    each = {message.substream: message for message in found[:17]}
    assert numbers(filled.follow("s", after=each).poll()) == list(range(17, 40))


def test_the_position_that_publishing_returned_is_where_following_goes_on(filled):
    """It is the message's (C3)."""
    position = filled.publish("s", b"40")
    filled.publish("s", b"41")
    assert numbers(filled.follow("s", after=position).poll()) == [41]


def test_a_stream_is_followed_from_a_time_and_from_its_end(filled):
    """Of the append, by the log's time (DESIGN-LOG §18)."""
    found = filled.follow("s").poll()
    expected = [each for each in found if each.append_time > found[12].append_time]
    assert filled.follow("s", after=found[12].append_time).poll() == expected
    late = filled.follow("s", after="end")
    assert late.poll() == []
    filled.publish("s", b"40")
    assert numbers(late.poll(30)) == [40]
    assert filled.follow("s", after=datetime.now(UTC) + timedelta(days=1)).poll() == []
    with pytest.raises(sharedlog.InvalidRequest):
        filled.follow("s", after=datetime.now())


def test_what_makes_no_sense_is_refused(filled):
    """Before anything is read."""
    with pytest.raises(sharedlog.NoSuchStream):
        filled.follow("t")
    for substreams in ((), (4,), (-1, 0)):
        with pytest.raises(sharedlog.InvalidRequest):
            filled.follow("s", substreams)
    for after in ("middle", "1.0@x"):
        with pytest.raises(sharedlog.InvalidRequest):
            filled.follow("s", after=after)
    with pytest.raises(sharedlog.InvalidRequest):
        filled.follow("s", name="me", committed=False)
    for name in ("", "a/b"):
        with pytest.raises(sharedlog.InvalidRequest):
            filled.follow("s", name=name)
    with pytest.raises(sharedlog.InvalidRequest):
        filled.read("s", 0, limit=0)
    position = filled.follow("s").poll()[0].position
    with pytest.raises(sharedlog.LogForked):
        filled.follow("s", after=position._replace(checksum=1))
    with pytest.raises(sharedlog.InvalidRequest):
        filled.follow("s").done(position)


def test_a_follower_waits_and_is_woken_by_a_message_and_by_its_end(log):
    """By closing it, and by closing the log (L5)."""
    log.stream("s", 2)
    with ThreadPoolExecutor(2) as pool:
        following = log.follow("s")
        waiting = pool.submit(next, following)
        log.publish("s", b"1")
        assert waiting.result(30).text == "1"
        ended = pool.submit(list, following)
        following.close()
        following.close()
        assert ended.result(30) == []
        other = log.follow("s", after="end")
        waiting = pool.submit(next, other)
        log.close()
        with pytest.raises(sharedlog.LogUnavailable):
            waiting.result(30)


def test_a_named_follower_goes_on_behind_what_it_has_done(filled):
    """Closed or killed: what is done and told to the log does not come again (L6)."""
    with filled.follow("s", name="me") as following:
        found = list(itertools.islice(following, 25))
        following.done(found[9].position)
        following.done(found[17])
    with filled.follow("s", name="me", after="end") as following:
        assert take(following, 22) == list(range(18, 40))
    assert numbers(filled.follow("s", name="me").poll()) == list(range(18, 40))
    holds = filled.holds("me")
    assert {(each.name, each.tag) for each in holds} == {("me", f"s/{n}") for n in range(4)}


def test_a_named_follower_begins_at_a_position_that_its_user_keeps(filled):
    """Ahead of its hold or behind it; the hold keeps what is kept, and never moves back (L6)."""
    with filled.follow("s", name="me") as following:
        found = list(itertools.islice(following, 25))
        following.done(found[9])
    # The program's database knows more than the log.
    for after in (found[17], str(found[17].position)):
        assert numbers(filled.follow("s", name="me", after=after).poll()) == list(range(18, 40))
    said = {17 % 4: found[17]}
    expected = [each for each in range(10, 40) if each % 4 != 1 or each > 17]
    assert numbers(filled.follow("s", name="me", after=said).poll()) == expected
    # It was restored from a backup, and knows less: the hold stays until that is made up for.
    before = [each.position for each in filled.holds("me")]
    with filled.follow("s", name="me", after=found[3]) as following:
        again = list(itertools.islice(following, 20))
        following.done(again[2])
    assert numbers(again) == list(range(4, 24))
    assert [each.position for each in filled.holds("me")] == before
    with filled.follow("s", name="me", after=found[3]) as following:
        following.done(list(itertools.islice(following, 20))[-1])
    assert numbers(filled.follow("s", name="me").poll()) == list(range(24, 40))
    # What its hold no longer kept is trimmed: it is told so, and nothing is skipped.
    filled.trim()
    with pytest.raises(sharedlog.TrimmedLog):
        filled.follow("s", name="me", after=found[3]).poll()
    with pytest.raises(sharedlog.LogForked):
        filled.follow("s", name="me", after=found[3].position._replace(incarnation="0" * 16))


def test_a_hold_keeps_and_the_rest_is_trimmed(filled):
    """A follower without a hold is told what it lost, never given a gap (L6)."""
    slow = filled.follow("s", after=filled.follow("s").poll()[3])
    with filled.follow("s", name="me") as following:
        found = list(itertools.islice(following, 30))
        following.done(found[-1])
    outcome = filled.trim()
    assert outcome.trimmed.whole == 27
    assert numbers(filled.follow("s").poll()) == list(range(26, 40))
    assert numbers(filled.follow("s", name="me").poll()) == list(range(30, 40))
    for _ in range(2):
        with pytest.raises(sharedlog.TrimmedLog) as caught:
            next(slow)
        assert caught.value.first == 27
    with pytest.raises(sharedlog.TrimmedLog):
        filled.follow("s", after=found[5], name="new")
    with pytest.raises(sharedlog.TrimmedLog):
        filled.follow("s", after=datetime(2000, 1, 1, tzinfo=UTC))


def test_who_held_what_an_operator_dropped_is_told_until_the_name_is_forgotten(filled):
    """Where it reads, where it is done, and where it starts again (L6)."""
    following = filled.follow("s", name="me")
    found = list(itertools.islice(following, 8))
    following.done(found[-1])
    following.close()
    assert len(filled.drop_hold("me")) == 4
    filled.trim()
    with pytest.raises(sharedlog.TrimmedLog, match="dropped") as caught:
        filled.follow("s", name="me")
    assert caught.value.lost == (6, 39)
    assert len(filled.forget_hold("me")) == 4
    assert numbers(filled.follow("s", name="me").poll()) == [39]


def test_of_two_followers_of_one_name_the_one_behind_learns_of_the_other(filled):
    """Its hold moves forward only (L6)."""
    one, other = filled.follow("s", name="me"), filled.follow("s", name="me")
    found = list(itertools.islice(one, 20))
    one.done(found[-1])
    one.close()
    other.done(next(other))
    with pytest.raises(sharedlog.HoldMoved):
        other.close()


def test_transactions_are_followed_as_they_are_committed_and_shown_before_to_who_asks(log):
    """Pending and rolled-back messages are marked (C1, C3)."""
    log.stream("s", 1)
    envelope = envelopes.pack(b"pending", None, None, 0)
    mine = log._run(grant(TOKEN))
    begins = log._run(pend(mine, 1, [NewMessage(envelope, ("s/0",))], [])).begins
    log.publish("s", b"single")
    looking = log.follow("s", committed=False)
    assert [(each.text, each.state.value) for each in looking.poll()] == [
        ("pending", "pending"),
        ("single", "committed"),
    ]
    assert [each.text for each in log.follow("s").poll()] == ["single"]
    log._run(decide(mine, 2, [ProducerDecision(mine.id, 1, begins)], commits=True))
    assert [each.text for each in log.follow("s").poll()] == ["single", "pending"]


def test_a_substream_is_read_once(filled):
    """About as many as were asked for, and where to go on (C4)."""
    assert numbers(filled.read("s", 1)) == list(range(1, 40, 4))
    found, after = [], None
    while batch := filled.read("s", 1, after, limit=3):
        assert len(batch) == 3 or batch[-1].text == "37"
        found += batch
        after = batch[-1]
    assert numbers(found) == list(range(1, 40, 4))
    with pytest.raises(sharedlog.InvalidRequest):
        filled.read("s", 2, found[0])


def test_an_envelope_that_is_none_stops_the_follower_behind_what_is_before_it(filled):
    """It is never skipped (L1)."""
    mine = filled._run(grant(TOKEN))
    filled._run(append(mine, 1, [NewMessage(b"\xff\xff", ("s/0",))]))
    filled.publish("s", b"behind")
    following = filled.follow("s")
    assert take(following, 40) == list(range(40))
    for _ in range(2):
        with pytest.raises(sharedlog.CorruptLog):
            next(following)


def test_threads_say_what_is_done_while_one_iterates(filled):
    """``done`` and ``close`` are for any thread."""
    following = filled.follow("s", name="me")
    stop = threading.Event()

    def publish():
        for number in range(40, 200):
            filled.publish("s", f"{number}")
        stop.set()

    seen = []
    with ThreadPoolExecutor(4) as pool:
        publishing = pool.submit(publish)
        doing = []
        for message in following:
            seen.append(message)
            if len(seen) % 10 == 0:
                doing.append(pool.submit(following.done, message))
            if len(seen) == 200:
                break
        publishing.result(60)
        for each in doing:
            each.result(60)
        pool.submit(following.close).result(60)
    assert numbers(seen) == list(range(200))
    assert filled.follow("s", name="me").poll() == []
