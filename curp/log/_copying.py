"""Moving a stopped group's log to another engine, verified (``curp log copy``)."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from typing import NamedTuple

from curp.log._addresses import shown_whole
from curp.log._commits import GroupLog
from curp.log._creation import log_id
from curp.log._errors import (
    CorruptLog,
    InvalidRequest,
    LogError,
    LogExists,
    NoSuchLog,
    UnfinishedCopy,
)
from curp.log._opening import group_of, open_in_any_state, open_new
from curp.log._states import COPY_KEY, MOVED_KEY, MovedPlace, place_in
from curp.log._values import LogEntry, NewLog, NewLogEntry
from curp.log._verification import verify

# Renewed between two pieces, each of which takes far less.
_TERM_S = 60.0
_PIECE_ENTRIES = 1000
_PIECE_BYTES = 4 << 20
# What a body is weighed with, for its tags and what an engine adds.
_ENTRY_BYTES = 256


class Copied(NamedTuple):
    """What was moved; ``configuration`` is above every number that the old log gave."""

    log: int
    first: int
    tail: int
    entries: int
    snapshot_lsn: int | None
    configuration: int


def _goes_on() -> None:
    """Let the copy go on."""


def copy_log(source: str, target: str, *, check: Callable[[], None] = _goes_on) -> Copied:
    """Move the log at one URL to another, if there is none there. Raises a ``LogError``.

    ``check`` is called between any two pieces until the source is given up; what it raises
    breaks the copy off.

    Refused (``LeaseHeld``) while a leader's lease runs: the copy holds the lease itself
    then, so that no leader appends. The log keeps its id, entries with their LSNs and tags,
    metadata and newest snapshot; its configuration number only grows. So witnesses know
    the group, and the next leader recovers from them what only they hold.

    Invariant: at most one of the two can be served from. The target cannot be opened
    until everything was read back and compared, and the source not from just before on
    (``LogMoved``). What broke off before that leaves the source as it was, and a
    target that cannot be opened, nor copied to (``UnfinishedCopy``); after that, the same
    copy asked again finishes it.
    """
    if group_of(source) != group_of(target):
        raise InvalidRequest("both URLs name the same group: its witnesses know it by that name")
    with ExitStack() as stack:
        old = stack.enter_context(closing(open_in_any_state(source)))
        moved = place_in(old, MOVED_KEY)
        if moved is not None:
            return _finish(old, moved, target)
        if place_in(old, COPY_KEY) is not None:
            raise InvalidRequest("that log is itself a copy that was not finished")
        name = f"curp log copy/{secrets.token_hex(4)}"
        held = _Held(old, name, check)
        stack.callback(held.end)
        # Nothing is appended from here on.
        found = verify(old, between=held.renew)
        place = MovedPlace(secrets.token_hex(16), shown_whole(target), time.time_ns() // 1000)
        metadata = {**old.all_metadata(), COPY_KEY: place.to_bytes()}
        new = stack.enter_context(
            closing(_made(target, NewLog(metadata, found.first - 1, held.configuration)))
        )
        taken = _Held(new, name, check)
        stack.callback(taken.end)
        _write(old, new, found.first, held, taken)
        _compare(old, new, (held, taken))
        verify(new, between=taken.renew)
        check()
        # From here on the source is not served from, ...
        old.put_metadata({MOVED_KEY: place.to_bytes()}, configuration=held.configuration)
        # ... and from here on the target may be.
        new.put_metadata({COPY_KEY: None}, configuration=taken.configuration)
        return _told(new)


def _made(target: str, new: NewLog) -> GroupLog:
    """Make the target; raises ``LogExists``, and ``UnfinishedCopy`` for what a copy left there."""
    try:
        return open_new(target, new)
    except LogExists as error:
        with closing(open_in_any_state(target)) as there:
            if place_in(there, COPY_KEY) is None:
                raise
        # The source was not given up for it: the copy is not needed.
        raise UnfinishedCopy(
            "there is the copy of another log, and was not finished: remove it, and copy again"
        ) from error


def _finish(old: GroupLog, moved: MovedPlace, target: str) -> Copied:
    """Open up a target that was whole when the copy broke off."""
    try:
        new = open_in_any_state(target)
    except NoSuchLog:
        raise moved.error() from None
    with closing(new):
        place = place_in(new, COPY_KEY)
        if place is None or place.token != moved.token:
            raise moved.error()
        held = _Held(new, f"curp log copy/{secrets.token_hex(4)}", _goes_on)
        try:
            new.put_metadata({COPY_KEY: None}, configuration=held.configuration)
        finally:
            held.end()
        return _told(new)


class _Held:
    """A lease that the copy holds, and renews while it goes on."""

    def __init__(self, engine: GroupLog, name: str, check: Callable[[], None]) -> None:
        self._engine = engine
        self._check = check
        self.configuration = engine.take_leadership(name, "", term_s=_TERM_S)
        self._renewed = time.monotonic()

    def renew(self) -> None:
        """Renew it when some of it is over. Raises ``LeadershipOver``, and what ``check`` does."""
        self._check()
        if time.monotonic() > self._renewed + _TERM_S / 4:
            self._engine.renew_leadership(self.configuration, term_s=_TERM_S)
            self._renewed = time.monotonic()

    def end(self) -> None:
        """Let it end now, if the engine can be asked."""
        try:
            self._engine.end_leadership(self.configuration)
        except LogError:
            # It ends by itself.
            return


def _write(old: GroupLog, new: GroupLog, first: int, held: _Held, taken: _Held) -> None:
    bounds, both = new.limits, (held, taken)
    most = min(_PIECE_BYTES, bounds.append_bytes)
    tail, entries = first - 1, min(_PIECE_ENTRIES, bounds.entries)
    for piece in _pieces(_entries(old, tail, both), entries, most):
        tail = new.append(
            [NewLogEntry(entry.body, entry.tags) for entry in piece],
            configuration=taken.configuration,
            expected_tail=tail,
            append_id=os.urandom(16),
        )
    snapshot = old.load_snapshot()
    if snapshot is not None:
        chunks = _renewing(snapshot.chunks, both)
        new.save_snapshot(snapshot.lsn, chunks, configuration=taken.configuration)


def _compare(old: GroupLog, new: GroupLog, held: Iterable[_Held]) -> None:
    """Read both to the end; raises ``CorruptLog`` for the first thing that differs."""
    if (old.first(), old.tail()) != (new.first(), new.tail()):
        raise CorruptLog("the copy does not begin and end where the log does")
    after = old.first() - 1
    pairs = zip(_entries(old, after, held), _entries(new, after, held), strict=True)
    for one, other in pairs:
        if one != other:
            raise CorruptLog(f"entry {one.lsn} of the copy differs")
    there, here = old.load_snapshot(), new.load_snapshot()
    if there is None or here is None:
        if there is not here:
            raise CorruptLog("the copy lacks the snapshot")
    elif there.lsn != here.lsn:
        raise CorruptLog("the snapshot of the copy is another one")
    else:
        for chunk, copied in zip(there.chunks, _renewing(here.chunks, held), strict=True):
            if chunk != copied:
                raise CorruptLog("the snapshot of the copy differs")
    kept = new.all_metadata()
    del kept[COPY_KEY]
    if old.all_metadata() != kept:
        raise CorruptLog("the metadata of the copy differs")


def _told(new: GroupLog) -> Copied:
    first, tail, snapshot = new.first(), new.tail(), new.load_snapshot()
    return Copied(
        log_id(new),
        first,
        tail,
        tail - first + 1,
        None if snapshot is None else snapshot.lsn,
        _number(new),
    )


def _entries(engine: GroupLog, after: int, held: Iterable[_Held]) -> Iterator[LogEntry]:
    while found := engine.read(after):
        for each in held:
            each.renew()
        yield from found
        after = found[-1].lsn


def _pieces(entries: Iterable[LogEntry], count: int, most: int) -> Iterator[list[LogEntry]]:
    piece: list[LogEntry] = []
    size = 0
    for entry in entries:
        weight = _weight(entry)
        if piece and (len(piece) == count or size + weight > most):
            yield piece
            piece, size = [], 0
        piece.append(entry)
        size += weight
    if piece:
        yield piece


def _weight(entry: LogEntry) -> int:
    return len(entry.body) + sum(len(tag.encode()) for tag in entry.tags) + _ENTRY_BYTES


def _renewing(chunks: Iterable[bytes], held: Iterable[_Held]) -> Iterator[bytes]:
    for chunk in chunks:
        for each in held:
            each.renew()
        yield chunk


def _number(engine: GroupLog) -> int:
    leadership = engine.leadership()
    return 0 if leadership is None else leadership.configuration
