"""Transactions that publish more than one append takes (DESIGN-LOG §13, C1, C2; §14, T1, T2)."""

import itertools
from datetime import timedelta

import pytest

import sharedlog
from sharedlog._cli import ExitCode, main
from sharedlog._consumer import carrying
from sharedlog._core.producers import OPEN
from sharedlog._core.roster import granted_producers
from sharedlog._log.sweeper import Sweeper
from sharedlog.testing import die, drain, driven, lose
from tests.sharedlog.consumer.test_restored import copied, restored
from tests.sharedlog.consumer.test_zombies import lapsed
from tests.sharedlog.consumer.world import World


@pytest.fixture
def small_appends(monkeypatch):
    """An append takes two messages: what handlers publish does not fit."""
    monkeypatch.setattr(carrying, "APPEND_ENTRIES", 2)


def killed_before_the_marker(world):
    """A process has committed in its store, and nobody has told the log."""
    with driven(world.consumer()) as process:
        committed = []

        def kill(_, name):
            if name == "store: commit":
                committed.append(name)
            if name == "log: append" and committed:
                process.die()

        process.before = kill
        process.drain()
    assert process.dead
    assert world.bills()
    assert not world.invoices()


@pytest.mark.usefixtures("small_appends")
@pytest.mark.parametrize("fault", [die, lose])
def test_effects_are_those_of_one_run_wherever_a_process_dies(tmp_path, fault):
    """Killed before each step, or with the answer lost: pending, decision, marker (T1, T2, T3)."""
    for step in itertools.count(1):
        world = World(tmp_path / f"{step}", orders=2, copies=2, substreams=1, batch=1)
        named = {"before": step} if fault is die else {"of": step}
        met = fault(world.consumer(), **named)
        drain(world.consumer())
        world.check()
        assert not world.log._engine.scan(OPEN)
        if not met:
            break
    assert step > 15


@pytest.mark.usefixtures("small_appends")
def test_process_after_process_dies(tmp_path):
    """Each later than the one before it: all steps of a take-over are met, too (T1)."""
    world = World(tmp_path, orders=2, copies=2, attempts=1000)
    for step in itertools.count(1):
        if not die(world.consumer(), before=step):
            break
    world.check()
    assert step > 10


@pytest.mark.usefixtures("small_appends")
def test_a_zombie_at_each_step_changes_nothing(tmp_path):
    """It neither adds to what it had pending, nor commits it (T1, L4)."""
    for step in itertools.count(1):
        world = World(tmp_path / f"{step}", orders=2, copies=2, substreams=1, batch=1)
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
        assert not world.log._engine.scan(OPEN)
        if not met:
            break
    assert step > 15


@pytest.mark.usefixtures("small_appends")
def test_nobody_reads_what_the_store_has_not_committed(tmp_path):
    """Pending before the store's commit, and committed by one marker behind it (T2)."""
    world = World(tmp_path, orders=3, copies=3)
    with driven(world.consumer()) as process:

        def look(_, name):
            if name == "store: commit":
                assert sum(map(len, world.invoices().values())) == sum(
                    map(len, world.bills().values())
                )

        process.before = look
        process.drain()
    world.check()


@pytest.mark.usefixtures("small_appends")
def test_a_sweeper_leaves_what_a_store_has_committed(tmp_path):
    """However long its successor is away: only that, or an operator, decides it (C2)."""
    world = World(tmp_path, orders=3, copies=3)
    killed_before_the_marker(world)
    silent = world.log.producer().transaction()
    for number in range(3):
        silent.publish("copies", b"silent")
        silent.pend() if number < 2 else None
    now_s = 0.0
    sweeper = Sweeper(world.log._place, timedelta(minutes=1), clock=lambda: now_s)
    swept = []
    for _ in range(100):
        now_s += 20
        swept += sweeper.round()
    sweeper.close()
    assert swept == [silent._producer.sender.producer.id]
    drain(world.consumer())
    world.check()


@pytest.mark.usefixtures("small_appends")
def test_who_takes_over_retires_the_producer_of_who_died(tmp_path):
    """What its store did not commit is rolled back before anything else happens (T1, C1)."""
    world = World(tmp_path, orders=3, copies=3)
    with driven(world.consumer()) as process:

        def kill(_, name):
            if name == "store: commit":
                process.die()

        process.before = kill
        process.drain()
    assert not world.bills()
    (open_,) = [each for each in world.log._place.run(granted_producers()) if each.pending]
    drain(world.consumer())
    world.check()
    (after,) = [each for each in world.log._place.run(granted_producers()) if each.id == open_.id]
    assert after.retired


@pytest.mark.usefixtures("small_appends")
def test_a_handler_that_fails_leaves_nothing_pending(tmp_path):
    """Nothing is pending before all handlers of a transaction returned (C1)."""
    world = World(tmp_path, orders=3, copies=3)
    failures = []

    def fails(order, effects):
        if len(failures) < 2:
            failures.append(order)
            for _ in range(9):
                effects.publish("copies", b"never", key="c1")
            raise OSError("not now")

    world.looks = fails
    drain(world.consumer())
    world.check()


@pytest.mark.usefixtures("small_appends")
def test_an_operator_who_forgets_a_consumer_rolls_back_what_it_has_pending(tmp_path):
    """By the documented commands; its store's consumer is told what was lost (C2)."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    world = World(tmp_path, orders=1, copies=3, url=url, substreams=1)
    killed_before_the_marker(world)
    assert main(["forget", url, "@consumer:billing:orders/0", "--yes"]) == ExitCode.DONE
    assert not world.log._engine.scan(OPEN)
    with pytest.raises(sharedlog.LogForked, match="was rolled back"):
        drain(world.consumer())
    world.log.close()


@pytest.mark.usefixtures("small_appends")
def test_a_restored_store_whose_marker_is_in_the_log_goes_on(tmp_path):
    """By the documented commands: what the marker committed is not lost, nor there twice (T1)."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    world = World(tmp_path, orders=1, copies=3, url=url, substreams=1)
    drain(world.consumer())
    copy = copied(world)
    invoices = world.invoices()
    world.order(1)
    drain(world.consumer())
    restored(world, copy)
    with pytest.raises(sharedlog.StoreWentBack):
        drain(world.consumer())
    assert main(["holds", url, "--forget", "@consumer:billing", "--yes"]) == ExitCode.DONE
    assert main(["forget", url, "@consumer:billing:orders/0", "--yes"]) == ExitCode.DONE
    drain(world.consumer())
    world.order(2)
    drain(world.consumer())
    assert world.bills() == world.expected()
    (first,) = invoices["c0"]
    assert world.invoices()["c0"].count(first) == 1
    world.log.close()


def publishes_ten_megabytes(world):
    def publish(order, effects):
        if order["what"] == "order 2":
            for number in range(40):
                effects.publish("large", number.to_bytes(2, "big") * 128_000, key=str(number))

    world.log.stream("large", substreams=4)
    world.looks = publish


def test_a_store_in_the_file_of_the_log_takes_one_append(tmp_path):
    """It has the file's lock while handlers run: more is an error, and no deadlock (T2)."""
    (tmp_path / "world").mkdir()
    file = tmp_path / "world" / "bills.db"
    world = World(
        tmp_path / "world", orders=2, url=f"sqlite:///{file}", attempts=1, dead_letters="dead"
    )
    world.log.stream("dead", 1)
    publishes_ten_megabytes(world)
    drain(world.consumer())
    (dead,) = world.log.read("dead", 0)
    assert b"publishes 1000 messages and 1048576 bytes" in dead.headers["dead-letter-error"]
    world.log.close()
