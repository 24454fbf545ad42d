"""Model of the world: a log's engine as one process has it, each step a request."""

from __future__ import annotations

from typing import Any

from chaos.sim.consumer.names import TAGS
from chaos.sim.consumer.stage import Acting, Stage
from chaos.sim.faults import Point
from sharedlog._core.commit import Commit
from sharedlog._core.entry import EntryKind, Row, read_row
from sharedlog._core.steps import Ends, Get, Lsns, Read, Remove, Rows, Scan, Step
from sharedlog._engines.engine import Limits

__all__ = ["SimulatedEngine"]

# What an append of a log has is little, so that outputs are often more.
LIMITS = Limits(entries=10, append_bytes=1 << 20, operations=20_000)
# Virtual time stands still where a wait is shorter.
_LEAST_S = 0.0005


class SimulatedEngine:
    """See ``Engine``; the strand that asks parks. A request that is lost is ``LogUnavailable``."""

    durability = "that of a simulated server"
    limits = LIMITS

    def __init__(self, cast: Stage, actor: Acting) -> None:
        self._cast = cast
        self._actor = actor

    def commit(self, commit: Commit) -> Lsns:
        """See ``Engine``."""
        found: Lsns = self._asked(commit, _point(commit))
        return found

    def get(self, keys: tuple[str, ...]) -> dict[str, bytes | None]:
        """See ``Engine``."""
        found: dict[str, bytes | None] = self._asked(Get(keys), Point.LOOKING)
        return found

    def scan(self, prefix: str) -> dict[str, bytes]:
        """See ``Engine``."""
        found: dict[str, bytes] = self._asked(Scan(prefix), Point.LOOKING)
        return found

    def damaged(self) -> list[str]:
        """See ``Engine``."""
        return []

    def remaining(self, key: str) -> float:
        """See ``Engine``."""
        return self._cast.server.log.remaining(key)

    def read(self, after: int, limit: int, tag: str | None = None) -> Rows:
        """See ``Engine``."""
        point = Point.FOLLOWING if tag not in TAGS else self._actor.reading(tag)
        found: Rows = self._asked(Read(after, limit, tag), point)
        return found

    def tail(self) -> int:
        """See ``Engine``."""
        found: Lsns = self._asked(Ends(), Point.FOLLOWING)
        return found.last

    def first(self) -> int:
        """See ``Engine``."""
        found: Lsns = self._asked(Ends(), Point.FOLLOWING)
        return found.first

    def wait(self, after: int, timeout_s: float) -> int:
        """See ``Engine``: woken by what is appended."""
        cast, strand = self._cast, self._cast.strands.current
        process = strand.process
        if cast.server.log.tail <= after and timeout_s > 0:
            wake = strand.waker()
            cast.wakers.append(lambda: process.after(_LEAST_S, wake, None, None))
            process.after(max(timeout_s, _LEAST_S), wake, None, None)
            strand.park()
        else:
            # No strand looks twice in one moment.
            strand.sleep(_LEAST_S)
        return cast.server.log.tail

    def remove(self, through: int) -> None:
        """See ``Engine``."""
        self._asked(Remove(through), Point.TRIMMING)

    def close(self) -> None:
        """See ``Engine``."""

    def _asked(self, step: Step, point: Point) -> Any:
        strand = self._cast.strands.current
        with self._actor.at(point):
            if not strand.dead:
                self._cast.server.ask(strand.process, step, point, strand.waker())
                self._cast.reached(self._actor, point)
            return strand.park()


def _point(commit: Commit) -> Point:
    """What a commit of a consumer is for."""
    if commit.entries:
        first = commit.entries[0]
        return _OF_ENTRIES[read_row(Row(1, first.body, first.tags, 0)).kind]
    keys = [each.key for each in commit.puts]
    kinds = {each.partition("/")[0] for each in keys}
    if "fence" in kinds:
        return Point.FENCING
    if "hold" in kinds:
        return Point.HOLDING_ON
    if "state" in kinds:
        return Point.STATE
    if any("/member/" in each for each in keys):
        return Point.MEMBER
    return Point.GRANTING if "producer" in kinds else Point.SHARING


_OF_ENTRIES = {
    EntryKind.PENDING: Point.PENDING,
    EntryKind.COMMITTED: Point.NAMED,
    EntryKind.MARKER: Point.MARKER,
    EntryKind.ROLLBACK: Point.RETIRING,
}
