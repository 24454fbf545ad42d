"""Verification of a whole log: what is wrong with it is found before a replica finds it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from curp.log._commits import GroupLog
from curp.log._errors import CorruptLog, TrimmedLog
from curp.log._values import Leadership, LogEntry


class Verification(NamedTuple):
    """What there is in a log that was found whole. Sizes are of bodies and chunks."""

    first: int
    tail: int
    entries: int
    entry_bytes: int
    # How many entries carry each tag.
    tags: dict[str, int]
    snapshot_lsn: int | None
    snapshot_chunks: int
    snapshot_bytes: int
    leadership: Leadership | None


def _nothing() -> None:
    """Do nothing between two reads."""


def verify(engine: GroupLog, *, between: Callable[[], None] = _nothing) -> Verification:
    """Read everything up to the tail found at the start; may run beside a leader.

    Raises ``CorruptLog`` for damaged keys, a missing or damaged entry, an index of tags, a first
    or last LSN that say otherwise than the entries, a damaged snapshot, or one that does not reach
    the oldest entry. What is trimmed or replaced meanwhile is left out. ``between`` is called
    before each read of entries.
    """
    engine.check_keys()
    tail = engine.tail()
    lsn, chunks, size = _snapshot(engine)
    first = engine.first()
    engine.all_metadata()
    if first > 1 and (lsn is None or lsn + 1 < first):
        raise CorruptLog(f"the log begins at {first}, and no snapshot reaches it")
    carried: dict[str, list[int]] = {}
    sizes: Counter[str] = Counter()
    position = first - 1
    while position < tail:
        between()
        try:
            found = engine.read(position)
        except TrimmedLog as error:
            position, carried, sizes = error.first - 1, {}, Counter()
            first = error.first
            continue
        for entry in found:
            if entry.lsn <= tail:
                _count(entry, carried, sizes)
        position = found[-1].lsn
    # An engine that has read the last entry finds whether the log names that one as its end.
    engine.tail()
    for tag, lsns in carried.items():
        _check_tag(engine, tag, lsns, tail, between)
    return Verification(
        first,
        tail,
        sizes["entries"],
        sizes["bytes"],
        {tag: len(lsns) for tag, lsns in sorted(carried.items())},
        lsn,
        chunks,
        size,
        engine.leadership(),
    )


def _snapshot(engine: GroupLog) -> tuple[int | None, int, int]:
    while True:
        snapshot = engine.load_snapshot()
        if snapshot is None:
            return None, 0, 0
        try:
            sizes = [len(chunk) for chunk in snapshot.chunks]
        except TrimmedLog:
            continue
        return snapshot.lsn, len(sizes), sum(sizes)


def _count(entry: LogEntry, carried: dict[str, list[int]], sizes: Counter[str]) -> None:
    sizes["entries"] += 1
    sizes["bytes"] += len(entry.body)
    for tag in entry.tags:
        carried.setdefault(tag, []).append(entry.lsn)


def _check_tag(
    engine: GroupLog, tag: str, lsns: list[int], tail: int, between: Callable[[], None]
) -> None:
    position, left = lsns[0] - 1, set(lsns)
    while position < tail:
        between()
        try:
            found = engine.read(position, tag=tag)
        except TrimmedLog as error:
            position = error.first - 1
            left = {lsn for lsn in left if lsn > position}
            continue
        if not found:
            break
        position = found[-1].lsn
        left -= {entry.lsn for entry in found}
    if left:
        raise CorruptLog(f"entry {min(left)} is not listed under its tag {tag!r}")
