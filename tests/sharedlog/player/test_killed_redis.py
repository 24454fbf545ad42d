"""A target over Redis whose server is killed again and again (DESIGN-LOG §15)."""

from contextlib import ExitStack

import pytest

import rifl
import sharedlog
from tests.helpers.servers import generic, serve
from tests.sharedlog.player.conftest import declared
from tests.sharedlog.player.test_player import publish

pytestmark = pytest.mark.faults

METHOD = "/shop.v1.Inventory/Reserve"
SHOWN = "a secret of the player's"


@pytest.mark.slow
def test_a_redis_that_is_killed_loses_and_doubles_no_delivery(house, log, own_redis):
    """Effect and index are one commit there: in order, once, through each restart (P1, P2)."""
    with ExitStack() as stack:
        client = stack.enter_context(own_redis.client())

        def reserve(request, context):
            with client.pipeline() as pipeline:
                rifl.record(context, b"", pipeline)
                pipeline.rpush(f"done {sharedlog.delivery(context).substream}", request)
                pipeline.execute()
            return b""

        def done(substream):
            return [each.decode() for each in client.lrange(f"done {substream}", 0, -1)]

        url = own_redis.url(namespace="shop", beat_s=0.1, timeout_s=2)
        dedup = stack.enter_context(rifl.Deduplicator(url, methods={METHOD: "atomic"}))
        shop = stack.enter_context(
            serve(
                "sync",
                [generic("shop.v1.Inventory", {"Reserve": reserve})],
                dedup=dedup,
                add=lambda server: sharedlog.add_target_to_server(
                    server, dedup, {"orders": [METHOD]}, token=SHOWN
                ),
            )
        )
        player = house.player(declared(shop, token=SHOWN))
        for at in range(3):
            publish(log, 30, 30 * at)
            house.wait_for(lambda wanted=30 * at + 5: sum(map(len, map(done, range(2)))) >= wanted)
            own_redis.stop()
            own_redis.start()
        house.wait_for(lambda: sum(map(len, map(done, range(2)))) >= 90)
        house.told_that(player, lambda told: told.state == "N" and not told.lag)
        for substream in range(2):
            assert done(substream) == [each.text for each in log.read("orders", substream)]
        player.close()
