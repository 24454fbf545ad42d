"""``effects.savepoint()``: database and outputs, undone together (DESIGN-LOG §14, T1, T2)."""

import asyncio

import pytest

from sharedlog import InvalidRequest
from sharedlog.testing import drain
from tests.helpers.log_servers import shared_postgres, shared_redis
from tests.sharedlog.consumer.test_left_running import PLACES, log, noting, place

__all__ = ["log", "place", "shared_postgres", "shared_redis"]


class Undo(Exception):
    """Leaves a savepoint."""


def outputs(log):
    return [each.text for each in log.read("out", 0)]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_what_an_exception_leaves_is_undone_with_its_outputs(place, log, is_async):
    """And what is before, behind and in a block that is left well stands."""

    def write(effects, what):
        place.write(effects, what)
        effects.publish("out", what)

    def undone(order, effects):
        with effects.savepoint():
            write(effects, f"{order} undone")
            with effects.savepoint():
                write(effects, f"{order} inner")
            raise Undo

    async def undone_async(order, effects):
        async with effects.savepoint():
            write(effects, f"{order} undone")
            async with effects.savepoint():
                write(effects, f"{order} inner")
            raise Undo

    def note(order, effects):
        write(effects, f"{order} before")
        with effects.savepoint():
            write(effects, f"{order} within")
            with pytest.raises(Undo):
                undone(order, effects)
        write(effects, f"{order} behind")

    async def note_async(order, effects):
        write(effects, f"{order} before")
        async with effects.savepoint():
            write(effects, f"{order} within")
            with pytest.raises(Undo):
                await undone_async(order, effects)
        write(effects, f"{order} behind")

    drain(noting(place, log, note_async if is_async else note))
    expected = [
        f"{order} {what}"
        for order in ("one", "two", "three")
        for what in ("before", "within", "behind")
    ]
    assert place.notes() == sorted(expected)
    assert outputs(log) == expected


@pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)
def test_a_statement_that_fails_in_a_savepoint_is_caught_outside(place, log):
    """PostgreSQL's transaction goes on then, too."""

    def note(order, effects):
        try:
            with effects.savepoint():
                effects.publish("out", "undone")
                effects.connection.execute("INSERT INTO missing VALUES (1)")
        except Exception:  # noqa: BLE001 - of either driver
            place.write(effects, f"{order} caught")

    drain(noting(place, log, note))
    assert place.notes() == ["one caught", "three caught", "two caught"]
    assert outputs(log) == []


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_two_tasks_are_not_in_savepoints_at_once(place, log):
    """One of them would undo the other; what is left open fails its message."""
    refused = []

    async def note(order, effects):
        entered = asyncio.Event()

        async def first():
            async with effects.savepoint():
                place.write(effects, order)
                entered.set()
                await asyncio.sleep(0)

        async def second():
            await entered.wait()
            with pytest.raises(InvalidRequest, match="another task"):
                effects.savepoint().__enter__()
            refused.append(order)

        await asyncio.gather(first(), second())

    drain(noting(place, log, note))
    assert place.notes() == ["one", "three", "two"]
    assert refused == ["one", "two", "three"]


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_a_savepoint_that_is_left_open_fails_its_message(place, log):
    """Nothing of it is there, and its neighbours are."""
    log.stream("dead", substreams=1)
    kept = []

    def note(order, effects):
        place.write(effects, order)
        effects.publish("out", order)
        if order == "two":
            kept.append(effects.savepoint())
            kept[-1].__enter__()

    drain(noting(place, log, note, attempts=1, dead_letters="dead"))
    assert place.notes() == ["one", "three"]
    assert outputs(log) == ["one", "three"]
    (dead,) = log.read("dead", 0)
    assert b"savepoint() open" in dead.headers["dead-letter-error"]
