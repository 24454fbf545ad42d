"""A snapshot: a shard's state as of one moment, beside the log's entries (DESIGN-LOG §14, T4).

Kept in the log, for the shard TAG of the consumer NAME:

- ``state/NAME/TAG/snapshot``: the newest one, and through which LSN it has all changes;
- ``state/NAME/TAG/piece/ID/N``: its pieces, and those of one that is being written;
- ``state/NAME/TAG/writing``: of that one how many pieces there are.

It is written aside, a piece at a time, under the shard's fence; then one step names it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, cast

from sharedlog._core.commit import Commit, Condition, Put, Refused
from sharedlog._core.consumer.names import state_key
from sharedlog._core.consumer.state import Item, packed, pieces, unpacked
from sharedlog._core.errors import CorruptLog
from sharedlog._core.fences import Fence, check_fence, condition_of, fence_key
from sharedlog._core.sealing import Seals
from sharedlog._core.steps import Get, Rule

_PIECE_BYTES = 256 << 10
# Pieces that one step reads, or removes.
_READ, _REMOVED = 8, 32
_VALUE = struct.Struct(">BQQQQ")
_WRITING = struct.Struct(">QQ")
_VERSION = 1


class StateSnapshot(NamedTuple):
    """``id``: of its pieces; ``through``: the LSN; ``size``: of its keys and values."""

    id: int = 0
    through: int = 0
    pieces: int = 0
    size: int = 0


def snapshot_key(name: str, tag: str) -> str:
    """Return the key that names a shard's newest snapshot."""
    return state_key(name, tag, "snapshot")


def piece_key(name: str, tag: str, of: int, at: int) -> str:
    """Return the key of a snapshot's piece."""
    return state_key(name, tag, f"piece/{of}/{at}")


def written(snapshot: StateSnapshot) -> bytes:
    """Return what the key gets."""
    return _VALUE.pack(_VERSION, *snapshot)


def snapshot_of(value: bytes | None) -> StateSnapshot | None:
    """Return what the key says; None: there is no state yet, not even an empty one."""
    if value is None:
        return None
    if len(value) != _VALUE.size or value[0] != _VERSION:
        raise CorruptLog("what is kept of a consumer's snapshot is not what was written")
    return StateSnapshot(*_VALUE.unpack(value)[1:])


def read_snapshot(name: str, tag: str) -> Rule[StateSnapshot | None]:
    """Return what names a shard's newest snapshot."""
    key = snapshot_key(name, tag)
    return snapshot_of((yield Get((key,)))[key])


def load(
    name: str, tag: str, snapshot: StateSnapshot, seals: Seals | None
) -> Rule[dict[str, bytes]]:
    """Return the table of a snapshot; ``CorruptLog``: a piece is not there, or no longer."""
    table: dict[str, bytes | None] = {}
    for first in range(0, snapshot.pieces, _READ):
        most = min(first + _READ, snapshot.pieces)
        keys = [piece_key(name, tag, snapshot.id, at) for at in range(first, most)]
        found = yield Get(tuple(keys))
        for key in keys:
            value = found[key]
            if value is None:
                raise CorruptLog(f"{key}, a piece of a consumer's snapshot, is not there")
            table.update(zip(*unpacked(value, seals, key), strict=True))
    # Nothing in a snapshot was removed.
    return cast("dict[str, bytes]", table)


class Writer:
    """Writes one snapshot, a piece at a time. What it writes stays as it was at the beginning."""

    def __init__(
        self,
        name: str,
        tag: str,
        before: StateSnapshot,
        table: dict[str, bytes],
        through: int,
        size: int,
        seals: Seals | None,
    ) -> None:
        """``before``: the newest one that there is; ``size``: of the table."""
        self._name = name
        self._tag = tag
        self._before = before
        self._snapshot = StateSnapshot(before.id + 1, through, 0, size)
        self._seals = seals
        # Not a list of pairs, which takes several times as long.
        items = zip(list(table), list(table.values()), strict=True)
        self._pieces = pieces(items, _PIECE_BYTES)
        # What is being written: until it was answered it is written again.
        self._piece: list[Item] | None = None
        self._begun = self._named = False
        # What is kept of what is being written.
        self._writing: bytes | None = None

    def write(self, fence: Fence) -> Rule[StateSnapshot | None]:
        """Write on, by a step or two; None: there is more to do. Raises ``Fenced``."""
        name, tag, snapshot = self._name, self._tag, self._snapshot
        if not self._begun:
            yield from clear(name, tag, fence)
            self._begun = True
        if self._piece is None:
            self._piece = next(self._pieces, None)
        if self._piece is not None:
            writing = _WRITING.pack(snapshot.id, snapshot.pieces + 1)
            key = piece_key(name, tag, snapshot.id, snapshot.pieces)
            yield from _under(
                fence,
                self._follows(),
                Put(key, packed(self._piece, self._seals, key)),
                Put(_writing(name, tag), writing),
            )
            self._writing = writing
            self._snapshot = snapshot._replace(pieces=snapshot.pieces + 1)
            self._piece = None
            return None
        if not self._named:
            # The written one gets the name, and the one before must be removed.
            yield from _under(
                fence,
                self._follows(),
                Put(snapshot_key(name, tag), written(snapshot)),
                Put(_writing(name, tag), _WRITING.pack(self._before.id, self._before.pieces)),
            )
            self._named = True
            return None
        yield from clear(name, tag, fence)
        return snapshot

    def _follows(self) -> tuple[Condition, ...]:
        """What a step follows: a copy of one, that comes late, changes nothing."""
        return (
            Condition(snapshot_key(self._name, self._tag), written(self._before)),
            Condition(_writing(self._name, self._tag), self._writing),
        )


def name_snapshot(
    name: str, tag: str, snapshot: StateSnapshot, fence: Fence, before: StateSnapshot | None
) -> Rule[None]:
    """Name an empty snapshot, or one that has all changes through another LSN, by now.

    ``before``: the newest that there is.
    """
    key = snapshot_key(name, tag)
    follows = Condition(key, None if before is None else written(before))
    yield from _under(fence, (follows,), Put(key, written(snapshot)))


def clear(name: str, tag: str, fence: Fence) -> Rule[None]:
    """Remove the pieces that no snapshot has: of one that was not finished, or is older."""
    key = _writing(name, tag)
    value: bytes | None = (yield Get((key,)))[key]
    if value is None:
        return
    of, count = _WRITING.unpack(value)
    while count:
        least = max(0, count - _REMOVED)
        gone = [Put(piece_key(name, tag, of, at), None) for at in range(least, count)]
        count, follows = least, Condition(key, value)
        value = _WRITING.pack(of, count)
        yield from _under(fence, (follows,), *gone, Put(key, value))
    yield from _under(fence, (Condition(key, value),), Put(key, None))


def _under(fence: Fence, follows: tuple[Condition, ...], *puts: Put) -> Rule[None]:
    try:
        yield Commit((*follows, condition_of(fence)), puts)
    except Refused as refused:
        check_fence(fence, refused.found[fence_key(fence.name)])
        raise


def _writing(name: str, tag: str) -> str:
    return state_key(name, tag, "writing")
