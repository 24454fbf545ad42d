"""Timers of a consumer: transactions by the clock, between those of messages (DESIGN-LOG §14)."""

import itertools
import json
from contextlib import closing
from datetime import timedelta

import pytest

import sharedlog
from sharedlog import InvalidRequest
from sharedlog.testing import die, drain, driven
from tests.helpers.log_servers import shared_postgres
from tests.sharedlog.consumer.world import PostgresDatabase, World

__all__ = ["shared_postgres"]


class Ticking(World):
    """Each time the timer counts up, and publishes the count."""

    def __init__(self, place, **settings):
        super().__init__(place, **{"substreams": 1, **settings})
        self.log.stream("ticks", substreams=1)
        with closing(self.connect()) as connection, connection:
            connection.execute("CREATE TABLE tick (number INTEGER)")
            connection.execute("INSERT INTO tick VALUES (0)")
        self.ticks = lambda effects: None

    def consumer(self, **settings):
        made = super().consumer(**settings)

        @made.every(timedelta(seconds=10))
        def tick(effects):
            self.ticks(effects)
            effects.connection.execute("UPDATE tick SET number = number + 1")
            row = effects.connection.execute("SELECT number FROM tick").fetchone()
            effects.publish("ticks", json.dumps(row[0]))

        return made

    def ticked(self):
        with closing(self.connect()) as connection:
            (row,) = connection.execute("SELECT number FROM tick").fetchall()
        return row[0]

    def check_ticks(self):
        """What was published is what was counted, each once and in order."""
        counted = [json.loads(each.value) for each in self.log.read("ticks", 0, limit=1000)]
        assert counted == list(range(1, self.ticked() + 1))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
def new_world(request, tmp_path):
    count = itertools.count()
    server = request.getfixturevalue("shared_postgres") if request.param == "postgres" else None

    def make(**settings):
        place = tmp_path / f"{next(count)}" if server is None else PostgresDatabase(server)
        return Ticking(place, **settings)

    return make


def test_a_timers_effects_are_there_once_for_each_time_wherever_a_process_dies(new_world):
    """With its outputs, and beside those of messages (T1, T2, T3)."""
    for step in itertools.count(1):
        world = new_world(orders=2, batch=1)
        died = die(world.consumer(), before=step)
        drain(world.consumer())
        world.check()
        world.check_ticks()
        if not died:
            break
    assert step > 10
    assert world.ticked() > 0


def test_a_timer_is_due_after_its_interval_and_before_any_message(tmp_path):
    """Also of a substream that never had one."""
    world = Ticking(tmp_path, orders=0)
    with driven(world.consumer()) as process:
        process.round()
        assert world.ticked() == 0
        for _ in range(3):
            process.round()
        # Messages have every other turn.
        assert world.ticked() == 2
    world.check_ticks()


def test_a_timer_that_raises_has_no_effects_and_holds_nobody_up(tmp_path):
    """It is due again after its interval; attempts are those of messages (T5)."""
    world = Ticking(tmp_path, orders=2)
    failures = iter([ValueError("no"), ValueError("no")])

    def fail(effects):
        with pytest.raises(InvalidRequest):
            effects.message  # noqa: B018 - there is none
        with pytest.raises(InvalidRequest):
            effects.channel("nowhere")
        for error in failures:
            raise error

    world.ticks = fail
    with driven(world.consumer()) as process:
        process.drain()
        for _ in range(4):
            process.round()
    world.check()
    world.check_ticks()
    assert world.ticked() >= 1


def test_a_timer_waits_while_a_message_is_counted(tmp_path):
    """A commit would forget how often it was tried (T5)."""
    world = Ticking(tmp_path, orders=1, attempts=3, dead_letters="dead")
    world.log.stream("dead", substreams=1)
    world.refused = {"c0"}
    with driven(world.consumer()) as process:
        process.drain()
        fired = [number for number, name in enumerate(process.steps) if name == "handlers: fire"]
        (buried,) = [at for at, name in enumerate(process.steps) if name == "handlers: bury"]
        noted = [at for at, name in enumerate(process.steps) if name == "store: note"]
    assert len(noted) == 3
    assert not [each for each in fired if noted[0] < each < buried]
    (dead,) = world.log.read("dead", 0)
    assert dead.headers["dead-letter-attempts"] == b"3"


def test_an_interval_is_a_time_of_some_length(tmp_path):
    """``InvalidRequest`` otherwise."""
    world = World(tmp_path, orders=0)
    for wrong in (timedelta(0), 5, None):
        with pytest.raises(InvalidRequest):
            sharedlog.Consumer(world.log, "other", ["orders"], world.database.url).every(wrong)
