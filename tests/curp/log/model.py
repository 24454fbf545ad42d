"""An independent oracle: what every group's log is compared with, written apart from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from curp.log import _checks as checks
from curp.log._creation import new_log
from curp.log._errors import LeaseHeld, TrimmedLog
from curp.log._values import (
    READ_BYTES,
    READ_ENTRIES,
    Leadership,
    LogEntry,
    MetadataCondition,
    NewLogEntry,
    Snapshot,
)


class _Kept(NamedTuple):
    entry: LogEntry
    append_id: bytes


class ModelLog:
    """One group's log, for one thread, in plain lists. ``clock``: seconds."""

    def __init__(
        self,
        clock: Callable[[], float],
    ) -> None:
        self.clock = clock
        self.kept: list[_Kept] = []
        self.trimmed = 0
        self.metadata: dict[str, bytes] = dict(new_log().metadata)
        self.leader: Leadership | None = None
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

    def open(self) -> ModelEngine:
        """Return one more engine over this log."""
        return ModelEngine(self)

    def write(self, metadata: Mapping[str, bytes | None]) -> None:
        """Write keys, None deleting one."""
        for key, value in metadata.items():
            if value is None:
                self.metadata.pop(key, None)
            else:
                self.metadata[key] = value


class ModelEngine:
    """One replica's way to a ``ModelLog``; see ``GroupLog``."""

    def __init__(self, log: ModelLog) -> None:
        self._log = log

    def leadership(self) -> Leadership | None:
        """See ``GroupLog``."""
        log = self._log
        leader = log.leader
        if leader is not None:
            leader = leader._replace(expires_in_s=log.expires_at - log.clock())
        return leader

    def take_leadership(self, replica: str, address: str, *, term_s: float) -> int:
        """See ``GroupLog``."""
        checks.check_leader(replica, address, term_s)
        log = self._log
        leader = log.leader
        if leader is not None:
            leader = leader._replace(expires_in_s=log.expires_at - log.clock())
        if leader is not None and leader.replica != replica and leader.expires_in_s > 0:
            raise LeaseHeld.by(leader.replica, leader.expires_in_s)
        return self._begin(replica, address, term_s)

    def renew_leadership(self, configuration: int, *, term_s: float) -> None:
        """See ``GroupLog``."""
        checks.check_term(term_s)
        log = self._log
        checks.require_configuration(configuration, log.configuration)
        log.expires_at = log.clock() + term_s

    def end_leadership(self, configuration: int) -> None:
        """See ``GroupLog``."""
        log = self._log
        if configuration == log.configuration:
            log.expires_at = min(log.expires_at, log.clock())

    def next_configuration(
        self, configuration: int, metadata: Mapping[str, bytes | None], *, term_s: float
    ) -> int:
        """See ``GroupLog``."""
        checks.check_metadata(metadata)
        checks.check_term(term_s)
        log = self._log
        checks.require_configuration(configuration, log.configuration)
        leader = log.leader
        number = self._begin(leader.replica, leader.address, term_s) if leader else 0
        log.write(metadata)
        return number

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
        """See ``GroupLog``."""
        checks.check_append(entries, expected_tail, append_id, condition, metadata)
        log = self._log
        tail = self._appended(expected_tail, append_id)
        if tail is None:
            checks.require_configuration(configuration, log.configuration)
            checks.require_tail(expected_tail, log.tail)
            if condition:
                checks.require_condition(condition, log.metadata.get(condition.key))
            for lsn, new in enumerate(entries, expected_tail + 1):
                log.kept.append(_Kept(LogEntry(lsn, bytes(new.body), tuple(new.tags)), append_id))
            log.write(metadata or {})
            tail = log.tail
        return tail

    def tail(self) -> int:
        """See ``GroupLog``."""
        return self._log.tail

    def first(self) -> int:
        """See ``GroupLog``."""
        return self._log.trimmed + 1

    def read(
        self,
        after: int,
        *,
        limit: int = READ_ENTRIES,
        max_bytes: int = READ_BYTES,
        tag: str | None = None,
    ) -> list[LogEntry]:
        """See ``GroupLog``."""
        checks.check_read(after, limit, max_bytes, tag)
        log = self._log
        found: list[LogEntry] = []
        size = 0
        checks.check_position(after, log.tail)
        if after < log.trimmed:
            first = log.trimmed + 1
            raise TrimmedLog(f"the entries after {after} were trimmed; the first is {first}", first)
        for entry, _ in log.kept[after - log.trimmed :]:
            if tag is not None and tag not in entry.tags:
                continue
            size += len(entry.body)
            if len(found) == limit or (found and size > max_bytes):
                break
            found.append(entry)
        return found

    def trim(self, through: int, *, configuration: int) -> None:
        """See ``GroupLog``."""
        log = self._log
        checks.require_configuration(configuration, log.configuration)
        checks.check_trim(through, log.snapshot[0] if log.snapshot else None)
        if through > log.trimmed:
            del log.kept[: through - log.trimmed]
            log.trimmed = through

    def metadata(self, key: str) -> bytes | None:
        """See ``GroupLog``."""
        return self._log.metadata.get(key)

    def all_metadata(self) -> dict[str, bytes]:
        """See ``GroupLog``."""
        return dict(self._log.metadata)

    def put_metadata(
        self,
        metadata: Mapping[str, bytes | None],
        *,
        configuration: int,
        condition: MetadataCondition | None = None,
    ) -> None:
        """See ``GroupLog``."""
        checks.check_metadata(metadata, condition)
        log = self._log
        checks.require_configuration(configuration, log.configuration)
        if condition:
            checks.require_condition(condition, log.metadata.get(condition.key))
        log.write(metadata)

    def save_snapshot(self, lsn: int, chunks: Iterable[bytes], *, configuration: int) -> None:
        """See ``GroupLog``."""
        log = self._log
        checks.require_configuration(configuration, log.configuration)
        checks.check_snapshot(lsn, log.snapshot[0] if log.snapshot else None, log.tail)
        whole = []
        for chunk in chunks:
            checks.check_chunk(chunk)
            whole.append(bytes(chunk))
        log.snapshot = (lsn, tuple(whole))

    def load_snapshot(self) -> Snapshot | None:
        """See ``GroupLog``."""
        if self._log.snapshot is None:
            return None
        lsn, chunks = self._log.snapshot
        return Snapshot(lsn, iter(chunks))

    def _begin(self, replica: str, address: str, term_s: float) -> int:
        """Begin the next configuration (invariant 2)."""
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
