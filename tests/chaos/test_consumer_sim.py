"""Of the simulated consumer: its world behaves as the real one (chaos/sim/consumer)."""

from __future__ import annotations

import sqlite3

from chaos.sim.consumer.run import _Run
from chaos.sim.consumer.schedule import setup_of
from chaos.sim.schedule import draw


def test_a_killed_process_leaves_no_lock_behind() -> None:
    """A store can be put back at once: a kernel closes what a process has open as it ends."""
    drawn = (draw("consumer", seed) for seed in range(1, 100))
    schedule = next(each for each in drawn if setup_of(each).store == "sqlite")
    run = _Run(schedule.only(None, ()), tracing=False)
    database, loop = run.cast.database, run.cast.loop
    other = database.connect(sqlite3.Connection)

    def locked() -> bool:
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        other.execute("ROLLBACK")
        return False

    for actor in run.actors:
        actor.start()
    for call in schedule.calls:
        loop.at(call.at, None, run.writers[call.client].call, call)
    loop.run(60.0, locked)
    assert locked()
    database.backup()
    run._restore()
    assert not locked()
    other.close()
    run.close()
