"""Effects and outputs are there once, wherever a consumer's process dies (DESIGN-LOG §14)."""

import itertools

import pytest

from sharedlog import LogUnavailable
from sharedlog.testing import die, drain, driven, lose
from tests.sharedlog.consumer.world import World


@pytest.mark.parametrize("batch", [1, 100])
@pytest.mark.parametrize("fault", [die, lose])
def test_effects_are_those_of_one_run_wherever_a_process_dies(tmp_path, fault, batch):
    """Killed before each step, or with the answer to it lost: then another goes on (T1, T2, T3)."""
    for step in itertools.count(1):
        world = World(tmp_path / f"{step}", orders=3, batch=batch)
        named = {"before": step} if fault is die else {"of": step}
        met = fault(world.consumer(), **named)
        drain(world.consumer())
        world.check()
        if not met:
            break
    assert step > 15


def test_effects_are_those_of_one_run_where_process_after_process_dies(tmp_path):
    """Each later than the one before it, so that all steps of a take-over are met, too (T1)."""
    world = World(tmp_path, orders=4, attempts=1000)
    for step in itertools.count(1):
        if not die(world.consumer(), before=step):
            break
    world.check()
    assert step > 5


def test_what_a_store_committed_is_appended_by_who_takes_over(tmp_path):
    """Dead between the commit and the append: it is in the log before anything else is (T1, T2)."""
    world = World(tmp_path, orders=3)
    with driven(world.consumer()) as process:

        def kill(_, name):
            if name == "log: append":
                process.die()

        process.before = kill
        process.drain()
    assert process.dead
    assert world.bills()
    assert not world.invoices()
    with driven(world.consumer()) as process:
        process.drain()
        assert process.steps.index("log: append") < process.steps.index("handlers: run")
    world.check()


def test_nothing_is_in_the_log_before_the_store_has_committed(tmp_path):
    """Pending or not, of a transaction that the store may not commit (T2)."""
    world = World(tmp_path, orders=6)
    with driven(world.consumer()) as process:
        appended = []

        def look(_, name):
            if name == "store: commit":
                with world.log.follow("invoices", committed=False) as all_there:
                    appended.append((len(all_there.poll()), sum(map(len, world.bills().values()))))

        process.before = look
        process.drain()
    assert appended
    assert [there for there, _ in appended] == [billed for _, billed in appended]
    world.check()


def test_the_next_transaction_waits_until_the_log_has_the_outputs(tmp_path):
    """It neither commits nor appends anything while the log does not answer (T3)."""
    world = World(tmp_path, orders=0, substreams=1, batch=1)
    for _ in range(3):
        world.order(1)
    with driven(world.consumer()) as process:
        failures = 0

        def unanswered(_, name):
            nonlocal failures
            if name == "log: append" and failures < 4:
                failures += 1
                raise LogUnavailable("no answer")

        process.before = unanswered
        process.drain()
        first = process.steps.index("log: append")
        # Aside: holds, and what is told of how it is.
        aside = ("log: hold", "log: consumer")
        behind = [each for each in process.steps[first:] if each not in aside]
    assert behind[:7] == [*["log: append"] * 5, "handlers: run", "store: commit"]
    world.check()
