"""``LogEngine`` over PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import psycopg

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
from curp.log._errors import CorruptLog, LeaseHeld
from curp.log._lease_clocks import leadership_of
from curp.log._owner import GROUPS
from curp.log._postgres.schema import create, find
from curp.log._postgres.snapshots import Snapshots
from curp.log._postgres.statements import DOOMED, METADATA, READ, READ_TAG, STATUS, Head
from rifl._stores.forks import belongs_here
from rifl._stores.postgres.address import PostgresAddress
from sharedlog._engines.postgres.connection import Connection, FunctionRefused
from sharedlog._engines.postgres.listener import Listener
from sharedlog._engines.terms import ServerTerms, Term

_WRITTEN = "bytea[] bytea[]"
_CONDITION = "text bytea bytea"
_APPEND = f"int8 int8 bytea bytea {_CONDITION} {_WRITTEN} text[] int8[] bodies bytea[] int8[] text"
_TRIMMED_AT_ONCE = 1000


class PostgresEngine:
    """One process's way to one group's log in PostgreSQL 14 or newer; see ``LogEngine``.

    The schema that the address names may hold several groups. ``new`` creates the group's
    log, and the schema where there is none (``LogExists``); without it the log must be
    there (``NoSuchLog``). ``read_only``: for tools, which look at a log that has
    stopped, too, and need no right to write. ``durability`` says what the server's
    settings promise; with the address's ``durability=require`` (the default), a server
    that may forget what it acknowledged is refused (``NotDurable``).

    Every write is one statement that locks the log's row and judges then. Leases end by
    the server's clock (see ``ServerTerms``); ``clock`` is this machine's. A failover or a
    restore that may have lost something stops the log for everyone (``CorruptLog``) until
    an operator accepts that.
    """

    limits = checks.LIMITS

    def __init__(
        self,
        address: PostgresAddress,
        group: str,
        *,
        new: NewLog | None = None,
        read_only: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        def begin(connection: psycopg.Connection[Any]) -> str:
            if new is None:
                return find(connection, address, group)
            return create(connection, address, group, new)

        self._connection = Connection(address, GROUPS, begin, read_only=read_only)
        self._lease = ServerTerms(clock)
        self._snapshots = Snapshots(self._connection, _require_configuration)
        self._channel = f"curp_log_{self._connection.incarnation}"
        self._listener = Listener(self._connection, self._channel)
        # The newest entry appended or read here: what follows it must follow this one.
        self._known: tuple[int, bytes | None] = (0, None)
        belongs_here(self, "log engine")

    @property
    def durability(self) -> str:
        """See ``LogEngine``."""
        return self._connection.durability

    # Leadership.

    def leadership(self) -> Leadership | None:
        """See ``LogEngine``."""
        head = self._head()
        lease = Term(head.configuration, "", head.expires_at, head.term_s)
        return leadership_of(self._lease, lease, (head.replica, head.address), head.now_s)

    def take_leadership(self, replica: str, address: str, *, term_s: float) -> int:
        """See ``LogEngine``."""
        checks.check_leader(replica, address, term_s)
        checks.require_no_other_leader(self.leadership(), replica)
        number, holder, left_s = self._lead("take", 0, term_s, replica, address)
        if holder is not None:
            raise LeaseHeld.by(holder.decode(), left_s)
        return int(number)

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
        return int(self._lead("next", configuration, term_s, metadata=metadata)[0])

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
        arguments: list[Any] = [configuration, expected_tail, append_id]
        arguments += [before if lsn == expected_tail else None, *_condition(condition)]
        arguments += _metadata(metadata or {})
        numbered = list(enumerate(entries, expected_tail + 1))
        arguments += [
            [pack_tags(entry.tags) for entry in entries],
            [entry_checksum(at, append_id, entry.tags, entry.body) for at, entry in numbered],
            [bytes(entry.body) for entry in entries],
            [tag.encode() for entry in entries for tag in entry.tags],
            [at for at, entry in numbered for _ in entry.tags],
            self._channel,
        ]
        try:
            last, tail, copied = self._connection.call("append_1", _APPEND, arguments)
        except FunctionRefused as refused:
            _require_configuration(refused, configuration)
            checks.require_tail(expected_tail, refused.facts["tail"])
            checks.require_condition(condition, refused.value)
            raise _no_reason(refused) from None
        self._connection.saw(tail, copied=copied)
        self._known = (last, append_id)
        return int(last)

    def tail(self) -> int:
        """See ``LogEngine``."""
        return self._head().tail

    def first(self) -> int:
        """See ``LogEngine``."""
        return self._head().trimmed + 1

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
        names = {
            "log": self._connection.incarnation,
            "after": after,
            "limit": limit,
            "bytes": max_bytes,
            "tag": None if tag is None else tag.encode(),
        }
        seen = self._connection.seen
        rows = self._ask(READ if tag is None else READ_TAG, names)
        # The first five columns are the log's, alike in all rows; the others are an entry's.
        incarnation, tail, trimmed, stopped, known = rows[0][:5] if rows else (None, 0, 0, "", None)
        parts = [row[5:] for row in rows]
        self._connection.check_head(incarnation, tail, stopped, seen)
        checks.check_position(after, trimmed + 1, tail)
        lsn, before = self._known
        if lsn == after > trimmed and before is not None and known != before:
            raise CorruptLog.with_another(after)
        given = [row[1:] for row in parts if row[1] is not None]
        found = unpack_rows(given, after, tag)
        there = parts[0][0] or 0 if parts else 0
        if tag is None and there < min(limit, tail - after):
            raise CorruptLog.without(after + len(found) + 1)
        if tag is None and found:
            self._known = (found[-1].lsn, given[-1][1])
        return found

    def wait(self, after: int, *, timeout_s: float) -> int:
        """See ``LogEngine``."""

        def look() -> int:
            tail = self.tail()
            checks.check_position(after, 0, tail)
            return tail

        return self._listener.wait(look, after, timeout_s)

    def trim(self, through: int, *, configuration: int) -> None:
        """See ``LogEngine``. In force at once; the room is given back piece by piece."""
        try:
            self._connection.call("trim_1", "int8 int8", (configuration, through))
        except FunctionRefused as refused:
            _require_configuration(refused, configuration)
            checks.check_trim(through, refused.facts["snapshot"])
            raise _no_reason(refused) from None
        while self._remove_some(configuration):
            pass

    # Metadata.

    def metadata(self, key: str) -> bytes | None:
        """See ``LogEngine``."""
        return self._head(key).value

    def all_metadata(self) -> dict[str, bytes]:
        """See ``LogEngine``."""
        rows = self._ask(METADATA, {"log": self._connection.incarnation})
        return {key.decode(): value for key, value in rows}

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
        try:
            self._connection.call("put_1", f"int8 {_CONDITION} {_WRITTEN}", arguments)
        except FunctionRefused as refused:
            _require_configuration(refused, configuration)
            checks.require_condition(condition, refused.value)
            raise _no_reason(refused) from None

    # Snapshots.

    def save_snapshot(self, lsn: int, chunks: Iterable[bytes], *, configuration: int) -> None:
        """See ``LogEngine``."""
        self._snapshots.save(lsn, chunks, configuration)

    def load_snapshot(self) -> Snapshot | None:
        """See ``LogEngine``."""
        return self._snapshots.load()

    def close(self) -> None:
        """See ``LogEngine``."""
        self._listener.close()
        self._connection.close()

    def _ask(self, statement: str, names: Mapping[str, Any]) -> list[Any]:
        return self._connection.read(statement.format(self._connection.schema), names)

    def _head(self, key: str = "") -> Head:
        seen = self._connection.seen
        rows = self._ask(STATUS, {"log": self._connection.incarnation, "key": key.encode()})
        head = Head(*rows[0]) if rows else None
        if head is None:
            self._connection.check_head(None, 0, "", seen)
            raise CorruptLog("the log is lost")
        self._connection.check_head(self._connection.incarnation, head.tail, head.stopped, seen)
        return head

    def _lead(
        self,
        action: str,
        configuration: int,
        term_s: float,
        replica: str = "",
        address: str = "",
        metadata: Mapping[str, bytes | None] | None = None,
    ) -> list[Any]:
        names = (replica.encode(), address.encode())
        arguments = [action, configuration, *names, term_s, *_metadata(metadata or {})]
        types = f"text int8 bytea bytea float8 {_WRITTEN}"
        try:
            return self._connection.call("lead_1", types, arguments)
        except FunctionRefused as refused:
            _require_configuration(refused, configuration)
            raise _no_reason(refused) from None

    def _remove_some(self, configuration: int) -> bool:
        """Remove trimmed entries; return whether there may be more."""
        names = {"log": self._connection.incarnation, "limit": _TRIMMED_AT_ONCE}
        gone = self._ask(DOOMED, names)
        if not gone:
            return False
        tagged = [(tag.encode(), lsn) for lsn, packed in gone for tag in unpack_tags(packed)]
        arguments = [configuration, gone[-1][0], [tag for tag, _ in tagged]]
        try:
            self._connection.call(
                "remove_1",
                "int8 int8 bytea[] int8[]",
                [*arguments, [lsn for _, lsn in tagged]],
            )
        except FunctionRefused as refused:
            _require_configuration(refused, configuration)
            raise _no_reason(refused) from None
        return len(gone) == _TRIMMED_AT_ONCE


def _require_configuration(refused: FunctionRefused, configuration: int) -> None:
    checks.require_configuration(configuration, refused.facts["configuration"])


def _no_reason(refused: FunctionRefused) -> CorruptLog:
    return CorruptLog(f"a write was refused for no reason: {refused.facts}")


def _condition(condition: MetadataCondition | None) -> tuple[str, bytes, bytes]:
    if condition is None:
        return "none", b"", b""
    if condition.value is None:
        return "absent", condition.key.encode(), b""
    return "equal", condition.key.encode(), condition.value


def _metadata(metadata: Mapping[str, bytes | None]) -> list[Any]:
    return [[key.encode() for key in metadata], list(metadata.values())]
