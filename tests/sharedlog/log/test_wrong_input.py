"""Input that cannot be, refused by type before anything is done (DESIGN-LOG §12)."""

from datetime import timedelta

import pytest

import sharedlog
from tests.sharedlog.places import url_of
from tests.sharedlog.reads import messages, texts


@pytest.fixture(params=["memory", "sqlite"])
def url(request, tmp_path):
    """Of a log that is not there yet."""
    return url_of(request.param, tmp_path, request.getfixturevalue)


@pytest.fixture
def filled(log):
    """A message in each of two substreams."""
    log.stream("s", 2)
    for text in ("a", "b"):
        log.publish("s", text)
    return log


WRONG = [
    {"lsn": 1 << 63},
    {"lsn": 1 << 70},
    {"lsn": 0},
    {"lsn": -1},
    {"ordinal": -1},
    {"ordinal": 1 << 70},
    {"checksum": -1},
    {"substream": 2},
    {"substream": -2},
    {"lsn": "1"},
    {"ordinal": None},
]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_position_that_cannot_be_is_refused(filled, wrong):
    """Not by an error of the store's; of another log it is told first that it is (C3)."""
    position = messages(filled, "s")[0].position._replace(**wrong)
    for use in (
        lambda: filled.follow("s", after=position),
        lambda: filled.follow("s", after=position, committed=False),
        lambda: filled.follow("s", (0,), after={0: position}),
        lambda: filled.read("s", 0, position),
    ):
        with pytest.raises((sharedlog.InvalidRequest, sharedlog.LogForked)):
            use()
    foreign = messages(filled, "s")[0].position._replace(incarnation="x", substream=400)
    with pytest.raises(sharedlog.LogForked):
        filled.follow("s", after=foreign)


@pytest.mark.parametrize(
    "after", [3, 3.5, b"end", [], ("end",), "middle", {0: 3}, {0: "middle"}, {"0": "end"}, object()]
)
def test_what_is_no_place_to_begin_at_is_refused(filled, after):
    """Following and reading (C4)."""
    with pytest.raises(sharedlog.InvalidRequest):
        filled.follow("s", after=after)
    with pytest.raises(sharedlog.InvalidRequest):
        filled.read("s", 0, after)


@pytest.mark.parametrize("name", [None, "me"])
def test_each_substream_may_begin_at_its_beginning_or_end(filled, name):
    """Or behind a position as text (C4)."""
    places = {each.substream: each.position for each in messages(filled, "s")}
    following = filled.follow("s", after={0: "end", 1: "beginning"}, name=name)
    assert [each.substream for each in following.poll()] == [1]
    if name is None:
        assert filled.follow("s", after={0: str(places[0]), 1: "end"}).poll() == []
        assert len(filled.follow("s", after={0: None}).poll()) == 2
        assert [each.substream for each in filled.follow("s", after={1: "end"}).poll()] == [0]
    for text in ("c", "d"):
        filled.publish("s", text)
    assert sorted(each.text for each in following.poll(5)) == ["c", "d"]


@pytest.mark.parametrize("substreams", [3, ("0",), (0, None), (0.0,)])
def test_substreams_are_numbers(filled, substreams):
    """Some of them, in whatever is iterated."""
    with pytest.raises(sharedlog.InvalidRequest):
        filled.follow("s", substreams)


@pytest.mark.parametrize("name", ["", None, "a/b", 3])
def test_no_hold_is_ended_without_its_name(filled, name):
    """Nobody's, where the name is missing (L6)."""
    with filled.follow("s", name="me") as following:
        following.poll()
        for end in (filled.drop_hold, filled.forget_hold):
            with pytest.raises(sharedlog.InvalidRequest):
                end(name)
    assert [(each.name, each.dropped) for each in filled.holds()] == [("me", False)] * 2


@pytest.mark.parametrize("text", [None, 3, b"1.0/0-00000001@f00d"])
def test_only_a_text_is_parsed_as_a_position(text):
    """Others are refused by type."""
    with pytest.raises(sharedlog.InvalidRequest):
        sharedlog.Position.parse(text)


def test_a_key_that_is_no_text_is_refused(filled):
    """Nothing of it is in the log."""
    with pytest.raises(sharedlog.InvalidRequest):
        filled.publish("s", b"c", key="\udcff")
    assert sorted(texts(filled, "s")) == ["a", "b"]


@pytest.mark.parametrize(
    "turn",
    [
        {"seq": -1},
        {"seq": 1 << 70},
        {"seq": 0},
        {"seq": "1"},
        {"seq": 1, "follows": -1},
        {"seq": 1, "follows": "0"},
    ],
)
def test_a_seq_that_cannot_be_is_refused_as_the_transaction_begins(filled, turn):
    """And the producer goes on (L3)."""
    producer = filled.producer("relay")
    with pytest.raises(sharedlog.InvalidRequest):
        producer.transaction(**turn)
    assert producer.publish("s", "c", seq=1, follows=0)
    assert sorted(texts(filled, "s")) == ["a", "b", "c"]


def test_times_that_cannot_be_are_refused_before_anything_is_made(url):
    """A log's patience, a sweeper's, and a schedule."""
    negative = timedelta(seconds=-1)
    with pytest.raises(sharedlog.InvalidRequest):
        sharedlog.create(url, timeout=negative)
    with sharedlog.create(url) as log:
        with pytest.raises(sharedlog.InvalidRequest):
            sharedlog.open(url, timeout=negative)
        for wrong in (negative, timedelta(0)):
            with pytest.raises(sharedlog.InvalidRequest):
                log.sweeper(wrong)
            with pytest.raises(sharedlog.InvalidRequest):
                log.trim_every(wrong)


def test_a_followers_name_is_refused_as_one(filled):
    """Not as a stream's."""
    for name in ("", "a b"):
        with pytest.raises(sharedlog.InvalidRequest, match="cannot name a follower"):
            filled.follow("s", name=name)


def test_a_message_is_a_mebibyte_with_all_that_is_said_of_it(filled):
    """The page says so: its value, key and headers, and what we add (DESIGN-LOG §12)."""
    most = (1 << 20) - 512
    filled.publish("s", b"x" * most)
    filled.publish("s", b"x" * (most - 1034), key=b"k" * 1024, headers={"h": b"v" * 9})
    for size in (1 << 20, 1 << 21):
        with pytest.raises(sharedlog.InvalidRequest) as caught:
            filled.publish("s", b"x" * size)
        assert caught.value.appended is False
