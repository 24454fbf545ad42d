"""Snapshots: piece by piece under keys of their own, in force all at once."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator

from curp.log import _checks as checks
from curp.log._commits.keys import (
    CONFIGURATION,
    GONE,
    SAVING,
    SNAPSHOT,
    KeptSnapshot,
    current,
    read_number,
)
from curp.log._errors import CorruptLog, LogFull, LogStopped, LogUnavailable, TrimmedLog
from curp.log._values import Snapshot
from sharedlog._core.commit import Commit, Condition, Put, Refused
from sharedlog._engines.engine import Engine

PIECE_BYTES = 512 << 10
# In front of a piece: whether the chunk ends with it.
_GOES_ON, _ENDS = b"\0", b"\1"


def cut(chunk: bytes) -> Iterator[bytes]:
    """Cut a chunk into pieces, at least one."""
    for start in range(0, max(1, len(chunk)), PIECE_BYTES):
        last = start + PIECE_BYTES >= len(chunk)
        yield (_ENDS if last else _GOES_ON) + bytes(chunk[start : start + PIECE_BYTES])


def join(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Put the chunks of a snapshot together again; raises ``CorruptLog``."""
    parts: list[bytes] = []
    for piece in pieces:
        parts.append(piece[1:])
        if piece[:1] == _ENDS:
            yield b"".join(parts)
            parts = []
    if parts:
        raise CorruptLog("the snapshot's last chunk has no end")


_AT_ONCE = 4
_ROUNDS = 20


class Snapshots:
    """A group's snapshots in an engine.

    Each step is conditional on the configuration number. ``saving`` says how many pieces
    there are, so that what a save that broke off leaves behind is removed by the next one.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def save(self, lsn: int, chunks: Iterable[bytes], configuration: int) -> None:
        """Write the pieces beside the older snapshot, then put them in its place."""
        saving = self._begin(lsn, configuration)
        for chunk in chunks:
            checks.check_chunk(chunk)
            for piece in cut(chunk):
                saving = self._write(saving, piece, configuration)
        self._finish(saving, configuration)
        self._clean()

    def load(self) -> Snapshot | None:
        """Return the newest whole snapshot; its chunks are read when asked for."""
        kept = KeptSnapshot.read(self._engine.get((SNAPSHOT,))[SNAPSHOT])
        return None if kept is None else Snapshot(kept.lsn, join(self._pieces(kept)))

    def _pieces(self, kept: KeptSnapshot) -> Iterator[bytes]:
        for start in range(0, kept.pieces, _AT_ONCE):
            places = range(start, min(start + _AT_ONCE, kept.pieces))
            found = self._engine.get((SNAPSHOT, *map(kept.piece, places)))
            first = self._engine.first() if found[SNAPSHOT] != kept.value() else 0
            if first:
                raise TrimmedLog(f"a newer snapshot took the place of the one at {kept.lsn}", first)
            for place in places:
                piece = found[kept.piece(place)]
                if piece is None:
                    raise CorruptLog(f"the snapshot at {kept.lsn} lacks its piece {place}")
                yield piece

    def _begin(self, lsn: int, configuration: int) -> KeptSnapshot:
        saving = KeptSnapshot(secrets.token_hex(16), lsn, 0)
        for _ in range(_ROUNDS):
            found = self._found(configuration)
            newest = KeptSnapshot.read(found[SNAPSHOT])
            checks.check_snapshot(lsn, newest and newest.lsn, self._engine.tail())
            puts = [Put(SAVING, saving.value())]
            # What a save that broke off has left.
            old = KeptSnapshot.read(found[SAVING])
            if old is not None:
                puts.append(Put(old.gone, old.value()))
            conditions = (current(configuration), Condition(SAVING, found[SAVING]))
            try:
                self._engine.commit(Commit(conditions, tuple(puts)))
            except Refused:
                continue
            self._clean()
            return saving
        raise LogUnavailable("other snapshots are begun at the same time")

    def _write(self, saving: KeptSnapshot, piece: bytes, configuration: int) -> KeptSnapshot:
        """Write the next piece; return what is there then."""
        more = saving._replace(pieces=saving.pieces + 1)
        step = Commit(
            (current(configuration), Condition(SAVING, saving.value())),
            (Put(saving.piece(saving.pieces), piece), Put(SAVING, more.value())),
        )
        try:
            self._again(step)
        except Refused as refused:
            if refused.found[SAVING] != more.value():
                self._found(configuration)
                raise LogUnavailable("another snapshot was begun meanwhile") from None
            # It was done, and its reply was lost.
        return more

    def _finish(self, saving: KeptSnapshot, configuration: int) -> None:
        for _ in range(_ROUNDS):
            found = self._found(configuration)
            old = KeptSnapshot.read(found[SNAPSHOT])
            if old is not None and old.id == saving.id:
                return
            checks.check_snapshot(saving.lsn, old and old.lsn, self._engine.tail())
            if found[SAVING] != saving.value():
                raise LogUnavailable("another snapshot was begun meanwhile")
            puts = [Put(SNAPSHOT, saving.value()), Put(SAVING, None)]
            if old is not None:
                puts.append(Put(old.gone, old.value()))
            conditions = (
                current(configuration),
                Condition(SAVING, saving.value()),
                Condition(SNAPSHOT, found[SNAPSHOT]),
            )
            try:
                self._again(Commit(conditions, tuple(puts)))
            except Refused:
                continue
            return
        raise LogUnavailable("other snapshots are finished at the same time")

    def _found(self, configuration: int) -> dict[str, bytes | None]:
        """Return what there is of snapshots; raises ``LeadershipOver``."""
        found = self._engine.get((CONFIGURATION, SNAPSHOT, SAVING))
        checks.require_configuration(
            configuration, read_number(CONFIGURATION, found[CONFIGURATION])
        )
        return found

    def _again(self, step: Commit) -> None:
        """Do a step; once more if its reply was lost: it is refused then, if it was done."""
        try:
            self._engine.commit(step)
        except (LogFull, LogStopped):
            raise
        except LogUnavailable:
            self._engine.commit(step)

    def _clean(self) -> None:
        """Remove the pieces of what is neither the snapshot nor being saved."""
        most = self._engine.limits.operations
        for key, value in self._engine.scan(GONE).items():
            kept = KeptSnapshot.read(value)
            pieces = () if kept is None else tuple(map(kept.piece, range(kept.pieces)))
            puts = [*(Put(piece, None) for piece in pieces), Put(key, None)]
            for start in range(0, len(puts), most):
                self._engine.commit(Commit(puts=tuple(puts[start : start + most])))
