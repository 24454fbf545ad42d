"""``sharedlog deadletters`` for what a consumer gave up (DESIGN-LOG §14, T5)."""

import json
from contextlib import closing

import pytest

import sharedlog
from sharedlog._cli import ExitCode, main
from sharedlog.testing import drain
from tests.sharedlog.consumer.world import World


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'log.db'}"


@pytest.fixture
def letters(url, capsys):
    """Run the command on the stream ``dead``; what it prints, a list of JSON's."""

    def run(*arguments, code=ExitCode.DONE):
        assert main(["deadletters", url, "--stream", "dead", *arguments, "--json"]) == code
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


@pytest.fixture
def world(tmp_path, url):
    """A consumer that gives up a customer's orders at the second attempt."""
    made = World(tmp_path, orders=0, url=url, attempts=2, dead_letters="dead")
    made.log.stream("dead", 2)
    made.refused = {"c1"}
    yield made
    made.log.close()


def test_what_a_consumer_gave_up_is_listed_shown_and_published_again_once(world, letters):
    """With all that its publisher said of it; the handler that was mended has it then."""
    with closing(sharedlog.open(world.log._place.name)) as log:
        given = log.publish(
            "orders",
            b'{"customer": "c1", "what": "it"}',
            key="c1",
            headers={"who": "me", "target": "no target"},
            about=sharedlog.About(
                content_type="application/json", schema_name="Order", method="/a/B"
            ),
        )
    log = world.log
    drain(world.consumer())
    assert world.bills() == {}
    (letter,) = letters("list")
    assert (letter["consumer"], letter["attempts"]) == ("billing", 2)
    assert (letter["substream"], letter["position"]) == (f"orders/{given.substream}", str(given))
    assert "c1 is not billed" in letter["reason"]
    assert letters("list", "--of", "billing") == [letter]
    assert letters("list", "--of", "another") == []
    (shown,) = letters("show", letter["dead_letter"])
    message = shown["message"]
    assert message["headers"] == {"who": "me", "target": "no target"}
    assert (message["stream"], message["key"]) == ("orders", "c1")
    world.refused = set()
    retry = ("retry", letter["dead_letter"])
    assert letters(*retry, code=ExitCode.USAGE) == []
    first, second = letters(*retry, "--yes"), letters(*retry, "--yes")
    assert first == second
    drain(world.consumer())
    assert world.bills() == {"c1": [(1, "it")]}
    again = log.read("orders", given.substream, given)[-1]
    assert (again.value, again.key) == (b'{"customer": "c1", "what": "it"}', b"c1")
    assert again.headers == {"who": b"me", "target": b"no target"}
    assert (again.content_type, again.schema_name) == ("application/json", "Order")
    assert again.method == "/a/B"
    assert str(again.position) == first[0]["position"]


def test_a_letter_without_room_for_its_message_says_where_that_is(world, letters):
    """It is listed, and not published again; an empty value is a value."""
    world.log.publish("orders", b"x" * ((1 << 20) - 250), key="c1")
    world.log.publish("orders", b"", key="c1")
    drain(world.consumer())
    cut, empty = letters("list")
    (shown,) = letters("show", cut["dead_letter"])
    assert shown["message"] == {"position": cut["position"]}
    assert letters("retry", cut["dead_letter"], "--yes", code=ExitCode.GONE) == []
    world.log.stream("again", 1)
    letters("retry", empty["dead_letter"], "--to", "again", "--yes")
    assert [each.value for each in world.log.read("again", 0)] == [b""]


def test_other_messages_of_the_stream_are_no_dead_letters(world, letters):
    """Whatever headers they have."""
    for headers in ({}, {"target": "x"}, {"dead-letter-consumer": "billing"}):
        world.log.publish("dead", b"", headers=headers)
    assert letters("list") == []
