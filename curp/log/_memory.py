"""A log in memory: what every engine is compared with, and what the simulator breaks."""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from curp.log import _checks as checks
from curp.log._creation import new_log
from curp.log._engine import (
    READ_BYTES,
    READ_ENTRIES,
    Entry,
    Leadership,
    MetadataCondition,
    NewEntry,
    NewLog,
    Snapshot,
)
from curp.log._errors import EngineStopped
from rifl._stores.forks import belongs_here


class Moment(enum.Enum):
    """Where in an operation a fault may strike."""

    # The request is lost: nothing happened.
    BEFORE = "before"
    # The reply is lost: the operation is done.
    AFTER = "after"


# Called with the operation's name (a method of LogEngine) and the moment; raises
# EngineUnavailable, or whatever should end the caller, to let a fault strike.
Fault = Callable[[str, Moment], None]


class _Kept(NamedTuple):
    entry: Entry
    append_id: bytes


class MemoryLog:
    """One group's log, shared by the engines made from it. Any thread.

    It keeps what it acknowledged for as long as the object lives, and has no
    clock but ``clock`` (monotonic seconds), and no randomness with ``new``, of which a log
    has its id: with one thread, the same calls give the same results. ``on_change`` is
    called, under the log's lock, after every append: what a simulator does instead of
    ``wait``.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        on_change: Callable[[], None] | None = None,
        new: NewLog | None = None,
    ) -> None:
        self.clock = clock
        self.on_change = on_change
        self.changed = threading.Condition()
        self.kept: list[_Kept] = []
        new = new or new_log()
        self.trimmed = new.trimmed
        self.metadata: dict[str, bytes] = dict(new.metadata)
        self.leader: Leadership | None = None
        if new.configuration:
            self.leader = Leadership(new.configuration, "", "", 0.0)
        self.expires_at = 0.0
        self.snapshot: tuple[int, tuple[bytes, ...]] | None = None

    @property
    def tail(self) -> int:
        """The LSN of the last entry."""
        return self.trimmed + len(self.kept)

    @property
    def configuration(self) -> int:
        """The current configuration number, 0 before the first."""
        return self.leader.configuration if self.leader else 0

    def engine(self, fault: Fault | None = None) -> MemoryEngine:
        """Return one more engine over this log, with faults of its own."""
        return MemoryEngine(self, fault)

    def forget(self, after: int) -> None:
        """Lose the entries above ``after``, as a store that did not keep its word does."""
        with self.changed:
            del self.kept[max(0, after - self.trimmed) :]

    def write(self, metadata: Mapping[str, bytes | None]) -> None:
        """Write keys, None deleting one; the caller holds the lock."""
        for key, value in metadata.items():
            if value is None:
                self.metadata.pop(key, None)
            else:
                self.metadata[key] = value


class MemoryEngine:
    """One replica's way to a ``MemoryLog``; see ``LogEngine``."""

    durability = "kept while this process lives: for tests and simulation"
    limits = checks.LIMITS

    def __init__(self, log: MemoryLog, fault: Fault | None = None) -> None:
        self._log = log
        self._fault = fault
        self._closed = False
        belongs_here(self, "log engine")

    def leadership(self) -> Leadership | None:
        """See ``LogEngine``."""
        log = self._log
        with log.changed:
            self._strike("leadership", Moment.BEFORE)
            leader = log.leader
            if leader is not None:
                leader = leader._replace(expires_in_s=log.expires_at - log.clock())
            self._strike("leadership", Moment.AFTER)
        return leader

    def take_leadership(self, replica: str, address: str, *, term_s: float) -> int:
        """See ``LogEngine``."""
        checks.check_leader(replica, address, term_s)
        log = self._log
        with log.changed:
            self._strike("take_leadership", Moment.BEFORE)
            leader = log.leader
            if leader is not None:
                leader = leader._replace(expires_in_s=log.expires_at - log.clock())
            checks.require_no_other_leader(leader, replica)
            number = self._begin(replica, address, term_s)
            self._strike("take_leadership", Moment.AFTER)
        return number

    def renew_leadership(self, configuration: int, *, term_s: float) -> None:
        """See ``LogEngine``."""
        checks.check_term(term_s)
        log = self._log
        with log.changed:
            self._strike("renew_leadership", Moment.BEFORE)
            checks.require_configuration(configuration, log.configuration)
            log.expires_at = log.clock() + term_s
            self._strike("renew_leadership", Moment.AFTER)

    def end_leadership(self, configuration: int) -> None:
        """See ``LogEngine``."""
        log = self._log
        with log.changed:
            self._strike("end_leadership", Moment.BEFORE)
            if configuration == log.configuration:
                log.expires_at = min(log.expires_at, log.clock())
            self._strike("end_leadership", Moment.AFTER)

    def next_configuration(
        self, configuration: int, metadata: Mapping[str, bytes | None], *, term_s: float
    ) -> int:
        """See ``LogEngine``."""
        checks.check_metadata(metadata)
        checks.check_term(term_s)
        log = self._log
        with log.changed:
            self._strike("next_configuration", Moment.BEFORE)
            checks.require_configuration(configuration, log.configuration)
            leader = log.leader
            number = self._begin(leader.replica, leader.address, term_s) if leader else 0
            log.write(metadata)
            self._strike("next_configuration", Moment.AFTER)
        return number

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
        log = self._log
        with log.changed:
            self._strike("append", Moment.BEFORE)
            tail = self._appended(expected_tail, append_id)
            if tail is None:
                checks.require_configuration(configuration, log.configuration)
                checks.require_tail(expected_tail, log.tail)
                if condition:
                    checks.require_condition(condition, log.metadata.get(condition.key))
                for lsn, new in enumerate(entries, expected_tail + 1):
                    log.kept.append(_Kept(Entry(lsn, bytes(new.body), tuple(new.tags)), append_id))
                log.write(metadata or {})
                tail = log.tail
                log.changed.notify_all()
                if log.on_change:
                    log.on_change()
            self._strike("append", Moment.AFTER)
        return tail

    def tail(self) -> int:
        """See ``LogEngine``."""
        with self._log.changed:
            self._strike("tail", Moment.BEFORE)
            return self._log.tail

    def first(self) -> int:
        """See ``LogEngine``."""
        with self._log.changed:
            self._strike("first", Moment.BEFORE)
            return self._log.trimmed + 1

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
        log = self._log
        found: list[Entry] = []
        size = 0
        with log.changed:
            self._strike("read", Moment.BEFORE)
            checks.check_position(after, log.trimmed + 1, log.tail)
            for entry, _ in log.kept[after - log.trimmed :]:
                if tag is not None and tag not in entry.tags:
                    continue
                size += len(entry.body)
                if len(found) == limit or (found and size > max_bytes):
                    break
                found.append(entry)
        return found

    def wait(self, after: int, *, timeout_s: float) -> int:
        """See ``LogEngine``. The timeout is of real time, whatever the clock."""
        log = self._log
        with log.changed:
            self._strike("wait", Moment.BEFORE)
            checks.check_position(after, 0, log.tail)
            log.changed.wait_for(lambda: self._closed or log.tail > after, max(0.0, timeout_s))
            self._strike("wait", Moment.AFTER)
            if self._closed:
                raise EngineStopped("the log engine was closed")
            return log.tail

    def trim(self, through: int, *, configuration: int) -> None:
        """See ``LogEngine``."""
        log = self._log
        with log.changed:
            self._strike("trim", Moment.BEFORE)
            checks.require_configuration(configuration, log.configuration)
            checks.check_trim(through, log.snapshot[0] if log.snapshot else None)
            if through > log.trimmed:
                del log.kept[: through - log.trimmed]
                log.trimmed = through
            self._strike("trim", Moment.AFTER)

    def metadata(self, key: str) -> bytes | None:
        """See ``LogEngine``."""
        with self._log.changed:
            self._strike("metadata", Moment.BEFORE)
            return self._log.metadata.get(key)

    def all_metadata(self) -> dict[str, bytes]:
        """See ``LogEngine``."""
        with self._log.changed:
            self._strike("all_metadata", Moment.BEFORE)
            return dict(self._log.metadata)

    def put_metadata(
        self,
        metadata: Mapping[str, bytes | None],
        *,
        configuration: int,
        condition: MetadataCondition | None = None,
    ) -> None:
        """See ``LogEngine``."""
        checks.check_metadata(metadata, condition)
        log = self._log
        with log.changed:
            self._strike("put_metadata", Moment.BEFORE)
            checks.require_configuration(configuration, log.configuration)
            if condition:
                checks.require_condition(condition, log.metadata.get(condition.key))
            log.write(metadata)
            self._strike("put_metadata", Moment.AFTER)

    def save_snapshot(self, lsn: int, chunks: Iterable[bytes], *, configuration: int) -> None:
        """See ``LogEngine``."""
        log = self._log
        with log.changed:
            self._strike("save_snapshot", Moment.BEFORE)
            checks.require_configuration(configuration, log.configuration)
            checks.check_snapshot(lsn, log.snapshot[0] if log.snapshot else None, log.tail)
        # Not under the lock: making the chunks may take long.
        whole = []
        for chunk in chunks:
            checks.check_chunk(chunk)
            whole.append(bytes(chunk))
        with log.changed:
            checks.require_configuration(configuration, log.configuration)
            checks.check_snapshot(lsn, log.snapshot[0] if log.snapshot else None, log.tail)
            log.snapshot = (lsn, tuple(whole))
            self._strike("save_snapshot", Moment.AFTER)

    def load_snapshot(self) -> Snapshot | None:
        """See ``LogEngine``."""
        with self._log.changed:
            self._strike("load_snapshot", Moment.BEFORE)
            if self._log.snapshot is None:
                return None
            lsn, chunks = self._log.snapshot
        return Snapshot(lsn, iter(chunks))

    def close(self) -> None:
        """See ``LogEngine``."""
        with self._log.changed:
            self._closed = True
            self._log.changed.notify_all()

    def _begin(self, replica: str, address: str, term_s: float) -> int:
        """Begin the next configuration (invariant 2); the caller holds the lock."""
        log = self._log
        log.leader = Leadership(log.configuration + 1, replica, address, term_s)
        log.expires_at = log.clock() + term_s
        return log.configuration

    def _appended(self, expected_tail: int, append_id: bytes) -> int | None:
        """Return the last LSN of that append if it is in the log already."""
        log = self._log
        place = expected_tail - log.trimmed
        if not 0 <= place < len(log.kept) or log.kept[place].append_id != append_id:
            return None
        while place < len(log.kept) and log.kept[place].append_id == append_id:
            place += 1
        return log.trimmed + place

    def _strike(self, operation: str, moment: Moment) -> None:
        if self._closed:
            raise EngineStopped("the log engine is closed")
        if self._fault is not None:
            self._fault(operation, moment)
