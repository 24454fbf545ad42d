"""The beginning of a consumer whose name is new (DESIGN-LOG §14, T1)."""

import itertools
import json
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

import sharedlog
from sharedlog._cli import ExitCode, main
from sharedlog.testing import die, drain
from tests.helpers.log_servers import shared_redis
from tests.sharedlog.consumer.test_command import MODULE, done, runnable
from tests.sharedlog.consumer.test_redis import RedisWorld
from tests.sharedlog.consumer.world import LogWorld, World

__all__ = ["runnable", "shared_redis"]


@pytest.fixture(params=["sqlite", "redis", "log"])
def new_world(request, tmp_path):
    def make(**settings):
        match request.param:
            case "redis":
                return RedisWorld(request.getfixturevalue("shared_redis"), False, **settings)
            case "log":
                return LogWorld(**settings)
        return World(tmp_path / f"{next(count)}", **settings)

    count = itertools.count()
    return make


def published(world, substream=0):
    return [(json.loads(each.value)["what"], each) for each in world.log.read("orders", substream)]


def billed(world):
    return sorted(what for rows in world.bills().values() for _, what in rows)


def test_it_begins_behind_a_position_wherever_a_process_dies(new_world):
    """In the midst of a commit, too; who says nothing of it later goes on from there."""
    for step in itertools.count(1):
        world = new_world(orders=3, substreams=1)
        messages = published(world)
        # The first of the two that one transaction has published.
        what, message = messages[2]
        met = die(world.consumer(start=message.position), before=step)
        drain(world.consumer(start=message.position))
        assert billed(world) == sorted(name for name, _ in messages[3:]), (step, what)
        world.order(1)
        drain(world.consumer())
        assert len(billed(world)) == 2
        world.log.close()
        if not met:
            break
    assert step > 8


def test_in_other_substreams_it_begins_behind_the_commit(tmp_path):
    """A position says one substream; the log's order says the rest."""
    world = World(tmp_path, orders=12)
    first, other = published(world, 0), published(world, 1)
    what, message = first[2]
    lsn = message.position.lsn
    drain(world.consumer(start=message.position))
    wanted = [name for name, each in first if each.position > message.position]
    wanted += [name for name, each in other if each.position.lsn > lsn]
    assert what not in wanted
    assert 0 < len(wanted) < len(first) + len(other) - 3
    assert billed(world) == sorted(wanted)


def test_it_begins_behind_a_moment(new_world):
    """By the log's time; what comes later is done, also where nothing has come yet."""
    world = new_world(orders=0, substreams=1)
    for _ in range(4):
        world.log.publish("orders", json.dumps({"customer": "c0", "what": "early"}), key="c0")
    moment = max(each.append_time for _, each in published(world))
    drain(world.consumer(start=moment))
    assert billed(world) == []
    world.order(1)
    drain(world.consumer(start=moment + timedelta(days=1)))
    assert billed(world) == ["order 1"]


def test_a_store_that_was_wiped_is_known_though_it_began_at_a_position(tmp_path):
    """The position that it began at is no other one that it has done (T1)."""
    world = World(tmp_path, orders=4, substreams=1)
    start = published(world)[0][1].position
    drain(world.consumer(start=start))
    with closing(world.connect()) as connection, connection:
        connection.execute("DELETE FROM sharedlog_consumer")
    with pytest.raises(sharedlog.StoreWentBack):
        drain(world.consumer(start=start))


def test_a_start_that_cannot_be_is_refused(tmp_path):
    """Positions of other logs, substreams and streams, and times without a zone."""
    world = World(tmp_path, orders=3, substreams=1)
    position = published(world)[0][1].position
    url = world.database.url
    for streams, start in [
        (["orders", "invoices"], position),
        (["orders"], position._replace(substream=7)),
        (["orders"], datetime(2026, 1, 1)),
        (["orders"], 7),
    ]:
        with pytest.raises(sharedlog.InvalidRequest, match="start="):
            sharedlog.Consumer(world.log, "other", streams, url, start=start)
    with pytest.raises(sharedlog.LogForked):
        drain(world.consumer(start=position._replace(incarnation="0" * 16)))


def test_the_command_says_where_a_new_consumer_begins(runnable):
    """``--start``, in place of what its module says."""
    log, file = runnable
    log.publish("orders", "early", key="a")
    moment = datetime.now(UTC).isoformat()
    log.publish("orders", "the last", key="a")
    assert main(["run", f"{MODULE}:consumer", "--start", moment]) == ExitCode.DONE
    assert [what for what, _ in done(file)] == ["the last"]
    sys.modules[MODULE].log.close()
