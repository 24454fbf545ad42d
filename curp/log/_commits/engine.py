"""``LogEngine`` over an engine of the shared log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from curp.log import _checks as checks
from curp.log._commits import bodies
from curp.log._commits.keys import (
    CONFIGURATION,
    SNAPSHOT,
    TAIL,
    TRIMMED,
    Kept,
    Tail,
    current,
    metadata_condition,
    metadata_key,
    metadata_of,
    metadata_prefix,
    metadata_puts,
    number,
    read_number,
)
from curp.log._commits.lease import Lease
from curp.log._commits.meanings import meanings
from curp.log._commits.snapshots import Snapshots
from curp.log._engine import (
    READ_BYTES,
    READ_ENTRIES,
    EngineLimits,
    Entry,
    Leadership,
    MetadataCondition,
    NewEntry,
    Snapshot,
)
from curp.log._errors import CorruptLog, EngineUnavailable, InvalidRequest
from rifl._stores.forks import belongs_here
from sharedlog._core.commit import Commit, Condition, Put, Refused, Stamp
from sharedlog._core.entry import Row
from sharedlog._core.errors import TrimmedLog
from sharedlog._engines.engine import Engine

_ROUNDS = 20


class CommitLog:
    """One group's log in an engine of the shared log, which it owns; see ``LogEngine``.

    All that is written is one ``commit`` each, under the condition that the configuration
    number is its writer's. An append has the condition that the log ends at the very append
    that its writer knows there, so that LSNs follow, and names itself in that place: asked
    again, it is recognised there, and by its rows once others stand behind it.
    """

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``engine``: a log made with ``first_keys``. ``clock`` is this machine's."""
        self._engine = engine
        self._lease = Lease(engine, clock)
        self._snapshots = Snapshots(engine)
        entries, append_bytes, _ = engine.limits
        entries = min(entries, checks.MAX_APPEND_ENTRIES)
        self.limits = EngineLimits(
            entries,
            min(append_bytes, checks.MAX_APPEND_BYTES) - entries * bodies.HEADER_BYTES,
        )
        # The newest entry appended or read here: what follows it must follow this one.
        self._known: Tail | None = None
        belongs_here(self, "log engine")

    @property
    def durability(self) -> str:
        """See ``LogEngine``."""
        return self._engine.durability

    # Leadership.

    def leadership(self) -> Leadership | None:
        """See ``LogEngine``."""
        with meanings():
            return self._lease.leadership()

    def take_leadership(self, replica: str, address: str, *, term_s: float) -> int:
        """See ``LogEngine``."""
        checks.check_leader(replica, address, term_s)
        with meanings():
            return self._lease.take(replica, address, term_s)

    def renew_leadership(self, configuration: int, *, term_s: float) -> None:
        """See ``LogEngine``."""
        checks.check_term(term_s)
        with meanings():
            self._lease.renew(configuration, term_s)

    def end_leadership(self, configuration: int) -> None:
        """See ``LogEngine``."""
        with meanings():
            self._lease.end(configuration)

    def next_configuration(
        self, configuration: int, metadata: Mapping[str, bytes | None], *, term_s: float
    ) -> int:
        """See ``LogEngine``."""
        checks.check_term(term_s)
        checks.check_metadata(metadata)
        with meanings():
            return self._lease.next(configuration, metadata, term_s)

    # The log.

    def append(
        self,
        entries: Sequence[NewEntry],
        *,
        configuration: int,
        expected_tail: int,
        append_id: bytes,
        condition: MetadataCondition | None = None,
        metadata: Mapping[str, bytes | None] | None = None,
    ) -> int:
        """See ``LogEngine``."""
        checks.check_append(entries, expected_tail, append_id, condition, metadata)
        self._check_size(entries)
        rows = bodies.packed(append_id, entries)
        with meanings():
            known = self._at(expected_tail)
            if known is not None and configuration > 0:
                conditions = [current(configuration), known.condition()]
                if condition is not None:
                    conditions.append(metadata_condition(condition))
                step = Commit(
                    tuple(conditions),
                    (Put(TAIL, append_id, Stamp.LAST), *metadata_puts(metadata or {})),
                    rows,
                )
                try:
                    tail = self._engine.commit(step).last
                except Refused as refused:
                    found = refused.found
                else:
                    if tail != expected_tail + len(entries):
                        raise CorruptLog(f"the log went on at {tail}, not behind {expected_tail}")
                    self._known = Tail(tail, append_id)
                    return tail
            else:
                found = self._engine.get((CONFIGURATION, TAIL))
            there = Tail.read(found[TAIL])
            if self._is_there(there, expected_tail, append_id, len(entries)):
                return expected_tail + len(entries)
            checks.require_configuration(
                configuration, read_number(CONFIGURATION, found[CONFIGURATION])
            )
            checks.require_tail(expected_tail, there.lsn)
            if known is not None and there != known:
                raise CorruptLog.with_another(there.lsn)
            if known is not None and condition is not None:
                checks.require_condition(condition, found[metadata_key(condition.key)])
            raise EngineUnavailable("it was in the way, and is no longer")

    def tail(self) -> int:
        """See ``LogEngine``. Raises ``CorruptLog`` if its key and its entries do not agree."""
        with meanings():
            tail = self._engine.tail()
            there = Tail.read(self._engine.get((TAIL,))[TAIL])
            # Appends come between the two, but none is taken back.
            if there.lsn < tail or (there.lsn > tail and there.lsn > self._engine.tail()):
                raise CorruptLog(f"the log's tail is damaged: it is {there.lsn}, and not {tail}")
        known = self._known
        if known is not None and known.lsn == there.lsn and known != there:
            raise CorruptLog.with_another(there.lsn)
        return there.lsn

    def first(self) -> int:
        """See ``LogEngine``. Raises ``CorruptLog`` if more was removed than was trimmed."""
        with meanings():
            first = self._engine.first()
            trimmed = read_number(TRIMMED, self._engine.get((TRIMMED,))[TRIMMED])
        if trimmed < first - 1:
            raise CorruptLog(f"the log begins at {first}, and was trimmed through {trimmed}")
        return first

    def read(
        self,
        after: int,
        *,
        limit: int = READ_ENTRIES,
        max_bytes: int = READ_BYTES,
        tag: str | None = None,
    ) -> list[Entry]:
        """See ``LogEngine``."""
        checks.check_read(after, limit, max_bytes, tag)
        with meanings():
            rows = self._rows(after, limit, tag)
            if not rows:
                checks.check_position(after, 0, self._engine.tail())
        found: list[Entry] = []
        size = 0
        for row in rows:
            entry = bodies.entry_of(row)
            if tag is not None and tag not in entry.tags:
                raise CorruptLog(f"entry {entry.lsn} is listed under the tag {tag!r} of another")
            size += len(entry.body)
            if found and size > max_bytes:
                break
            found.append(entry)
        if tag is None and found:
            last = rows[len(found) - 1]
            self._known = Tail(last.lsn, bodies.header_of(last).append_id)
        return found

    def wait(self, after: int, *, timeout_s: float) -> int:
        """See ``LogEngine``."""
        with meanings():
            tail = self._engine.wait(after, timeout_s)
        checks.check_position(after, 0, tail)
        return tail

    def trim(self, through: int, *, configuration: int) -> None:
        """See ``LogEngine``. In force at once; the room is given back piece by piece."""
        with meanings():
            for _ in range(_ROUNDS):
                found = self._engine.get((CONFIGURATION, SNAPSHOT, TRIMMED))
                checks.require_configuration(
                    configuration, read_number(CONFIGURATION, found[CONFIGURATION])
                )
                snapshot = Kept.read(found[SNAPSHOT])
                checks.check_trim(through, snapshot and snapshot.lsn)
                trimmed = read_number(TRIMMED, found[TRIMMED])
                if through <= trimmed:
                    break
                conditions = (current(configuration), Condition(SNAPSHOT, found[SNAPSHOT]))
                try:
                    self._engine.commit(Commit(conditions, (Put(TRIMMED, number(through)),)))
                except Refused:
                    continue
                trimmed = through
                break
            else:
                raise EngineUnavailable("others save one snapshot after the other")
            # What one that broke off has left, too.
            self._engine.remove(trimmed)

    # Metadata.

    def metadata(self, key: str) -> bytes | None:
        """See ``LogEngine``."""
        name = metadata_key(key)
        with meanings():
            return self._engine.get((name,))[name]

    def all_metadata(self) -> dict[str, bytes]:
        """See ``LogEngine``."""
        with meanings():
            return metadata_of(self._engine.scan(metadata_prefix()))

    def put_metadata(
        self,
        metadata: Mapping[str, bytes | None],
        *,
        configuration: int,
        condition: MetadataCondition | None = None,
    ) -> None:
        """See ``LogEngine``."""
        checks.check_metadata(metadata, condition)
        with meanings():
            if configuration < 1:
                checks.require_configuration(configuration, self._lease.configuration())
            conditions = [current(configuration)]
            if condition is not None:
                conditions.append(metadata_condition(condition))
            try:
                self._engine.commit(Commit(tuple(conditions), metadata_puts(metadata)))
            except Refused as refused:
                found = refused.found
                checks.require_configuration(
                    configuration, read_number(CONFIGURATION, found[CONFIGURATION])
                )
                if condition is not None:
                    checks.require_condition(condition, found[metadata_key(condition.key)])
                raise

    # Snapshots.

    def save_snapshot(self, lsn: int, chunks: Iterable[bytes], *, configuration: int) -> None:
        """See ``LogEngine``."""
        self._snapshots.save(lsn, chunks, configuration)

    def load_snapshot(self) -> Snapshot | None:
        """See ``LogEngine``."""
        with meanings():
            return self._snapshots.load()

    def close(self) -> None:
        """See ``LogEngine``."""
        self._engine.close()

    def _at(self, lsn: int) -> Tail | None:
        """Return the append that ends at that LSN, if the log does, as far as is known."""
        known = self._known
        if known is not None and known.lsn == lsn:
            return known
        there = Tail.read(self._engine.get((TAIL,))[TAIL])
        return there if there.lsn == lsn else None

    def _is_there(self, tail: Tail, expected_tail: int, append_id: bytes, count: int) -> bool:
        """Whether this very append stands behind the tail that its writer expected."""
        if tail.lsn == expected_tail + count and tail.append_id == append_id:
            return True
        if tail.lsn < expected_tail + count:
            return False
        try:
            rows = self._engine.read(expected_tail, 1).rows
        except TrimmedLog:
            return False
        return bool(rows) and bodies.header_of(rows[0]) == (append_id, count - 1)

    def _rows(self, after: int, limit: int, tag: str | None) -> Sequence[Row]:
        """Return rows behind that LSN; what is read of it must be what was known there."""
        if tag is not None:
            return self._engine.read(after, limit, bodies.engine_tag(tag)).rows
        known = self._known
        if known is None or known.lsn != after or not after:
            return self._engine.read(after, limit).rows
        try:
            rows = self._engine.read(after - 1, limit + 1).rows
        except TrimmedLog as trimmed:
            if trimmed.first != after + 1:
                raise
            # What is known of it is gone.
            return self._engine.read(after, limit).rows
        if rows and bodies.header_of(rows[0]).append_id != known.append_id:
            raise CorruptLog.with_another(after)
        if len(rows) == 1:
            # It alone may have been all that one read returns.
            return self._engine.read(after, limit).rows
        return rows[1:]

    def _check_size(self, entries: Sequence[NewEntry]) -> None:
        if len(entries) > self.limits.entries:
            raise InvalidRequest(f"{len(entries)} entries; one append has {self.limits.entries}")
        size = sum(
            len(entry.body) + sum(len(tag.encode()) for tag in entry.tags) for entry in entries
        )
        if size > self.limits.append_bytes:
            raise InvalidRequest(f"{size} bytes; one append has {self.limits.append_bytes}")
