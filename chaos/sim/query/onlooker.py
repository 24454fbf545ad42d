"""Oracle: an onlooker of queries, who sees who appends and who is in, when it happens."""

from __future__ import annotations

from dataclasses import dataclass, field

from chaos.sim.log.onlooker import Asked, Onlooker
from sharedlog._core.commit import Commit
from sharedlog._core.entry import EntryKind, read_row
from sharedlog._core.query.state import PLANS, QUERIES, PlanState, by_name, query_of
from sharedlog._core.query.tasks import TASKS
from sharedlog._engines.memory import MemoryLog

__all__ = ["QueryOnlooker"]

_NAMES = by_name("")


@dataclass
class QueryOnlooker(Onlooker):
    """Sees each commit that happens."""

    # Runs of each query, in the order in which they were in first.
    runs: dict[str, list[str]] = field(default_factory=dict)
    # The last plan that was drawn until a name was forgotten, or a write's removed.
    gone: dict[str, int] = field(default_factory=dict)

    def look(self, asked: Asked, commit: Commit, log: MemoryLog, before: int, now: float) -> None:
        """See what a commit did; ``before``: the tail until then."""
        super().look(asked, commit, log, before, now)
        for row in log.rows[len(log.rows) - (log.tail - before) :]:
            entry = read_row(row)
            if entry.kind is EntryKind.PENDING and entry.name.startswith(_NAMES):
                self._see_append(entry.name.removeprefix(_NAMES), entry.producer, log)
        for put in commit.puts:
            if put.key.startswith(QUERIES):
                self._see_row(put.key.removeprefix(QUERIES), asked.process.name, log)

    def _see_append(self, name: str, producer: int, log: MemoryLog) -> None:
        """Check that a task that appends is in: its plan is open, and has that task."""
        value = log.keys.get(QUERIES + name)
        query = None if value is None else query_of(name, value)
        mine = None if query is None else f"{TASKS}{name}/{query.plan}/{producer}"
        if query is None or query.state is not PlanState.OPEN or mine not in log.keys:
            self.problems.append(f"late: producer {producer} of {name} appends, and is not in")

    def _see_row(self, name: str, who: str, log: MemoryLog) -> None:
        """A name that is gone is begun anew by plans that were drawn since, or not at all."""
        value = log.keys.get(QUERIES + name)
        query = None if value is None else query_of(name, value)
        if query is None or query.forgotten:
            self.gone[name] = self.raised[PLANS][-1][0]
        elif query.plan <= self.gone.get(name, 0):
            self.problems.append(f"late: {who} begins {name} anew, with plan {query.plan}")
        else:
            self._see_run(name, query.run)

    def _see_run(self, name: str, run: str) -> None:
        """A run that another one followed is not in again."""
        runs = self.runs.setdefault(name, [])
        if run in runs[:-1]:
            self.problems.append(f"late: run {run} of {name} is in again")
        elif run not in runs:
            runs.append(run)
