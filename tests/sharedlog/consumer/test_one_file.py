"""A log in the file of the consumer's database: outputs are in the commit of the effects."""

import itertools
from contextlib import closing

import pytest

from sharedlog._core.consumer.names import producer_name
from sharedlog._core.consumer.outputs import recorded
from sharedlog._core.named import highest_of
from sharedlog._core.producers import NewMessage
from sharedlog.testing import die, drain, driven, lose
from tests.sharedlog.consumer.test_zombies import lapsed
from tests.sharedlog.consumer.world import SqliteDatabase, World


@pytest.fixture
def world_of():
    """Makes worlds whose log is in the file of the bills."""
    made = []

    def make(directory, **settings):
        database = SqliteDatabase(directory)
        made.append(World(database, url=database.url, **settings))
        return made[-1]

    yield make
    for each in made:
        each.log.close()


@pytest.mark.parametrize("fault", [die, lose])
def test_effects_are_those_of_one_run_wherever_a_process_dies(tmp_path, world_of, fault):
    """Killed before each step, or with the answer lost (DESIGN-LOG §14, T1, T2)."""
    for step in itertools.count(1):
        world = world_of(tmp_path / f"{step}", orders=3, substreams=1, batch=2, copies=1)
        named = {"before": step} if fault is die else {"of": step}
        met = fault(world.consumer(), **named)
        drain(world.consumer())
        world.check()
        if not met:
            break
    assert step > 10


def test_a_zombie_at_each_step_changes_nothing(tmp_path, world_of):
    """Stopped before each step, and taken over from, it goes on where it was (T1, L4)."""
    for step in itertools.count(1):
        world = world_of(tmp_path / f"{step}", orders=3, substreams=1, batch=2)
        met = begun = False

        def overtaken(number, name, world=world, step=step):
            nonlocal met, begun
            if number == step and not met:
                met = True
                # While it has the file's lock nobody takes over.
                if not begun:
                    lapsed(world)
                    drain(world.consumer())
                    world.check()
            begun = name == "handlers: run" or (begun and name != "store: commit")

        with driven(world.consumer()) as zombie:
            zombie.before = overtaken
            zombie.drain()
        world.check()
        if not met:
            break
    assert step > 10


def test_outputs_are_read_once_the_effects_are_committed_and_not_before(tmp_path, world_of):
    """One commit has both: nothing is appended beside it, and nothing is owed (T2, T3)."""
    world = world_of(tmp_path, orders=4)
    seen = []

    def look(_, name):
        if name.startswith(("store", "handlers: run", "log: append")):
            assert world.invoices() == world.bills()
            seen.append(name)

    with driven(world.consumer()) as process:
        process.before = process.after = look
        process.drain()
    world.check()
    assert "store: append" in seen
    assert "log: append" not in seen
    with closing(world.connect()) as connection:
        intents = connection.execute("SELECT DISTINCT intent FROM sharedlog_consumer").fetchall()
    assert intents == [(b"",)]


def test_a_fence_that_was_raised_in_the_log_alone_undoes_effects_and_outputs(tmp_path, world_of):
    """The append is judged under the lease's number, in the step that writes it (L4)."""
    world = world_of(tmp_path, orders=3, substreams=1)
    with driven(world.consumer()) as zombie:

        def overtaken(_, name):
            if name == "handlers: run":
                lapsed(world)
                with driven(world.consumer()) as other:
                    # It has the lease, and has not come to the store yet.
                    other.before = lambda _, name: other.die() if name == "store: take" else None
                    other.drain()

        zombie.before = overtaken
        assert not zombie.round()
        assert not world.bills()
        assert not world.invoices()
    lapsed(world)
    drain(world.consumer())
    world.check()


def test_what_a_release_before_has_recorded_is_appended_first(tmp_path, world_of):
    """An intent in the store goes into the log before anything else (T1, T2)."""
    world = world_of(tmp_path, orders=1, substreams=1)
    drain(world.consumer())
    world.check()
    (message,) = [each for at in range(2) for each in world.log.read("invoices", at)]
    name = producer_name("billing", "orders/0")
    seq = world.log._place.run(highest_of(name))
    intent = recorded([NewMessage(message._data, ("copies/0", "copies/*"))])
    with closing(world.connect()) as connection, connection:
        connection.execute("UPDATE sharedlog_consumer SET intent = ?, seq = ?", (intent, seq + 1))
    drain(world.consumer())
    (appended,) = world.log.read("copies", 0)
    assert appended.value == message.value


def test_a_process_that_runs_wakes_who_follows_its_outputs(tmp_path, world_of):
    """A follower of this process is told of a commit that the log's own handle did not make."""
    world = world_of(tmp_path, orders=0)
    with world.log.follow("invoices", after="end") as following:
        world.order(1)
        assert world.consumer().once()
        (message,) = following.poll(timeout_s=30)
    assert message.stream == "invoices"
