"""The player and the target that rifl's server hosts, together (DESIGN-LOG §15)."""

import contextlib
import threading
from contextlib import ExitStack

import grpc
import pytest
from structlog.testing import capture_logs

import rifl
import sharedlog
from chaos.ports import free_port
from sharedlog import Target
from sharedlog._core.player import backoff
from sharedlog._player.link import _OPTIONS
from tests.helpers.servers import KINDS, generic, serve
from tests.sharedlog.player.conftest import declared
from tests.sharedlog.player.target_process import METHOD, effects, prepare, reserve, reserve_async

SHOWN = "a secret of the player's"
# gRPC's default: grpc.http2.min_ping_interval_without_data_ms.
SERVERS_BEAR_MS = 300_000
NOT_THERE = "/shop.v1.Inventory/Remove"


class Shop:
    """A served target, and what it refuses to do."""

    def __init__(self, stack, kind, directory):
        self.failing = set()

        def called(request, context):
            if request.decode() in self.failing:
                context.abort(grpc.StatusCode.INTERNAL, "no room")
            return reserve(request, context)

        async def called_async(request, context):
            if request.decode() in self.failing:
                await context.abort(grpc.StatusCode.INTERNAL, "no room")
            return await reserve_async(request, context)

        url = f"sqlite:///{directory / 'target.db'}"
        dedup = stack.enter_context(rifl.Deduplicator(url, methods={METHOD: "atomic"}))
        handler = called_async if kind == "aio" else called
        handlers = [generic("shop.v1.Inventory", {"Reserve": handler})]
        self.address = stack.enter_context(
            serve(kind, handlers, dedup=dedup, add=lambda server: self._add(server, dedup))
        ).address

    @staticmethod
    def _add(server, dedup):
        sharedlog.add_target_to_server(server, dedup, {"orders": [METHOD]}, token=SHOWN)


@pytest.fixture(params=KINDS)
def shop(request, tmp_path):
    """One, on each kind of server."""
    prepare(tmp_path)
    with ExitStack() as stack:
        yield Shop(stack, request.param, tmp_path)


def test_failing_and_refused_messages_become_dead_letters(house, log, shop, tmp_path):
    """A handler that fails for good, and a method that is not there; all others run (P7)."""
    shop.failing.add("3")
    house.player(declared(shop, token=SHOWN, tries=2, failed="dead-letter", refused="dead-letter"))
    for number in range(10):
        method = NOT_THERE if number == 5 else METHOD
        log.publish_call("orders", method, b"%d" % number, key=b"%d" % number)
    house.wait_for(lambda: len(effects(tmp_path)) == 8, 60)
    for number in range(2):
        expected = [each.text for each in log.read("orders", number) if each.text not in "35"]
        assert [body for at, body in effects(tmp_path) if at == number] == expected

    def letters():
        with contextlib.suppress(sharedlog.NoSuchStream):
            return [each for number in range(8) for each in log.read("deadletters", number)]
        return []

    house.wait_for(lambda: len(letters()) == 2)
    reasons = {each.key: each.headers["reason"].decode() for each in letters()}
    assert reasons[b"3"].startswith("FAILED")
    assert "no room" in reasons[b"3"]
    assert reasons[b"5"].startswith("REFUSED")


def test_a_target_that_does_not_know_its_player_takes_nothing(house, log, shop, tmp_path):
    """The wrong token is told as its last error, and it is tried again (§15)."""
    player = house.player(declared(shop, token=SHOWN[::-1]))
    log.publish_call("orders", METHOD, b"1")
    house.wait_for(
        lambda: any("let this player in" in each.error for each in player.targets().values())
    )
    assert effects(tmp_path) == []
    player.reload([declared(shop, token=SHOWN)])
    house.wait_for(lambda: len(effects(tmp_path)) == 1, 60)


def test_a_transaction_is_taken_whole(house, log, shop, tmp_path):
    """Its messages of one substream, in their order, between those of others (P1)."""
    house.player(declared(shop, token=SHOWN))
    for number in range(3):
        with log.producer().transaction() as transaction:
            for at in range(30):
                transaction.publish_call("orders", METHOD, b"%d.%d" % (number, at), key=b"%d" % at)
    house.wait_for(lambda: len(effects(tmp_path)) == 90, 60)
    for number in range(2):
        there = [each.text for each in log.read("orders", number)]
        assert [body for at, body in effects(tmp_path) if at == number] == there


class _CutOff(sharedlog.PlayerObserver):
    """Is told when a target is cut off."""

    def __init__(self):
        self.happened = threading.Event()

    def troubled(self, player, target, cause):
        self.happened.set()


def test_an_idle_target_is_pinged_no_more_often_than_servers_bear():
    """A server hangs up on who pings it without data within five minutes, again and again (§15)."""
    assert dict(_OPTIONS)["grpc.keepalive_time_ms"] > SERVERS_BEAR_MS


@pytest.mark.long
def test_an_idle_target_stays_connected(house, log, shop, tmp_path):
    """It has nothing to do for as long as three pings in a minute would take to be too many."""
    watch = _CutOff()
    house.player(declared(shop, token=SHOWN), observer=watch)
    log.publish_call("orders", METHOD, b"1")
    house.wait_for(lambda: len(effects(tmp_path)) == 1)
    assert not watch.happened.wait(75)


def test_a_target_that_is_not_there_is_looked_for_soon_and_told_of_once(house):
    """It is found again within a second or so of its start, and fills no log until then (P4)."""
    tries = []

    class Watch(sharedlog.PlayerObserver):
        def troubled(self, player, target, cause):
            tries.append(cause)

    gone = f"127.0.0.1:{free_port()}"
    with capture_logs() as events:
        house.player(Target(name="shop", address=gone, streams=["orders"]), observer=Watch())
        house.wait_for(lambda: len(tries) > 4)
    assert len([each for each in events if each["event"] == "target_down"]) == 1
    assert backoff._LONGEST_UNREACHED_S <= 1.0
    assert dict(_OPTIONS)["grpc.max_reconnect_backoff_ms"] <= 1000
