"""``LogEngine`` over Redis."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from curp.log import _checks as checks
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
from curp.log._entries import entry_checksum, pack_tags, unpack_rows, unpack_tags
from curp.log._errors import CorruptLog, EngineStopped, LeaseHeld
from curp.log._lease_clocks import leadership_of
from curp.log._redis.connection import Connection
from curp.log._redis.scripts import APPEND, DOOMED, KEYS, LEAD, PUT, READ, REMOVE, STATUS, TRIM
from curp.log._redis.snapshots import Snapshots
from rifl._stores.forks import belongs_here
from rifl._stores.redis.address import RedisAddress
from sharedlog._engines.terms import ServerTerms, Term

_FIELDS = 5
_BLOCK_S = 0.5
_TRIMMED_AT_ONCE = 500


class RedisEngine:
    """One process's way to one group's log in Redis 6.2 or newer; see ``LogEngine``.

    ``durability`` says what the server's settings promise; with the address's
    ``durability=require`` (the default), a server that may forget what it
    acknowledged is refused when it is opened (``NotDurable``). ``replicas``: so many
    of the server's replicas must have a write before it counts; fewer in time is
    ``EngineUnavailable``, and the write stands where it was made. ``new`` creates the
    group's log (``LogExists``); without it the log must be there (``NoSuchLog``).
    ``read_only``: the user's rights to write are not looked at.

    Leases end by the server's clock (see ``ServerTerms``); ``clock`` is this
    machine's. A log that went back, or that is another one, is noticed by what this
    engine has seen of it.
    """

    def __init__(
        self,
        address: RedisAddress,
        group: str,
        *,
        new: NewLog | None = None,
        read_only: bool = False,
        replicas: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = Connection(address, group, replicas, new=new, read_only=read_only)
        self._lease = ServerTerms(clock)
        self._snapshots = Snapshots(self._redis, _require_configuration)
        # The newest entry appended or read here: what follows it must follow this one.
        self._known = (0, b"")
        belongs_here(self, "log engine")

    limits = checks.LIMITS

    @property
    def durability(self) -> str:
        """See ``LogEngine``."""
        return self._redis.durability

    # Leadership.

    def leadership(self) -> Leadership | None:
        """See ``LogEngine``."""
        _, _, _, number, replica, address, expires_ms, term_ms, now_ms, _ = self._status()
        lease = Term(number, "", int(expires_ms) / 1000, int(term_ms) / 1000)
        return leadership_of(self._lease, lease, (replica, address), int(now_ms) / 1000)

    def take_leadership(self, replica: str, address: str, *, term_s: float) -> int:
        """See ``LogEngine``."""
        checks.check_leader(replica, address, term_s)
        checks.require_no_other_leader(self.leadership(), replica)
        reply = self._lead("take", 0, term_s, replica, address)
        if reply[0] == b"held":
            raise LeaseHeld.by(reply[2].decode(), reply[3] / 1000)
        return int(reply[2])

    def renew_leadership(self, configuration: int, *, term_s: float) -> None:
        """See ``LogEngine``."""
        checks.check_term(term_s)
        self._lead("renew", configuration, term_s)

    def end_leadership(self, configuration: int) -> None:
        """See ``LogEngine``."""
        self._lead("end", configuration, 0.0)

    def next_configuration(
        self, configuration: int, metadata: Mapping[str, bytes | None], *, term_s: float
    ) -> int:
        """See ``LogEngine``."""
        checks.check_term(term_s)
        checks.check_metadata(metadata)
        reply = self._lead("next", configuration, term_s, metadata=metadata)
        return int(reply[2])

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
        lsn, before = self._known
        places: dict[str, int] = {}
        arguments: list[Any] = [configuration, expected_tail, append_id]
        arguments += [before if lsn == expected_tail else b"", *_condition(condition)]
        arguments += [*_metadata(metadata or {}), len(entries)]
        for number, entry in enumerate(entries, expected_tail + 1):
            checksum = entry_checksum(number, append_id, entry.tags, entry.body)
            arguments += [pack_tags(entry.tags), checksum, entry.body, len(entry.tags)]
            # Behind control, log and metadata.
            arguments += [places.setdefault(tag, len(places) + 4) for tag in entry.tags]
        reply = self._redis.run(APPEND, [*map(self._redis.tag_key, places)], arguments)
        if reply[0] == b"refused":
            _require_configuration(reply, configuration)
            checks.require_tail(expected_tail, reply[2])
            checks.require_condition(condition, reply[5])
            raise CorruptLog(f"an append was refused for no reason: {reply}")
        self._known = (int(reply[2]), append_id)
        return int(reply[2])

    def tail(self) -> int:
        """See ``LogEngine``."""
        return int(self._status()[1])

    def first(self) -> int:
        """See ``LogEngine``."""
        return int(self._status()[2]) + 1

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
        lsn, before = self._known
        arguments = [after, limit, max_bytes, before if lsn == after else b""]
        reply = self._redis.run(READ, [] if tag is None else [self._redis.tag_key(tag)], arguments)
        if reply[0] == b"refused":
            checks.check_position(after, reply[3] + 1, reply[2])
            raise CorruptLog(f"a read was refused for no reason: {reply}")
        _, tail, full, *values = reply
        rows = [values[start : start + _FIELDS] for start in range(0, len(values), _FIELDS)]
        found = unpack_rows([(_lsn_of(key), *row) for key, *row in rows], after, tag)
        if tag is None and not full and len(rows) < min(limit, tail - after):
            raise CorruptLog.without(after + len(rows) + 1)
        if tag is None and rows:
            self._known = (found[-1].lsn, rows[-1][1])
        return found

    def wait(self, after: int, *, timeout_s: float) -> int:
        """See ``LogEngine``."""
        end = time.monotonic() + timeout_s
        while True:
            tail = self.tail()
            checks.check_position(after, 0, tail)
            left_s = end - time.monotonic()
            if tail > after or left_s <= 0:
                return tail
            # Not all at once: a log that goes away, or this engine closing, is noticed.
            self._redis.block(after, min(left_s, _BLOCK_S))
            if self._redis.closing.is_set():
                raise EngineStopped("the log engine was closed")

    def trim(self, through: int, *, configuration: int) -> None:
        """See ``LogEngine``. In force at once; the room is given back piece by piece."""
        reply = self._redis.run(TRIM, [], [configuration, through])
        if reply[0] == b"refused":
            _require_configuration(reply, configuration)
            checks.check_trim(through, max(0, reply[4]))
        while self._remove_some(configuration):
            pass

    # Metadata.

    def metadata(self, key: str) -> bytes | None:
        """See ``LogEngine``."""
        value: bytes | None = self._status(key)[9]
        return value

    def all_metadata(self) -> dict[str, bytes]:
        """See ``LogEngine``."""
        pairs = iter(self._redis.run(KEYS, [], [])[2:])
        return {key.decode(): value for key, value in zip(pairs, pairs, strict=True)}

    def put_metadata(
        self,
        metadata: Mapping[str, bytes | None],
        *,
        configuration: int,
        condition: MetadataCondition | None = None,
    ) -> None:
        """See ``LogEngine``."""
        checks.check_metadata(metadata, condition)
        arguments = [configuration, *_condition(condition), *_metadata(metadata)]
        reply = self._redis.run(PUT, [], arguments)
        if reply[0] == b"refused":
            _require_configuration(reply, configuration)
            checks.require_condition(condition, reply[5])

    # Snapshots.

    def save_snapshot(self, lsn: int, chunks: Iterable[bytes], *, configuration: int) -> None:
        """See ``LogEngine``."""
        self._snapshots.save(lsn, chunks, configuration)

    def load_snapshot(self) -> Snapshot | None:
        """See ``LogEngine``."""
        return self._snapshots.load()

    def close(self) -> None:
        """See ``LogEngine``."""
        self._redis.close()

    def _status(self, key: str = "") -> list[Any]:
        return self._redis.run(STATUS, [], [key])

    def _lead(
        self,
        action: str,
        configuration: int,
        term_s: float,
        replica: str = "",
        address: str = "",
        metadata: Mapping[str, bytes | None] | None = None,
    ) -> list[Any]:
        # Up: a leader that counts on its whole term must have it.
        term_ms = -int(-term_s * 1000 // 1)
        arguments = [action, configuration, replica, address, term_ms, *_metadata(metadata or {})]
        reply = self._redis.run(LEAD, [], arguments)
        if reply[0] == b"refused":
            _require_configuration(reply, configuration)
        return reply

    def _remove_some(self, configuration: int) -> bool:
        """Remove trimmed entries; return whether there may be more."""
        _, _, *values = self._redis.run(DOOMED, [], [_TRIMMED_AT_ONCE])
        if not values:
            return False
        tags = sorted({tag for packed in values[1::2] for tag in unpack_tags(packed)})
        keys = [self._redis.tag_key(tag) for tag in tags]
        last = _lsn_of(values[-2])
        reply = self._redis.run(REMOVE, keys, [configuration, last])
        if reply[0] == b"refused":
            _require_configuration(reply, configuration)
        return len(values) == 2 * _TRIMMED_AT_ONCE


def _lsn_of(stream_id: bytes) -> int:
    return int(stream_id.partition(b"-")[0])


def _require_configuration(reply: list[Any], configuration: int) -> None:
    checks.require_configuration(configuration, reply[1])


def _condition(condition: MetadataCondition | None) -> tuple[str | bytes, ...]:
    if condition is None:
        return ("none", "", "")
    if condition.value is None:
        return ("absent", condition.key, "")
    return ("equal", condition.key, condition.value)


def _metadata(metadata: Mapping[str, bytes | None]) -> list[Any]:
    written: list[Any] = [len(metadata)]
    for key, value in metadata.items():
        written += [key, int(value is not None), value or b""]
    return written
