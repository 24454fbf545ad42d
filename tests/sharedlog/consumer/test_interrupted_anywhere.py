"""An interrupt at any line of ours in a consumer: effects and outputs are those of one run (T1)."""

import threading
from contextlib import suppress
from datetime import timedelta

import pytest

from tests.helpers.at_a_line import Interrupted, at_a_line, bounded, interrupting
from tests.helpers.waiting import until
from tests.sharedlog.consumer.world import LogWorld, World

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def _no_callback(file, function):
    """Not what SQLite calls back: what is raised there is taken for a refusal, not a signal's."""
    return function != "__call__" or "sqlite" not in file


def _walk(directory, url, step):
    number, line = 1, None
    while line is None or line.came:
        place = directory / str(number)
        world = World(place, 3, url.format(place), lease=timedelta(seconds=1))
        try:
            consumer = world.consumer()
            with at_a_line(number, interrupting, _no_callback) as line, suppress(Interrupted):
                consumer.once()
            # The one that was interrupted goes on, or another one takes over.
            (consumer if number % 2 else world.consumer()).once()
            world.check()
        except BaseException as error:
            raise AssertionError(f"interrupted at {line}: {error!r}") from error
        finally:
            world.log.close()
        number += step
    return number


@pytest.mark.parametrize("url", ["memory:", "sqlite:///{}/log.db"], ids=["memory", "sqlite"])
@pytest.mark.parametrize(
    "step", [2900, pytest.param(19, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
def test_an_interrupted_consumer(tmp_path, url, step):
    """It goes on, or another one takes over: nothing is lost or doubled (T1, T2)."""
    assert bounded(lambda: _walk(tmp_path, url, step), 1700 if step < 100 else 100) > 1000


def _sharing(file, function):
    ends = function in ("close", "end", "end_turns", "check")
    return file.endswith(("/_consumer/lanes.py", "/_consumer/working.py")) and not ends


def test_an_interrupted_consumer_with_lanes():
    """Where it shares shards, as lanes run: these end with it, and another one goes on (T1, T2)."""

    def walk():
        number, line = 1, None
        while line is None or line.came:
            world = LogWorld(orders=3, lease=timedelta(milliseconds=200), concurrency=2)
            consumer = world.consumer()
            with at_a_line(number, interrupting, _sharing) as line, suppress(Interrupted):
                consumer.once()
            lanes = [each for each in threading.enumerate() if "sharedlog-lane" in each.name]
            assert not lanes, line
            (consumer if number % 2 else world.consumer()).once()
            world.check()
            world.log.close()
            number += 4
        return number

    assert bounded(walk, 60) > 80


def _around(file, _):
    return file.endswith("/_consumer/consumer.py")


def test_an_interrupt_as_a_run_ends(tmp_path):
    """The same consumer runs again, at once; if it does not, its shards are free (T1, T2)."""

    def interrupted(number, again=True):
        world = World(tmp_path / f"{number}-{again}", 1, lease=timedelta(milliseconds=200))
        consumer = world.consumer()
        with at_a_line(number, interrupting, _around) as line, suppress(Interrupted):
            consumer.once()
        if not again:
            until(lambda: not any("consumer-" in each.name for each in threading.enumerate()), line)
            consumer = world.consumer()
        assert consumer.once() is not None, line
        world.check()
        world.log.close()
        return line

    def walk():
        whole = interrupted(1000)
        for number in range(whole.seen - 12, whole.seen + 1):
            assert interrupted(number).came
            assert interrupted(number, again=False).came

    assert bounded(lambda: [walk()], 60)
