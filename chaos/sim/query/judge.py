"""Oracle: what queries wrote is what one run of each would have written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from chaos.sim.log.cast import Cast
from chaos.sim.log.oracle import committed
from chaos.sim.query.driver import Driver
from chaos.sim.query.job import Job
from chaos.sim.query.parts import IN, OUT, tags_of
from sharedlog._core.entry import EntryKind, read_row
from sharedlog._core.query.state import by_name
from sharedlog._core.query.tasks import TASKS
from sharedlog._core.spans import OPEN_SPANS

__all__ = ["judge", "left_of"]

_LEFT = (OPEN_SPANS, TASKS, "open/")


def judge(cast: Cast, drivers: Sequence[Driver], jobs: Sequence[Job], rows: int) -> None:
    """Find what is wrong with the log; ``drivers``: one of each query, ``rows``: were published."""
    seen = cast.server.seen
    cast.oracle.problems.extend(seen.problems)
    found = committed(seen.rows)
    there = [each for tag in tags_of(IN) for each in found.get(tag, ())]
    if len(there) != rows:
        cast.oracle.broken("published", f"{len(there)} rows, not {rows}")
    written: dict[str, Counter[bytes]] = {}
    for tag in tags_of(OUT):
        for envelope, _ in found.get(tag, ()):
            name, _, row = envelope.partition(b" ")
            written.setdefault(name.decode(), Counter())[row] += 1
    for driver in drivers:
        read = Counter(row for row, lsn in there if not _skipped(driver, lsn))
        _compare(cast, driver.name, written.pop(driver.name, Counter()), read)
    for job in jobs:
        wanted = Counter(row.partition(b" ")[2] for row in job.rows)
        mine = written.pop(job.name, Counter())
        if job.committed or job.named or mine:
            _compare(cast, job.name, mine, wanted)
    if written:
        cast.oracle.broken("strange", f"rows of {sorted(written)}")
    _judge_markers(cast, {driver.name: driver for driver in drivers})
    for key in left_of(cast):
        cast.oracle.broken("an invariant", f"{key} is there, and its batch is over")


def left_of(cast: Cast) -> list[str]:
    """Return the keys of what tasks had, and no process decided."""
    return [key for key in cast.server.log.keys if key.startswith(_LEFT)]


def _skipped(driver: Driver, lsn: int) -> bool:
    offsets = driver.checkpoint.offsets
    batch = next((at for at, each in enumerate(offsets[1:]) if lsn <= each.lsn), None)
    return batch is not None and driver.skips(batch)


def _compare(cast: Cast, name: str, found: Counter[bytes], wanted: Counter[bytes]) -> None:
    if more := found - wanted:
        cast.oracle.broken("doubled", f"{name} has written {_some(more)} more than one run")
    if less := wanted - found:
        cast.oracle.broken("lost", f"{name} has not written {_some(less)}")


def _some(rows: Counter[bytes]) -> str:
    first = ", ".join(sorted(each.decode() for each in rows)[:5])
    return f"{rows.total()} rows ({first})"


def _judge_markers(cast: Cast, drivers: Mapping[str, Driver]) -> None:
    """Each batch has one marker at most, and they come in order."""
    names = {by_name(each): each for each in drivers}
    last: Counter[str] = Counter()
    for row in cast.server.seen.rows:
        entry = read_row(row)
        if entry.kind is not EntryKind.MARKER or entry.name not in names or entry.lsn != row.lsn:
            continue
        if entry.seq <= last[entry.name]:
            text = f"LSN {entry.lsn} is batch {entry.seq - 1} behind {last[entry.name] - 1}"
            cast.oracle.broken("twice", f"{names[entry.name]}: {text}")
        last[entry.name] = entry.seq
