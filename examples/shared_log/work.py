"""The work of a publisher: transactions over two streams, the same each time they are asked for."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import NamedTuple

__all__ = ["PATIENCE", "STREAMS", "SUBSTREAMS", "Published", "Work", "work_of"]

# For how long a process asks a log that does not answer, as one whose server was killed.
PATIENCE = timedelta(minutes=1)
STREAMS = ("orders", "invoices")
SUBSTREAMS = 4
_LARGE, _LARGE_EVERY = 50_000, 200


class Published(NamedTuple):
    """A message. Its text begins with publisher, seq, place and count, parted by spaces."""

    stream: str
    key: str
    text: str


class Work(NamedTuple):
    """A transaction: its messages, and whether the publisher fails once before it commits."""

    seq: int
    messages: list[Published]
    fails_first: bool


def work_of(publisher: str, seq: int) -> Work:
    """Return what a publisher commits under this number."""
    dice = Random(f"{publisher} {seq}")  # noqa: S311 - repeatable, not secret
    large = seq % _LARGE_EVERY == 0
    # Those that are larger than one append travel before they are committed.
    count = 30 if large else dice.choice((1, 1, 1, 2, 5))
    filler = "." * (_LARGE if large else 40)
    messages = [
        Published(
            STREAMS[place % len(STREAMS)],
            f"customer-{dice.randrange(50)}",
            f"{publisher} {seq} {place} {count} {filler}",
        )
        for place in range(count)
    ]
    return Work(seq, messages, fails_first=seq % 10 == 5 or seq % (2 * _LARGE_EVERY) == 0)
