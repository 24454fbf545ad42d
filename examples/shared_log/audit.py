"""The audit: what followers have in their databases, compared with what was to be published."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from examples.shared_log.work import work_of

__all__ = ["Audit", "audit"]


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What was counted. ``torn``: transactions of which some messages were followed, not all."""

    published: int
    followed: int
    lost: int
    doubled: int
    torn: int
    reordered: int
    never_published: int
    longest_gap_s: float


def audit(publishers: Sequence[str], count: int, views: Mapping[Path, str]) -> Audit:
    """Count; ``views``: each follower's database, and the stream that it followed."""
    expected: dict[str, Counter[tuple[str, int, int]]] = defaultdict(Counter)
    for publisher in publishers:
        for seq in range(1, count + 1):
            for place, message in enumerate(work_of(publisher, seq).messages):
                expected[message.stream][publisher, seq, place] += 1
    lost = doubled = unknown = followed = reordered = 0
    longest_gap_s = 0.0
    # Of each transaction and kind of follower, how many messages were seen.
    parts: dict[Path, Counter[tuple[str, int]]] = {}
    orders: dict[str, list[dict[int, list[str]]]] = defaultdict(list)
    for path, stream in views.items():
        rows = _rows(path)
        found: Counter[tuple[str, int, int]] = Counter()
        order: dict[int, list[str]] = defaultdict(list)
        newest: dict[tuple[int, str], tuple[int, int]] = {}
        for substream, text, _ in rows:
            publisher, seq, place = _named(text)
            found[publisher, seq, place] += 1
            order[substream].append(text)
            before = newest.get((substream, publisher), (0, 0))
            reordered += (seq, place) < before
            newest[substream, publisher] = (seq, place)
        known = expected[stream]
        lost += sum((known - found).values())
        doubled += sum(each - 1 for name, each in found.items() if name in known)
        unknown += sum(each for name, each in found.items() if name not in known)
        followed += len(rows)
        parts[path] = Counter((publisher, seq) for publisher, seq, _ in found)
        orders[stream].append(order)
        times = [at for _, _, at in rows]
        gaps = [after - before for before, after in pairwise(times)]
        longest_gap_s = max([longest_gap_s, *gaps])
    for followers in orders.values():
        # All followers of one stream see one order.
        reordered += sum(each != followers[0] for each in followers[1:])
    return Audit(
        published=sum(each.total() for each in expected.values()),
        followed=followed,
        lost=lost,
        doubled=doubled,
        torn=_torn(publishers, count, views, parts),
        reordered=reordered,
        never_published=unknown,
        longest_gap_s=longest_gap_s,
    )


def _torn(
    publishers: Sequence[str],
    count: int,
    views: Mapping[Path, str],
    parts: Mapping[Path, Counter[tuple[str, int]]],
) -> int:
    """Count transactions of which a follower has a part, and not all that is in its stream."""
    torn = 0
    for publisher in publishers:
        for seq in range(1, count + 1):
            whole = Counter(each.stream for each in work_of(publisher, seq).messages)
            seen = {path: parts[path][publisher, seq] for path in views}
            some = any(seen.values())
            torn += some and any(seen[path] != whole[stream] for path, stream in views.items())
    return torn


def _rows(path: Path) -> list[tuple[int, str, float]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(
            "SELECT substream, text, at FROM effect ORDER BY number"
        ).fetchall()
    finally:
        connection.close()


def _named(text: str) -> tuple[str, int, int]:
    """Return publisher, seq and place; for an unknown text, values that no publisher sends."""
    words = text.split(" ")
    try:
        return words[0], int(words[1]), int(words[2])
    except (IndexError, ValueError):
        return text, 0, 0
