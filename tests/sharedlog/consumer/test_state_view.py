"""Programs read the state that a consumer keeps in the log (DESIGN-LOG §14, T4)."""

import os
import threading
from datetime import timedelta

import pytest

import sharedlog
from sharedlog._consumer import state_view
from sharedlog.testing import die, drain
from tests.helpers.waiting import until
from tests.sharedlog.consumer.test_log_state import _retention, small_appends, small_snapshots
from tests.sharedlog.consumer.world import LogWorld
from tests.sharedlog.places import ENGINES, url_of

__all__ = ["small_appends", "small_snapshots"]


def views(world):
    return [
        sharedlog.StateView(world.log, "billing", "orders", substream=each)
        for each in range(world.substreams)
    ]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_view_has_what_handlers_have_committed(engine, tmp_path, request):
    """In another handle, as of each refresh; by a message's key or a substream (T4)."""
    url = url_of(engine, tmp_path, request.getfixturevalue)
    world = LogWorld(orders=3, url=url)
    drain(world.consumer())
    with sharedlog.open(url) if engine != "memory" else world.log as log:
        view = sharedlog.StateView(log, "billing", "orders", key="c0")
        assert dict(view) == world.state(view.substream)
        before = view["count c0"]
        with pytest.raises(KeyError):
            view["count c9"]
        world.order(3)
        drain(world.consumer())
        assert view["count c0"] == before
        view.refresh()
        assert view["count c0"] == before + 2
        assert dict(view) == world.state(view.substream)
        assert len(view) == len(list(view))
        assert "count c0" in view
        assert "count c9" not in view
    world.log.close()


@pytest.mark.usefixtures("small_snapshots")
def test_a_view_that_is_behind_what_was_trimmed_begins_with_the_newest_snapshot():
    """It keeps nothing from being trimmed, and misses nothing (T4)."""
    world = LogWorld(orders=3, batch=1)
    for each in ("orders", "invoices", "copies"):
        world.log._place.run(_retention(each))
    drain(world.consumer())
    old = views(world)
    world.order(6)
    drain(world.consumer())
    world.log.publish("invoices", b"{}")
    drain(world.consumer())
    assert world.log.trim().rows > 6
    for substream, view in enumerate(old):
        view.refresh()
        assert dict(view) == world.state(substream)


@pytest.mark.usefixtures("small_appends")
def test_a_view_has_all_changes_of_a_transaction_or_none():
    """Also of one whose process was killed between its appends (C1, T4)."""
    step = 0
    while True:
        step += 1
        world = LogWorld(copies=3, orders=2, batch=1, substreams=1)
        met = die(world.consumer(), before=step)
        (view,) = views(world)
        counted = view.get("count c0", 0) + view.get("count c1", 0)
        assert counted == len([each for each in view if not each.startswith("count ")])
        drain(world.consumer())
        view.refresh()
        assert dict(view) == world.state(0)
        if not met:
            break
    assert step > 12


def test_threads_read_a_view_while_another_one_refreshes_it():
    """None of them sees a part of a transaction, or a table that changes (T4)."""
    world = LogWorld(orders=0, substreams=1)
    (view,) = views(world)
    over, seen = threading.Event(), []

    def reads():
        while not over.is_set():
            seen.append(len(list(view)))

    reader = threading.Thread(target=reads)
    reader.start()
    try:
        for _ in range(20):
            world.order(3)
            drain(world.consumer())
            view.refresh()
        until(lambda: seen and seen[-1] == len(view), "it sees the last refresh")
    finally:
        over.set()
        reader.join(30)
    assert seen == sorted(seen)
    assert dict(view) == world.state(0)


def test_a_view_is_empty_until_the_consumer_has_committed_and_read_your_writes_holds():
    """``await_consumer`` and a refresh show the effect of one's own message (T7)."""
    world = LogWorld(orders=0)
    view = sharedlog.StateView(world.log, "billing", "orders", key=b"c0")
    assert (len(view), dict(view), repr(view)) == (0, {}, "<StateView of 0 keys>")
    position = world.log.publish("orders", b'{"customer": "c0", "what": "it"}', key="c0")
    drain(world.consumer())
    assert sharedlog.await_consumer(world.log, "billing", "orders", position, timedelta(10))
    view.refresh()
    assert view["c0 1"] == ["c0", 1, "it"]


def test_what_is_no_state_is_refused(tmp_path):
    """When the view is made."""
    world = LogWorld(orders=1)
    drain(world.consumer())
    for named in ({}, {"key": "a", "substream": 1}, {"substream": 2}, {"substream": "0"}):
        with pytest.raises(sharedlog.InvalidRequest):
            sharedlog.StateView(world.log, "billing", "orders", **named)
    with pytest.raises(sharedlog.NoSuchStream):
        sharedlog.StateView(world.log, "billing", "nothing", substream=0)
    with pytest.raises(sharedlog.InvalidRequest, match="follows"):
        sharedlog.StateView(world.log, "billing", "invoices", substream=0)


def test_a_forked_child_does_not_use_its_parents_view(monkeypatch):
    """A thread may have been in the middle of it."""
    world = LogWorld(orders=1)
    drain(world.consumer())
    (view, _) = views(world)
    monkeypatch.setattr(state_view, "this_process", lambda: os.getpid() + 1)
    for use in (view.refresh, lambda: len(view), lambda: list(view), lambda: view["a"]):
        with pytest.raises(sharedlog.LogStopped):
            use()
