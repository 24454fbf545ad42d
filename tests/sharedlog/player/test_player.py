"""A player delivers a log to its targets, in order, each message once (DESIGN-LOG §15)."""

import asyncio
import threading
from contextlib import closing
from datetime import timedelta

import pytest

import sharedlog
from sharedlog._core.player.rows import wish
from sharedlog._player.course import Course
from sharedlog._player.link import Link
from sharedlog.v1.target_pb2 import DeliveryAnswer
from tests.helpers.forgetting import ForgettingProxy
from tests.helpers.waiting import until
from tests.sharedlog.player.conftest import declared
from tests.sharedlog.player.fake_target import Store, answer


class _Dies(Exception):
    pass


CALL = "/shop.v1.Inventory/Reserve"


def publish(log, count, start=0):
    """Publish numbered messages to both substreams."""
    for number in range(start, start + count):
        log.publish_call("orders", CALL, f"{number}".encode(), key=f"{number % 7}")


def in_order(log, store):
    """Whether what was done is what the log has, in its order, once."""
    for number in range(2):
        found = [each.text for each in log.read("orders", number)]
        assert store.bodies(f"orders/{number}") == found
    return True


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "batches"])
def test_what_is_there_and_what_comes_is_delivered(house, log, streams):
    """To a target on a stream, and to one that takes batches (P1, P8)."""
    publish(log, 30)
    fake = house.target(streams=streams)
    house.player(declared(fake))
    fake.store.wait_for(lambda: len(fake.store.done) == 30)
    publish(log, 30, 30)
    fake.store.wait_for(lambda: len(fake.store.done) == 60)
    assert in_order(log, fake.store)
    assert {each.method for each in fake.store.done} == {CALL}
    assert [each.player for each in fake.connects] == ["player"]


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "batches"])
def test_a_connection_that_answers_nothing_is_left(house, log, streams):
    """What a middle box takes and does not pass on is delivered by another one (P4)."""
    fake = house.target(streams=streams)
    with closing(ForgettingProxy(int(fake.address.rpartition(":")[2]))) as proxy:
        given = declared(fake, address=proxy.target, patience=timedelta(milliseconds=400))
        house.player(given)
        publish(log, 10)
        fake.store.wait_for(lambda: len(fake.store.done) == 10)
        proxy.swallow()
        publish(log, 10, 10)
        fake.store.wait_for(lambda: len(fake.store.done) == 20)
        assert in_order(log, fake.store)


def publish_at_once(log, count):
    """Publish numbered messages to both substreams, in one transaction."""
    with log.producer().transaction() as transaction:
        for number in range(count):
            transaction.publish_call("orders", CALL, f"{number}".encode(), key=f"{number % 7}")


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "batches"])
def test_messages_gather_until_their_batch_is_full(house, log, streams):
    """They travel together, and wait no longer than for the last one of them (§15)."""
    fake = house.target(streams=streams)
    player = house.player(declared(fake, batch=50, linger=timedelta(days=1)))
    house.wait_for_state(player, "N")
    publish_at_once(log, 30)
    # With them an empty delivery now and then.
    house.told_that(player, lambda told: told.queued >= 30)
    assert fake.store.called == []
    publish_at_once(log, 30)
    fake.store.wait_for(lambda: sum(fake.batches) >= 50)
    assert next(each for each in fake.batches if each) >= 50


def test_messages_gather_until_their_time_is_over(house, log):
    """A batch that does not fill is sent (§15)."""
    fake = house.target()
    player = house.player(declared(fake, linger=timedelta(seconds=0.2)))
    house.wait_for_state(player, "N")
    publish(log, 3)
    fake.store.wait_for(lambda: len(fake.store.done) == 3)
    assert in_order(log, fake.store)


def test_a_target_may_have_all_the_time_there_is(house, log):
    """Its patience is longer than any deadline of gRPC's (P4)."""
    fake = house.target()
    house.player(declared(fake, patience=timedelta.max))
    publish(log, 3)
    fake.store.wait_for(lambda: len(fake.store.done) == 3)


def test_no_more_gather_than_may_wait(house, log):
    """What a batch could have beyond that would be cut, and fetched again (P4)."""
    fake = house.target()
    player = house.player(declared(fake, queue=6, batch=100, linger=timedelta(days=1)))
    house.wait_for_state(player, "N")
    publish_at_once(log, 5)
    fake.store.wait_for(lambda: len(fake.store.done) == 5)
    assert fake.store.called == fake.store.done


def test_a_target_that_was_away_gets_what_it_missed(house, log):
    """Killed and begun again at its place; the other one is not kept (P4)."""
    one, two = house.target(), house.target()
    house.player(declared(one, "one"), declared(two, "two"))
    publish(log, 10)
    one.store.wait_for(lambda: len(one.store.done) == 10)
    one.stop()
    publish(log, 40, 10)
    two.store.wait_for(lambda: len(two.store.done) == 50)
    one.start()
    one.store.wait_for(lambda: len(one.store.done) == 50)
    assert in_order(log, one.store)
    assert in_order(log, two.store)


def test_a_hung_target_delays_nobody_else(house, log):
    """It answers nothing; the others get all, and it does, too, once it answers (P4)."""
    hung, other = house.target(), house.target()
    house.player(
        declared(hung, "hung", patience=timedelta(seconds=1), queue=5), declared(other, "other")
    )
    publish(log, 3)
    hung.store.wait_for(lambda: len(hung.store.done) == 3)
    hung.hangs.set()
    publish(log, 100, 3)
    other.store.wait_for(lambda: len(other.store.done) == 103)
    assert len(hung.store.done) == 3
    hung.hangs.clear()
    hung.store.wait_for(lambda: len(hung.store.done) == 103)
    assert in_order(log, hung.store)


def test_a_small_queue_is_cut_and_recovered(house, log):
    """Its target loses nothing by that, and gets nothing twice (P3, P4)."""
    fake = house.target()
    house.player(declared(fake, queue=2, batch=1))
    for _ in range(10):
        with log.producer().transaction() as transaction:
            for number in range(12):
                transaction.publish_call("orders", CALL, f"{number}".encode(), key=f"{number}")
    fake.store.wait_for(lambda: len(fake.store.done) == 120)
    assert in_order(log, fake.store)


def test_another_player_takes_over_and_goes_on(house, log, tmp_path):
    """One leads; when it is gone another one begins at the targets' indexes (P5)."""
    fake = house.target()
    first = house.player(declared(fake))
    until(lambda: first.leads, "the first one leads")
    with sharedlog.open(f"sqlite:///{tmp_path / 'log.db'}") as other:
        second = house.player(declared(fake), log=other, takeover=timedelta(seconds=10))
        publish(log, 10)
        fake.store.wait_for(lambda: len(fake.store.done) == 10)
        assert not second.leads
        first.close()
        publish(log, 10, 10)
        fake.store.wait_for(lambda: len(fake.store.done) == 20)
        assert second.leads
        second.close()
    assert in_order(log, fake.store)


@pytest.mark.parametrize("error", [sharedlog.NewerFormat("of a newer release"), ValueError("ours")])
def test_a_player_whose_part_has_ended_leads_no_more(house, log, tmp_path, monkeypatch, error):
    """It ends, and says why; another one takes over at once (P5, L4)."""
    publish(log, 1)
    fake = house.target()
    with monkeypatch.context() as patched:

        async def fail(_):
            raise error

        patched.setattr("sharedlog._player.main_stream.MainStream._round", fail)
        sick = house.player(declared(fake), takeover=timedelta(seconds=1))
        house.wait_for(sick._ended.is_set)
    with pytest.raises(type(error), match=str(error)):
        sick.check()
    house.player(declared(fake), log=house.opened(f"sqlite:///{tmp_path / 'log.db'}"))
    fake.store.wait_for(lambda: fake.store.done)
    assert in_order(log, fake.store)


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "batches"])
def test_a_message_that_fails_holds_up_its_own_substream(house, log, streams):
    """The others go on, on the same connection; it is neither skipped nor overtaken (P1, P7)."""
    mended = threading.Event()

    def handler(called):
        if called.body == b"bad" and not mended.is_set():
            return answer(DeliveryAnswer.FAILED, "no room")
        return None

    fake = house.target(handler, streams=streams)
    bad = log.publish_call("orders", CALL, b"bad", key="0").substream
    # More of each than its queue holds: read before they are asked for, they would end it (P4).
    publish(log, 100)
    # On a busy machine it would lose its duty, and connect again.
    player = house.player(declared(fake, queue=16), takeover=timedelta(seconds=30))
    other = [each.text for each in log.read("orders", 1 - bad)]
    fake.store.wait_for(lambda: fake.store.bodies(f"orders/{1 - bad}") == other)
    tried = len(fake.store.called)
    fake.store.wait_for(lambda: len(fake.store.called) > tried)
    told = house.told_that(player, lambda told: told.attempts)
    assert list(told.attempts) == [f"orders/{bad}"]
    assert "no room" in told.error
    assert fake.store.bodies(f"orders/{bad}") == []
    mended.set()
    publish(log, 10, 100)
    fake.store.wait_for(lambda: len(fake.store.done) == 111, 60)
    assert in_order(log, fake.store)
    assert len(fake.connects) == 1
    house.told_that(player, lambda told: not told.attempts and told.lag == 0)


def test_another_player_goes_on_beside_a_message_that_fails(house, log):
    """It begins with that substream by itself: the others do not wait for what it missed (P7)."""
    fake = house.target(
        lambda called: answer(DeliveryAnswer.FAILED) if called.body == b"bad" else None
    )
    first = house.player(declared(fake))
    bad = log.publish_call("orders", CALL, b"bad", key="0").substream
    house.told_that(first, lambda told: told.attempts)
    first.close()
    publish(log, 100)
    house.player(declared(fake, queue=16))
    other = [each.text for each in log.read("orders", 1 - bad)]
    fake.store.wait_for(lambda: fake.store.bodies(f"orders/{1 - bad}") == other)
    assert fake.store.bodies(f"orders/{bad}") == []


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "batches"])
def test_a_store_that_is_swapped_beneath_a_connection_stops_its_target(house, log, streams):
    """It is noticed by the next delivery, and nothing is taken in the other one (P6)."""
    fake = house.target(streams=streams)
    player = house.player(declared(fake))
    publish(log, 5)
    fake.store.wait_for(lambda: len(fake.store.done) == 5)
    # As if a process of another store answered at the address from now on; it knows its index.
    before, fake.store = fake.store, Store("another")
    fake.store.indexes.update(before.indexes)
    publish(log, 5, 5)
    told = house.wait_for_state(player, "stopped")
    assert told.stopped.why == "WIPED"
    assert (len(before.done), fake.store.done) == (5, [])
    fake.store = before
    log._place.run(wish("player", "shop", lambda it: it._replace(resumed=it.resumed + 1)))
    before.wait_for(lambda: len(before.done) == 10)
    assert in_order(log, before)


def test_a_failing_handler_is_called_again_in_order(house, log):
    """With the messages behind it waiting (P7)."""
    failures = iter(range(3))

    def handler(called):
        if called.body == b"5" and next(failures, None) is not None:
            return answer(DeliveryAnswer.FAILED, "no room")
        return None

    fake = house.target(handler)
    house.player(declared(fake))
    publish(log, 20)
    fake.store.wait_for(lambda: len(fake.store.done) == 20)
    assert in_order(log, fake.store)
    assert sum(each.body == b"5" for each in fake.store.called) == 4


def test_a_message_that_fails_for_good_is_a_dead_letter(house, log):
    """Skipped at its target first, then appended, then confirmed; the rest goes on (P7)."""

    def handler(called):
        return answer(DeliveryAnswer.FAILED, "never") if called.body == b"5" else None

    fake = house.target(handler)
    house.player(declared(fake, tries=3, failed="dead-letter"))
    publish(log, 20)
    fake.store.wait_for(lambda: len(fake.store.done) == 19)
    fake.store.wait_for(lambda: not any(each.skipped for each in fake.store.indexes.values()))
    (letter,) = [each for number in range(8) for each in log.read("deadletters", number)]
    assert (letter.headers["target"], b"never" in letter.headers["reason"]) == (b"shop", True)
    assert "5" not in fake.store.bodies()


def test_of_a_dead_letter_none_is_made(house, log):
    """A target that fails at one stops, whatever was declared: nothing grows without end (P7)."""

    def handler(called):
        return answer(DeliveryAnswer.FAILED, "never") if called.body == b"5" else None

    fake = house.target(handler)
    house.player(declared(fake, tries=1, failed="dead-letter"))
    publish(log, 6)
    fake.store.wait_for(lambda: len(fake.store.done) == 5)
    house.wait_for(lambda: any(each.name == "deadletters" for each in log.streams()))
    reader = house.target(lambda _: answer(DeliveryAnswer.FAILED, "never"))
    asked = declared(reader, "reader", streams={"deadletters": CALL}, tries=1, failed="dead-letter")
    second = house.player(asked, name="second", dead_letters="lost")
    found = house.wait_for_state(second, "stopped", "reader")
    assert (found.stopped.why, found.details) == ("FAILED", "never")
    assert not any(each.name == "lost" for each in log.streams())


def test_a_refused_message_stops_its_target(house, log):
    """Visible, with a typed reason, and nothing behind it is delivered (P7)."""

    def handler(called):
        return answer(DeliveryAnswer.REFUSED, "no such method") if called.body == b"0" else None

    fake = house.target(handler)
    player = house.player(declared(fake))
    publish(log, 1)
    house.wait_for_state(player, "stopped")
    found = player.targets()["shop"]
    assert (found.stopped.why, found.details) == ("REFUSED", "no such method")


def test_a_wiped_target_is_suspended(house, log):
    """It has no index where a hold of it moved: nothing is guessed (P6)."""
    fake = house.target()
    player = house.player(declared(fake))
    publish(log, 10)
    fake.store.wait_for(lambda: len(fake.store.done) == 10)
    house.wait_for(lambda: any(each.position for each in log.holds()))
    player.close()
    empty = house.target(store=Store())
    again = house.player(declared(empty))
    house.wait_for_state(again, "stopped")
    assert again.targets()["shop"].stopped.why == "WIPED"
    assert empty.store.done == []


def test_stores_that_were_swapped_suspend(house, log):
    """What another target has taken is not fed on: nothing is lost, and nothing twice (P6)."""
    one, two = house.target(store=Store("one")), house.target(store=Store("two"))
    player = house.player(declared(one, "one"), declared(two, "two"))
    publish(log, 10)
    for fake in (one, two):
        fake.store.wait_for(lambda store=fake.store: len(store.done) == 10)
    player.close()
    one.store, two.store = two.store, one.store
    publish(log, 5, 10)
    player = house.player(declared(one, "one"), declared(two, "two"))
    for name in ("one", "two"):
        found = house.wait_for_state(player, "stopped", name)
        assert (found.stopped.why, "another store stands there" in found.details) == ("WIPED", True)
    assert len(one.store.done) == len(two.store.done) == 10


def test_a_write_to_a_call_that_has_just_ended_ends_the_connection(house, log, monkeypatch):
    """gRPC raises what is no error of a call then; the target is connected to again (P3)."""
    made = []
    real = Link.stream

    class Ended:
        async def write(self, _):
            raise asyncio.InvalidStateError("RPC already finished.")

        def cancel(self):
            pass

        async def __aiter__(self):
            await asyncio.Event().wait()
            yield

    def stream(link):
        made.append(link)
        return Ended() if len(made) == 1 else real(link)

    monkeypatch.setattr(Link, "stream", stream)
    fake = house.target()
    house.player(declared(fake))
    publish(log, 5)
    fake.store.wait_for(lambda: len(fake.store.done) == 5)
    assert len(made) == 2


def test_a_dropped_hold_stops_its_target_alone(house, log):
    """It is told that something may be gone; the other target's hold moves on (P6)."""
    one, two = house.target(), house.target()
    player = house.player(declared(one, "one"), declared(two, "two"))
    publish(log, 5)
    for fake in (one, two):
        fake.store.wait_for(lambda store=fake.store: len(store.done) == 5)
    house.wait_for(lambda: all(each.position for each in log.holds("@player:player:one:0")))
    log.drop_hold("@player:player:one:0")
    publish(log, 5, 5)
    assert house.wait_for_state(player, "stopped", "one").stopped.why == "TRIMMED"
    last = max(each.position.lsn for number in range(2) for each in log.read("orders", number))
    house.wait_for(lambda: last in {each.lsn for each in log.holds("@player:player:two:0")})
    assert len(two.store.done) == 10


def test_a_wrong_token_is_told_and_read_again(house, log, tmp_path):
    """Why nothing is taken is said; the right one is found in its file without a restart (P4)."""
    token = tmp_path / "token"
    token.write_text("wrong")
    fake = house.target()
    fake.allowed = "Bearer right"
    player = house.player(declared(fake, token_file=str(token)))
    publish(log, 5)
    house.told_that(player, lambda told: "let this player in" in told.error)
    assert fake.store.done == []
    token.write_text("right")
    fake.store.wait_for(lambda: len(fake.store.done) == 5)


def test_a_target_that_is_none_is_told(house, log):
    """A server without the service: that is no broken connection (P4)."""
    fake = house.target()
    fake.allowed = ""
    player = house.player(declared(fake))
    assert "no target" in house.told_that(player, lambda told: told.error).error


def test_what_a_target_dies_of_is_given_up_soon(house, log, monkeypatch):
    """Connections that its restart refuses do not lengthen the message's own pauses (P7)."""
    deaths = []
    pauses = []

    def handler(called):
        if called.body != b"5":
            return
        deaths.append(called)
        fake.process += "'"
        raise _Dies

    real = Course._wait

    async def wait(course, timeout_s):
        if timeout_s is not None:
            pauses.append((course._reached, timeout_s))
            if course._reached:
                fake.refuses = 8
        return await real(course, None if timeout_s is None else min(timeout_s, 0.01))

    monkeypatch.setattr(Course, "_wait", wait)
    fake = house.target(handler)
    house.player(declared(fake, tries=2, failed="dead-letter"))
    # One of those behind it is of its substream: that is taken once it was given up.
    publish(log, 20)
    fake.store.wait_for(lambda: len(fake.store.done) == 19)
    # Four until it is alone, of 20 in flight, and two of its own.
    assert 2 <= len(deaths) <= 6
    assert max(pause for reached, pause in pauses if reached) < 1
    fake.store.wait_for(lambda: not any(each.skipped for each in fake.store.indexes.values()))
    (letter,) = [each for number in range(8) for each in log.read("deadletters", number)]
    assert letter.headers["reason"].startswith(b"FAILED: the target's process ended")


def test_idle_targets_are_moved_forward(house, log, monkeypatch):
    """What they need not is not kept from being trimmed (P5)."""
    monkeypatch.setattr("sharedlog._player.main_stream._PASS_S", 0.1)
    log.stream("others", 1)
    fake = house.target()
    house.player(declared(fake))
    last = [log.publish("others", b"x") for _ in range(5)][-1]
    house.wait_for(lambda: {each.lsn for each in log.holds()} == {last.lsn})
    assert fake.store.done == []
