"""Targets that are not as they should be: a visible state, never a skip, nothing twice (§15)."""

import asyncio
import dataclasses
import threading
from datetime import timedelta

import pytest

import sharedlog
from sharedlog._core.player.rows import Order, SkipOne, wish
from sharedlog._core.position import Position
from sharedlog._core.trim import Committers, trim
from sharedlog.v1 import sharedlog_pb2
from sharedlog.v1.target_pb2 import Delivery, DeliveryAnswer, Index
from tests.helpers.sealing import seal, unseal
from tests.sharedlog.player.conftest import declared
from tests.sharedlog.player.fake_target import FakeTarget, Store, answer
from tests.sharedlog.player.test_player import CALL, in_order, publish


def resume(log, target="shop"):
    """As an operator does."""
    log._place.run(wish("player", target, lambda it: it._replace(resumed=it.resumed + 1)))


def letters(log):
    """The dead letters that there are."""
    if not any(each.name == "deadletters" for each in log.streams()):
        return []
    return [each for number in range(8) for each in log.read("deadletters", number)]


def indexed(log, change):
    """A store whose indexes are where a change says, of what its log has first."""
    store = Store()
    for number in range(2):
        first = next(iter(log.read("orders", number)))
        index = Index(tag=f"orders/{number}", taken=1, incarnation=first.position.incarnation)
        index.at.lsn, index.at.ordinal, index.at.checksum = first.position[:3]
        index.at.substream = number
        change(index)
        store.indexes["log", 0, index.tag] = index
    return store


def incarnation(index):
    """Of another log."""
    index.incarnation = "beef"


def beyond(index):
    """Where this log has not come to: it was restored from a backup."""
    index.at.lsn += 1000


def checksum(index):
    """Another message stands there."""
    index.at.checksum += 1


@pytest.mark.parametrize(
    ("change", "why"),
    [(incarnation, "FORKED"), (beyond, "NOT_IN_LOG"), (checksum, "NOT_IN_LOG")],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_an_index_of_another_history_stops_its_target(house, log, change, why):
    """Whichever of the two was restored: nothing is sent until somebody has seen to it (P6)."""
    publish(log, 20)
    fake = house.target(store=indexed(log, change))
    player = house.player(declared(fake))
    found = house.wait_for_state(player, "stopped")
    assert (found.stopped.why, found.about_tag != "", fake.store.called) == (why, True, [])
    assert isinstance(found.stopped, sharedlog.TargetStopped)
    resume(log)
    house.wait_for(lambda: len(fake.connects) > 1)
    assert house.wait_for_state(player, "stopped").stopped.why == why
    assert fake.store.called == []


def test_a_target_that_finds_itself_forked_while_it_is_fed_stops(house, log):
    """Its own answer says so, and what it is about (P6)."""
    fake = house.target(lambda _: answer(DeliveryAnswer.FORKED, "another message there", 9))
    player = house.player(declared(fake))
    publish(log, 1)
    found = house.wait_for_state(player, "stopped")
    assert (found.stopped.why, found.details) == ("FORKED", "another message there")
    assert fake.store.done == []


def test_a_log_that_was_trimmed_too_far_stops_its_target(house, log):
    """What it has not taken is gone: it is told so, and nothing behind that is sent (P6)."""
    fake = house.target()
    with_hold = house.player(declared(fake))
    publish(log, 10)
    fake.store.wait_for(lambda: len(fake.store.done) == 10)
    with_hold.close()
    publish(log, 10, 10)
    # An operator let go of what it had not taken, and that was removed.
    log.forget_hold("@player:player:shop:0")
    assert log._run(trim(Committers(), 10**17, 0)).rows > 10
    publish(log, 5, 20)
    player = house.player(declared(fake))
    found = house.wait_for_state(player, "stopped")
    assert (found.stopped.why, len(fake.store.done)) == ("TRIMMED", 10)


def test_a_sealed_message_stops_its_target(house, log, tmp_path):
    """A player without the keys says so; with them it goes on at that message (§15)."""
    url = f"sqlite:///{tmp_path / 'log.db'}"

    fake = house.target()
    player = house.player(declared(fake))
    publish(log, 5)
    with sharedlog.open(url, seal=seal, unseal=unseal) as sealed:
        publish(sealed, 5, 5)
        found = house.wait_for_state(player, "stopped")
        assert (found.stopped.why, bool(found.about)) == ("SEALED", True)
        assert len(fake.store.done) <= 5
        player.close()
        second = house.player(declared(fake), log=sealed)
        fake.store.wait_for(lambda: len(fake.store.done) == 10)
        assert in_order(sealed, fake.store)
        second.close()


def test_a_target_that_numbers_its_skips_anew_stops(house, log):
    """It was restored: what it skips now stands for another dead letter already (P7)."""
    bad = {b"1"}

    def handler(called):
        return answer(DeliveryAnswer.REFUSED, "never") if called.body in bad else None

    fake = house.target(handler)
    player = house.player(declared(fake, refused="dead-letter"))
    log.publish_call("orders", CALL, b"1", key="0")
    house.wait_for(lambda: len(letters(log)) == 1)
    fake.store.wait_for(lambda: not any(each.skipped for each in fake.store.indexes.values()))
    player.close()
    # Another message becomes the skip of that number, as after a restore.
    tag = letters(log)[0].headers["tag"].decode()
    index = fake.store.indexes["log", 0, tag]
    skipped = index.skipped.add(number=1, reason="another", by="rule")
    skipped.place.CopyFrom(index.at)
    player = house.player(declared(fake, refused="dead-letter"))
    found = house.wait_for_state(player, "stopped")
    assert (found.stopped.why, len(letters(log))) == ("DEAD_LETTER", 1)


@pytest.mark.parametrize("unknown", ["stop", "again", "dead-letter"])
def test_what_nobody_knows_of_becomes_what_was_declared(house, log, unknown):
    """The target stops and says which; or it is called once more; or it is a dead letter (P7)."""

    def handler(called):
        if called.body == b"2" and not called.again:
            return answer(DeliveryAnswer.UNKNOWN, "its process died", 15)
        return None

    fake = house.target(handler)
    player = house.player(declared(fake, unknown=unknown))
    for number in range(5):
        log.publish_call("orders", CALL, f"{number}".encode(), key="0")
    if unknown == "stop":
        found = house.wait_for_state(player, "stopped")
        assert (found.stopped.why, fake.store.bodies()) == ("UNKNOWN", ["0", "1"])
        order = Order("somebody", "it has run", 0)
        skip = SkipOne(found.about_tag, Position.parse(found.about), order, found.number)
        log._place.run(wish("player", "shop", lambda it: it._replace(skips=(skip,))))
    if unknown == "again":
        fake.store.wait_for(lambda: len(fake.store.done) == 5)
        assert fake.store.bodies() == ["0", "1", "2", "3", "4"]
    else:
        fake.store.wait_for(lambda: len(fake.store.done) == 4)
        house.wait_for(lambda: len(letters(log)) == 1)
        assert fake.store.bodies() == ["0", "1", "3", "4"]


class Mute(FakeTarget):
    """Takes what it is sent, has its effects, and never says so while it is mute."""

    mute = True

    def _answers(self, first, request, dropped):
        found = super()._answers(first, request, dropped)
        if self.mute:
            del found.answers[:]
        return found


class Babbling(FakeTarget):
    """Answers what was not asked, in one of several ways."""

    says = None

    def _answers(self, first, request, dropped):
        if self.says is None:
            return super()._answers(first, request, dropped)
        found = type(super()._answers(first, type(request)(), dropped))(term=request.term)
        self.says(found, request)
        return found


def of_kind(cls, house, **given):
    """A target of another kind, which ends with the test."""
    made = cls(Store(), lambda _: None, **given)
    house._stack.callback(made.close)
    return made


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "batches"])
def test_a_target_that_never_acknowledges_is_down_and_gets_nothing_twice(house, log, streams):
    """It is asked anew where it is; and once it speaks again all goes on (P2, P4)."""
    fake = of_kind(Mute, house, streams=streams)
    player = house.player(declared(fake, patience=timedelta(milliseconds=400)))
    publish(log, 30)
    house.wait_for(lambda: len(fake.connects) >= 2)
    said = house.told_that(player, lambda told: told.error)
    assert "answer" in said.error
    # Where it may have taken all of them, so that nothing more is asked of it.
    publish(log, 30)
    house.wait_for(lambda: len(fake.connects) >= 3)
    fake.mute = False
    fake.store.wait_for(lambda: len(fake.store.done) == 60, 60)
    assert in_order(log, fake.store)


def _ahead(found, request):
    for each in request.deliveries:
        done = found.answers.add(kind=DeliveryAnswer.DONE, tag=each.tag, place=each.place)
        done.place.lsn += 1_000_000


def _kind(found, request):
    for each in request.deliveries:
        found.answers.add(kind=17, tag=each.tag, place=each.place)


def _stranger(found, request):
    for each in request.deliveries:
        found.answers.add(kind=DeliveryAnswer.DONE, tag="nobodys/7", place=each.place)


def _no_place(found, request):
    for each in request.deliveries:
        found.answers.add(kind=DeliveryAnswer.FAILED, tag=each.tag, code=13)


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "batches"])
@pytest.mark.parametrize("says", [_ahead, _kind, _stranger, _no_place])
def test_a_target_that_answers_garbage_is_down_until_it_makes_sense(house, log, says, streams):
    """Nothing counts as taken, nothing is given up, and what it is said to be wrong with shows."""
    fake = of_kind(Babbling, house, streams=streams)
    fake.says = says
    player = house.player(declared(fake, tries=2, failed="dead-letter"))
    publish(log, 10)
    said = house.told_that(player, lambda told: told.error)
    assert said.indexes == {}
    house.wait_for(lambda: len(fake.connects) >= 3)
    assert (fake.store.done, letters(log)) == ([], [])
    fake.says = None
    fake.store.wait_for(lambda: len(fake.store.done) == 10, 60)
    assert in_order(log, fake.store)


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "batches"])
def test_a_target_that_moved_to_another_address_goes_on_there(house, log, streams):
    """Its index is in its store: only where it is found has changed (P5, P6)."""
    fake = house.target(streams=streams)
    target = declared(fake)
    player = house.player(target)
    publish(log, 10)
    fake.store.wait_for(lambda: len(fake.store.done) == 10)
    fake.stop()
    fake.address = ""
    fake.start()
    assert fake.address != target.address
    publish(log, 10, 10)
    house.told_that(player, lambda told: told.error)
    player.reload([dataclasses.replace(target, address=fake.address)])
    fake.store.wait_for(lambda: len(fake.store.done) == 20)
    assert in_order(log, fake.store)


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "batches"])
def test_a_message_that_is_larger_than_its_target_takes_is_refused(house, log, streams):
    """It can never be called: a dead letter, as declared, and the others go on (P7)."""
    fake = house.target(streams=streams)
    fake.most_bytes = 20_000
    player = house.player(declared(fake, refused="dead-letter"))
    publish(log, 3)
    large = log.publish_call("orders", CALL, b"x" * 30_000, key="3")
    publish(log, 7, 3)
    fake.store.wait_for(lambda: len(fake.store.done) == 10)
    house.wait_for(lambda: len(letters(log)) == 1)
    (letter,) = letters(log)
    assert letter.headers["position"].decode() == str(large)
    assert letter.headers["reason"].startswith(b"REFUSED (8): ")
    assert "x" * 30_000 not in fake.store.bodies()
    player.close()
    fake.most_bytes = 4 << 20


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "batches"])
def test_messages_that_all_fail_alike_stop_their_target(house, log, streams):
    """They are not at fault: the first few are dead letters, and a resumed target goes on (P7)."""
    fake = house.target(streams=streams)
    fake.most_bytes = 1_000
    player = house.player(declared(fake, refused="dead-letter", same_error=3))
    for _ in range(9):
        log.publish_call("orders", CALL, b"x" * 2_000, key="3")
    found = house.wait_for_state(player, "stopped")
    assert found.stopped.why == "SAME_ERROR"
    assert "3 messages in a row" in str(found.stopped)
    house.wait_for(lambda: len(letters(log)) == 2)
    fake.most_bytes = 4 << 20
    resume(log)
    fake.store.wait_for(lambda: len(fake.store.done) == 7)
    assert len(letters(log)) == 2


@pytest.mark.parametrize("off_us", [-(10**15), 10**15], ids=["slow", "fast"])
def test_a_player_with_a_wrong_clock_delivers_all_the_same(house, log, monkeypatch, off_us):
    """No wall clock decides what is sent, given up or kept; another takes over as ever (§15)."""
    from sharedlog._player import outside

    real = outside.time.time_ns
    monkeypatch.setattr(outside, "time", _Clock(outside.time, lambda: real() + 1000 * off_us))
    bad = threading.Event()

    def handler(called):
        failed = called.body == b"5" and not bad.is_set()
        return answer(DeliveryAnswer.FAILED, "no room") if failed else None

    fake = house.target(handler)
    first = house.player(declared(fake))
    publish(log, 20)
    fake.store.wait_for(lambda: len(fake.store.done) >= 10)
    bad.set()
    fake.store.wait_for(lambda: len(fake.store.done) == 20)
    first.close()
    monkeypatch.undo()
    house.player(declared(fake))
    publish(log, 20, 20)
    fake.store.wait_for(lambda: len(fake.store.done) == 40)
    assert in_order(log, fake.store)
    last = max(each.position.lsn for number in range(2) for each in log.read("orders", number))
    house.wait_for(lambda: last in {each.lsn for each in log.holds("@player:player:shop:0")})


class _Clock:
    """A module ``time`` whose wall clock is wrong."""

    def __init__(self, real, time_ns):
        self._real = real
        self.time_ns = time_ns

    def __getattr__(self, name):
        return getattr(self._real, name)


def test_two_players_of_two_names_do_not_share_an_index_by_chance(house, log):
    """They have one log's name, and one target: what one has taken the other is told of (P2)."""
    fake = house.target()
    one = house.player(declared(fake), name="one")
    two = house.player(declared(fake), name="two")
    publish(log, 40)
    fake.store.wait_for(lambda: len(fake.store.done) == 40)
    house.told_that(one, lambda told: told.lag == 0)
    house.told_that(two, lambda told: told.lag == 0)
    assert in_order(log, fake.store)


def test_a_second_log_of_the_same_name_at_a_target_is_told_what_to_do(house, log, tmp_path):
    """The target's index is the first log's; a log_name of its own is what it needs (P6)."""
    fake = house.target()
    one = house.player(declared(fake))
    publish(log, 2)
    fake.store.wait_for(lambda: len(fake.store.done) == 2)
    one.close()
    with sharedlog.create(f"sqlite:///{tmp_path / 'second.db'}") as other:
        other.stream("orders", 2)
        publish(other, 3, 10)
        two = house.player(declared(fake), log=other)
        found = house.wait_for_state(two, "stopped")
        assert (found.stopped.why, len(fake.store.done)) == ("FORKED", 2)
        assert found.details.endswith("a log_name that no other log has at this target")
        two.close()
        house.player(declared(fake), log=other, log_name="second")
        fake.store.wait_for(lambda: len(fake.store.done) == 5)
        house.close()


def test_a_target_may_have_more_substreams_than_one_request_asks_about(house, log):
    """It is asked again about the rest; two answers of two stores are none (§15)."""
    names = ["first", "second", "third"]
    for name in names:
        log.stream(name, 400)
        log.publish_call(name, CALL, name.encode(), key="k")
    fake = house.target()
    player = house.player(declared(fake, streams=names))
    fake.store.wait_for(lambda: sorted(fake.store.bodies()) == names)
    assert [len(each.tags) for each in fake.connects] == [1024, 176]
    player.close()
    fake.other_stores = 1
    house.told_that(
        house.player(declared(fake, streams=names)), lambda told: "two stores" in told.error
    )


class Hanging(FakeTarget):
    """Its handler of a message does not return, and it says so to who connects."""

    hung = None

    async def DeliverBatch(self, request, context):  # noqa: N802
        found = await super().DeliverBatch(request, context)
        while self.hung and self.hung.tag in {each.tag for each in request.deliveries}:
            await asyncio.sleep(0.01)
        return found

    async def Connect(self, request, context):  # noqa: N802
        reply = await super().Connect(request, context)
        for index in reply.indexes if self.hung else ():
            if index.tag == self.hung.tag:
                index.running.CopyFrom(self.hung.place)
        return reply

    def _taken(self, first, delivery, dropped):
        mine = self.hung and delivery.tag == self.hung.tag
        if mine and delivery.kind == Delivery.SKIP and delivery.place == self.hung.place:
            self.hung, mine = None, False
        starts = sharedlog_pb2.Envelope.FromString(delivery.envelope).body == b"1"
        if starts and self.hung is None and not self.store.done_all:
            self.hung, mine = delivery, True
        return None if mine else super()._taken(first, delivery, dropped)


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "batches"])
@pytest.mark.parametrize("tries", [None, 2], ids=["waited-for", "given-up"])
def test_a_message_whose_handler_hangs_holds_up_its_substream_alone(house, log, tries, streams):
    """Each time that it is late is an attempt; the others go on, and nothing is sent to it (P7)."""
    fake = of_kind(Hanging, house, streams=streams)
    fake.store.done_all = False
    given = {"tries": tries, "failed": "dead-letter", "patience": timedelta(milliseconds=400)}
    player = house.player(declared(fake, **given))
    log.publish_call("orders", CALL, b"1", key="1")
    house.wait_for(lambda: fake.hung)
    tag = fake.hung.tag
    publish(log, 10, 10)
    others = {each.text for each in log.read("orders", 1 - int(tag[-1]))}
    fake.store.wait_for(lambda: others <= set(fake.store.bodies()))
    if tries is None:
        # A target that did not answer in time, on a busy machine, is connected to again.
        house.told_that(
            player, lambda told: told.attempts.get(tag, ("", 0))[1] >= 3 and told.state == "N"
        )
        publish(log, 10, 20)
        more = {each.text for each in log.read("orders", 1 - int(tag[-1]))}
        fake.store.wait_for(lambda: more <= set(fake.store.bodies()))
        # It returns, after all.
        fake.store.done_all, fake.hung = True, None
        fake.store.wait_for(lambda: len(fake.store.done) == 21)
        assert in_order(log, fake.store)
    else:
        fake.store.wait_for(lambda: len(fake.store.done) == 10)
        house.wait_for(lambda: len(letters(log)) == 1)
        assert b"may have run" in letters(log)[0].headers["reason"]


class Blocked(FakeTarget):
    """All of its handlers wait for one thing."""

    blocked = True

    def __init__(self, *given, **more):
        self.waits = {}
        super().__init__(*given, **more)

    async def Connect(self, request, context):  # noqa: N802
        reply = await super().Connect(request, context)
        for index in reply.indexes:
            if self.blocked and index.tag in self.waits:
                index.running.CopyFrom(self.waits[index.tag])
        return reply

    def _taken(self, first, delivery, dropped):
        if not self.blocked:
            return super()._taken(first, delivery, dropped)
        self.waits.setdefault(delivery.tag, delivery.place)
        return None


def test_of_handlers_that_all_hang_none_is_at_fault(house, log):
    """They may wait for one of them, or for the store: nothing is given up (P7)."""
    fake = of_kind(Blocked, house)
    given = {"tries": 1, "failed": "dead-letter", "patience": timedelta(milliseconds=200)}
    player = house.player(declared(fake, **given))
    publish(log, 10)
    house.wait_for(lambda: len(fake.waits) == 2)
    house.told_that(player, lambda told: "has not ended" in told.error)
    # It is asked by substream from now on.
    house.wait_for(lambda: sum(len(each.tags) == 1 for each in fake.connects) >= 8)
    assert player.targets()["shop"].attempts == {}
    fake.blocked = False
    fake.store.wait_for(lambda: len(fake.store.done) == 10)
    assert in_order(log, fake.store)


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "batches"])
def test_a_message_that_waits_for_what_passes_holds_up_its_substream_alone(house, log, streams):
    """It is no attempt; the others go on over the same connection, and the error is shown (P7)."""
    waits, refused = [True], []

    def handler(called):
        if called.body != b"1" or not waits:
            return None
        refused.append(called)
        return answer(DeliveryAnswer.UNAVAILABLE, "a deadlock", code=10)

    fake = of_kind(FakeTarget, house, streams=streams)
    fake.handler = handler
    player = house.player(declared(fake, tries=1, failed="dead-letter"))
    log.publish_call("orders", CALL, b"1", key="1")
    house.wait_for(lambda: refused)
    publish(log, 10, 10)
    others = {each.text for each in log.read("orders", 1 - int(refused[0].tag[-1]))}
    fake.store.wait_for(lambda: others <= set(fake.store.bodies()))
    house.wait_for(lambda: len(refused) >= 3)
    told = house.told_that(player, lambda told: "a deadlock" in told.error)
    assert (told.state, told.attempts, len(fake.connects)) == ("N", {}, 1)
    waits.clear()
    fake.store.wait_for(lambda: len(fake.store.done) == 11)
    assert in_order(log, fake.store)
    assert not letters(log)
