"""A group's log: conditional append, metadata, leadership, over an engine of the shared log."""

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
    KeptSnapshot,
    LogTail,
    current,
    metadata_condition,
    metadata_key,
    metadata_of,
    metadata_prefix,
    metadata_puts,
    number,
    read_number,
)
from curp.log._commits.lease import LeadershipLease
from curp.log._commits.snapshots import Snapshots
from curp.log._errors import (
    CorruptLog,
    InvalidRequest,
    LogUnavailable,
    TrimmedLog,
    other_entry,
)
from curp.log._values import (
    READ_BYTES,
    READ_ENTRIES,
    EngineLimits,
    Leadership,
    LogEntry,
    MetadataCondition,
    NewLogEntry,
    Snapshot,
)
from rifl._stores.forks import belongs_here
from sharedlog._core.commit import Commit, Condition, Put, Refused, Stamp
from sharedlog._core.entry import Row
from sharedlog._engines.engine import Engine

_ROUNDS = 20


class GroupLog:
    """One group's log in an engine of the shared log, which it owns; its replicas share the store.

    Invariants:

    1. Every write is conditional on the writer's configuration number being the
       current one, judged in the same atomic step; else ``LeadershipOver``, and nothing is
       written, now or later.
    2. Configuration numbers only grow, and each is given to one writer.
    3. An append is atomic and durable before it returns (as far as ``durability``
       says); LSNs have no gaps, and the entries of one append are adjacent.
    4. ``read`` returns the same for an LSN each time, until the log is trimmed.

    All that is written is one ``commit`` each. An append has the condition that the log ends at
    the very append that its writer knows there, so that LSNs follow, and names itself in that
    place: asked again, it is recognised there, and by its rows once others stand behind it.

    Methods block and are safe in any thread. Errors are ``LogError``s
    (``curp.log._errors``): ``LeadershipOver``, ``TailMismatch``, ``LeaseHeld``,
    ``ConditionFailed``, ``CorruptLog``, ``TrimmedLog``, ``InvalidRequest`` and ``LogUnavailable``,
    which alone leaves open whether a write happened (of its kind: ``LogStopped``, this handle
    never works again, and ``LogFull``, the store has no room left). What is refused as an
    ``InvalidRequest`` is in ``curp.log._checks``.
    """

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``engine``: a log made with ``first_keys``. ``clock`` is this machine's."""
        self._engine = engine
        self._lease = LeadershipLease(engine, clock)
        self._snapshots = Snapshots(engine)
        entries, append_bytes = engine.limits.entries, engine.limits.append_bytes
        entries = min(entries, checks.MAX_APPEND_ENTRIES)
        self.limits = EngineLimits(
            entries,
            min(append_bytes, checks.MAX_APPEND_BYTES) - entries * bodies.HEADER_BYTES,
        )
        # The newest entry appended or read here: what follows it must follow this one.
        self._known: LogTail | None = None
        belongs_here(self, "log engine")

    @property
    def durability(self) -> str:
        """What the store's settings promise of an acknowledged append, in a sentence."""
        return self._engine.durability

    # Leadership.

    def leadership(self) -> Leadership | None:
        """Return the newest leadership, None if there was never one."""
        return self._lease.leadership()

    def take_leadership(self, replica: str, address: str, *, term_s: float) -> int:
        """Begin a new configuration under this replica, and return its number.

        Raises ``LeaseHeld`` (with the seconds left) while the lease of another
        replica runs. A replica's own running lease does not hold it up, so a process
        that reads under its lease needs a name that its successor does not have. From
        the return on, every write under an older number is refused.
        """
        checks.check_leader(replica, address, term_s)
        return self._lease.take(replica, address, term_s)

    def renew_leadership(self, configuration: int, *, term_s: float) -> None:
        """Let the lease run for a term; ``LeadershipOver`` if the number is not current."""
        checks.check_term(term_s)
        self._lease.renew(configuration, term_s)

    def end_leadership(self, configuration: int) -> None:
        """Let the lease end now, so that another replica need not wait; idempotent."""
        self._lease.end(configuration)

    def next_configuration(
        self, configuration: int, metadata: Mapping[str, bytes | None], *, term_s: float
    ) -> int:
        """Begin the number after ``configuration`` under the same replica (invariant 11).

        ``metadata`` is written in the same step. Raises ``LeadershipOver``.
        """
        checks.check_term(term_s)
        checks.check_metadata(metadata)
        return self._lease.next(configuration, metadata, term_s)

    # The log.

    def append(
        self,
        entries: Sequence[NewLogEntry],
        *,
        configuration: int,
        expected_tail: int,
        append_id: bytes,
        condition: MetadataCondition | None = None,
        metadata: Mapping[str, bytes | None] | None = None,
    ) -> int:
        """Append all entries behind LSN ``expected_tail``; return the new tail.

        ``append_id`` (16 bytes, unique) names this append: asked again with the same
        one and the same ``expected_tail`` after a lost reply, it is recognised and not
        repeated, even by then under an older number, until its entries are trimmed; behind
        that it may be recognised, or ``TailMismatch``.
        ``metadata`` is written in the same step, None deleting a key. Raises
        ``LeadershipOver``, ``TailMismatch`` (with the tail found), ``ConditionFailed``, in
        this order. A tail found below the expected one went back: the store forgot
        what it had acknowledged.
        """
        checks.check_append(entries, expected_tail, append_id, condition, metadata)
        self._check_size(entries)
        rows = bodies.packed(append_id, entries)
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
                self._known = LogTail(tail, append_id)
                return tail
        else:
            found = self._engine.get((CONFIGURATION, TAIL))
        there = LogTail.read(found[TAIL])
        if self._is_there(there, expected_tail, append_id, len(entries)):
            return expected_tail + len(entries)
        checks.require_configuration(
            configuration, read_number(CONFIGURATION, found[CONFIGURATION])
        )
        checks.require_tail(expected_tail, there.lsn)
        if known is not None and there != known:
            raise other_entry(there.lsn)
        if known is not None and condition is not None:
            checks.require_condition(condition, found[metadata_key(condition.key)])
        raise LogUnavailable("it was in the way, and is no longer")

    def tail(self) -> int:
        """Return the LSN of the last entry, 0 for an empty log.

        Raises ``CorruptLog`` if its key and its entries do not agree.
        """
        tail = self._engine.tail()
        there = LogTail.read(self._engine.get((TAIL,))[TAIL])
        # Appends come between the two, but none is taken back.
        if there.lsn < tail or (there.lsn > tail and there.lsn > self._engine.tail()):
            raise CorruptLog(f"the log's tail is damaged: it is {there.lsn}, and not {tail}")
        known = self._known
        if known is not None and known.lsn == there.lsn and known != there:
            raise other_entry(there.lsn)
        return there.lsn

    def first(self) -> int:
        """Return the LSN of the oldest entry still there (tail + 1 if there is none).

        Raises ``CorruptLog`` if more was removed than was trimmed.
        """
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
    ) -> list[LogEntry]:
        """Return entries with LSN above ``after``, in order, at least one if there is any.

        With ``tag``, only those that carry it. ``max_bytes`` are of their bodies.
        ``TrimmedLog`` if ``after + 1`` was trimmed, ``CorruptLog`` for a gap, a damaged
        entry (never skipped), or a log that ends before ``after``.
        """
        checks.check_read(after, limit, max_bytes, tag)
        rows = self._rows(after, limit, tag)
        if not rows:
            checks.check_position(after, self._engine.tail())
        found: list[LogEntry] = []
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
            self._known = LogTail(last.lsn, bodies.header_of(last).append_id)
        return found

    def wait(self, after: int, *, timeout_s: float) -> int:
        """Wait until the tail is above ``after``, or the timeout passes; return the tail.

        Raises ``CorruptLog`` if the log ends before ``after``.
        """
        tail = self._engine.wait(after, timeout_s)
        checks.check_position(after, tail)
        return tail

    def trim(self, through: int, *, configuration: int) -> None:
        """Remove the entries up to ``through``, which a snapshot covers (else refused).

        In force at once; the room is given back piece by piece.
        """
        for _ in range(_ROUNDS):
            found = self._engine.get((CONFIGURATION, SNAPSHOT, TRIMMED))
            checks.require_configuration(
                configuration, read_number(CONFIGURATION, found[CONFIGURATION])
            )
            snapshot = KeptSnapshot.read(found[SNAPSHOT])
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
            raise LogUnavailable("others save one snapshot after the other")
        # What one that broke off has left, too.
        self._engine.remove(trimmed)

    # Metadata.

    def metadata(self, key: str) -> bytes | None:
        """Return the value of a key, None if it is absent."""
        name = metadata_key(key)
        return self._engine.get((name,))[name]

    def all_metadata(self) -> dict[str, bytes]:
        """Return all keys and their values, as of one moment."""
        return metadata_of(self._engine.scan(metadata_prefix()))

    def put_metadata(
        self,
        metadata: Mapping[str, bytes | None],
        *,
        configuration: int,
        condition: MetadataCondition | None = None,
    ) -> None:
        """Write keys in one step; None deletes one. ``LeadershipOver``, ``ConditionFailed``."""
        checks.check_metadata(metadata, condition)
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

    def check_keys(self) -> None:
        """Raise ``CorruptLog`` if keys are not what was written; it names them all."""
        problems = self._engine.damaged()
        if problems:
            raise CorruptLog("; ".join(problems))

    # Snapshots.

    def save_snapshot(self, lsn: int, chunks: Iterable[bytes], *, configuration: int) -> None:
        """Keep a snapshot, in the place of an older one only when it is whole and durable.

        The chunks come back as they are. Raises ``LeadershipOver``.
        """
        self._snapshots.save(lsn, chunks, configuration)

    def load_snapshot(self) -> Snapshot | None:
        """Return the newest whole snapshot, None if there is none.

        Its chunks raise ``TrimmedLog`` when another one took its place meanwhile (load
        again), and ``CorruptLog`` for a damaged or missing one.
        """
        return self._snapshots.load()

    def close(self) -> None:
        """Close connections and files; idempotent."""
        self._engine.close()

    def _at(self, lsn: int) -> LogTail | None:
        """Return the append that ends at that LSN, if the log does, as far as is known."""
        known = self._known
        if known is not None and known.lsn == lsn:
            return known
        there = LogTail.read(self._engine.get((TAIL,))[TAIL])
        return there if there.lsn == lsn else None

    def _is_there(self, tail: LogTail, expected_tail: int, append_id: bytes, count: int) -> bool:
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
            raise other_entry(after)
        if len(rows) == 1:
            # It alone may have been all that one read returns.
            return self._engine.read(after, limit).rows
        return rows[1:]

    def _check_size(self, entries: Sequence[NewLogEntry]) -> None:
        if len(entries) > self.limits.entries:
            raise InvalidRequest(f"{len(entries)} entries; one append has {self.limits.entries}")
        size = sum(
            len(entry.body) + sum(len(tag.encode()) for tag in entry.tags) for entry in entries
        )
        if size > self.limits.append_bytes:
            raise InvalidRequest(f"{size} bytes; one append has {self.limits.append_bytes}")
