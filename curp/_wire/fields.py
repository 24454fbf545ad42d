"""The fields that entries, snapshots and metadata share: client ids and ranges of seqs."""

from __future__ import annotations

from collections.abc import Sequence

from curp.log._errors import CorruptLog

# The version of entries and snapshots; what a newer program wrote may have another.
VERSION = 1
UINT64 = (1 << 64) - 1


def signed(client_id: int) -> int:
    """Read a client id: a namespace of plain keys is below 0."""
    return client_id - (1 << 64) if client_id >> 63 else client_id


def packed_ranges(first_incomplete: int, ranges: Sequence[tuple[int, int]]) -> list[int]:
    """Return what stands for acknowledged ranges: the gap before each, and its length."""
    pairs: list[int] = []
    position = first_incomplete
    for first, last in ranges:
        pairs += (first - position, last + 1 - first)
        position = last + 1
    return pairs


def ranges(first_incomplete: int, pairs: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Read them; ``CorruptLog`` for what are no pairs."""
    if len(pairs) % 2:
        raise CorruptLog("acknowledged ranges are not in pairs")
    ranges = []
    position = first_incomplete
    for at in range(0, len(pairs), 2):
        first = position + pairs[at]
        position = first + pairs[at + 1]
        ranges.append((first, position - 1))
    return tuple(ranges)
