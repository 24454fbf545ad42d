"""A function that does not return is told of, by the message and its name (DESIGN-LOG §14)."""

import logging
import threading
from datetime import timedelta

from sharedlog._consumer import hanging
from sharedlog._consumer.hanging import TOLD_AFTER_S, Hanging
from tests.helpers.waiting import until
from tests.sharedlog.consumer.world import World


def test_it_is_told_after_a_stated_time_and_each_time_that_has_doubled(caplog):
    """And of the next function anew; what returns in time is not told (T5)."""
    now_s = 0.0
    looked = Hanging("the log", "billing", lambda: now_s)

    def told(at_s):
        nonlocal now_s
        now_s = at_s
        caplog.clear()
        looked.look()
        return [each.getMessage() for each in caplog.records]

    caplog.set_level(logging.WARNING, logger="sharedlog")
    assert told(0.0) == []
    looked.begin("shop.bill", "orders/0", None)
    assert told(TOLD_AFTER_S - 1) == []
    (line,) = told(TOLD_AFTER_S)
    assert "consumer_hangs" in line
    assert "shop.bill" in line
    assert told(2 * TOLD_AFTER_S - 1) == []
    assert len(told(2 * TOLD_AFTER_S)) == 1
    looked.end()
    assert told(9 * TOLD_AFTER_S) == []
    looked.begin("shop.bill", "orders/0", None)
    assert told(10 * TOLD_AFTER_S - 1) == []
    assert len(told(10 * TOLD_AFTER_S)) == 1


def test_a_consumer_that_hangs_says_at_which_message_and_in_which_function(
    tmp_path, caplog, monkeypatch
):
    """Its other thread does, while it goes on to say that the process is there (T5)."""
    monkeypatch.setattr(hanging, "TOLD_AFTER_S", 0.0)
    caplog.set_level(logging.WARNING, logger="sharedlog")
    world = World(tmp_path, orders=1, substreams=1)
    position = world.log.read("orders", 0)[0].position
    goes_on = threading.Event()
    world.looks = lambda *_: goes_on.wait(30)
    consumer = world.consumer(lease=timedelta(seconds=0.2))
    thread = threading.Thread(target=consumer.run)
    thread.start()

    def told():
        return [each.getMessage() for each in caplog.records if "consumer_hangs" in each.message]

    try:
        until(told, "it is told")
        assert str(position) in told()[0]
        assert "World.consumer.<locals>.bill" in told()[0]
        assert world.bills() == {}
    finally:
        goes_on.set()
        until(world.bills, "it goes on")
        consumer.close()
        thread.join()
    world.check()
