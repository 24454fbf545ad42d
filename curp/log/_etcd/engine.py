"""``LogEngine`` over etcd."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from curp.log import _checks as checks
from curp.log._engine import (
    READ_BYTES,
    READ_ENTRIES,
    EngineLimits,
    Entry,
    Leadership,
    MetadataCondition,
    NewEntry,
    NewLog,
    Snapshot,
)
from curp.log._errors import CorruptLog, EngineStopped, EngineUnavailable, InvalidRequest
from curp.log._etcd.connection import Connection
from curp.log._etcd.keys import Tail
from curp.log._etcd.lease import LeaseKey
from curp.log._etcd.reading import Reading
from curp.log._etcd.records import pack_append
from curp.log._etcd.snapshots import Snapshots, find
from rifl._stores.forks import belongs_here
from sharedlog._engines.etcd.address import EtcdAddress
from sharedlog._engines.etcd.calls import (
    absent,
    delete,
    equal,
    get,
    put,
    revision_of,
    scan,
    unchanged,
)
from sharedlog._engines.etcd.compaction import Space
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb
from sharedlog._engines.etcd.watch import Watch

# The most entries and tags of an append, so that their frames fit into a request.
_MOST_ENTRIES = 2_000
_ROOM_BYTES = 512 << 10
# etcd takes 128 operations in one transaction; ours are the others.
_MOST_KEYS = 120
_LOOK_S = 1.0
_TRIMMED_AT_ONCE = 4096
_ROUNDS = 20


class EtcdEngine:
    """One process's way to one group's log in etcd 3.4 or newer; see ``LogEngine``.

    An append is one transaction, which compares the log's id, the configuration number
    and the tail, and writes one key with all its entries, the tail and the metadata.
    All that is read is read from a quorum. A write that is delayed on its way is
    refused when it arrives after a later one: each is also conditional on the revision
    of what it replaces.

    A read by tag reads the whole log from ``after`` on, and keeps what carries it.
    ``limits`` follow from the largest request that the server takes. ``new`` creates
    the log (``LogExists``); without it the log must be there (``NoSuchLog``).
    ``read_only``: nothing is written when it is opened.
    """

    def __init__(
        self,
        address: EtcdAddress,
        group: str,
        *,
        new: NewLog | None = None,
        read_only: bool = False,
    ) -> None:
        self._log = Connection(address, group, new=new, read_only=read_only)
        self._keys = self._log.keys
        self._lease = LeaseKey(self._log)
        self._snapshots = Snapshots(self._log)
        self._reading = Reading(self._log)
        self._space = Space(self._log.client)
        self._watch = Watch(self._log.client, self._keys.tail)
        self.limits = EngineLimits(_MOST_ENTRIES, address.max_request_bytes - _ROOM_BYTES)
        belongs_here(self, "log engine")

    @property
    def durability(self) -> str:
        """See ``LogEngine``."""
        return self._log.durability

    # Leadership.

    def leadership(self) -> Leadership | None:
        """See ``LogEngine``."""
        return self._lease.leadership()

    def take_leadership(self, replica: str, address: str, *, term_s: float) -> int:
        """See ``LogEngine``."""
        checks.check_leader(replica, address, term_s)
        return self._lease.take(replica, address, term_s)

    def renew_leadership(self, configuration: int, *, term_s: float) -> None:
        """See ``LogEngine``."""
        checks.check_term(term_s)
        self._space.moved(self._lease.renew(configuration, term_s))

    def end_leadership(self, configuration: int) -> None:
        """See ``LogEngine``."""
        self._lease.end(configuration)

    def next_configuration(
        self, configuration: int, metadata: Mapping[str, bytes | None], *, term_s: float
    ) -> int:
        """See ``LogEngine``."""
        checks.check_term(term_s)
        checks.check_metadata(metadata)
        return self._lease.next(configuration, self._metadata_writes(metadata), term_s)

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
        tail, keys = expected_tail + len(entries), self._keys
        known = self._reading.known(expected_tail)
        conditions = [self._log.current(configuration)]
        if known:
            conditions.append(equal(keys.tail, Tail(expected_tail, known).value()))
        else:
            above, below = Tail.bounds(expected_tail)
            conditions.append(equal(keys.tail, above, pb.Compare.GREATER))
            conditions.append(equal(keys.tail, below, pb.Compare.LESS))
        if condition is not None:
            conditions.append(self._holds(condition))
        written = self._log.write(
            conditions,
            [
                put(keys.append(tail), pack_append(expected_tail, append_id, entries)),
                put(keys.tail, Tail(tail, append_id).value()),
                *self._metadata_writes(metadata or {}),
            ],
            get(keys.append(tail)),
            *([get(keys.metadata(condition.key))] if condition else []),
            again=True,
        )
        if written.facts is not None:
            there, *values = written.found
            appended = there is not None and there.value.startswith(append_id)
            if not (appended and written.facts.trimmed <= expected_tail):
                found = written.facts.tail
                checks.require_configuration(configuration, written.facts.configuration)
                checks.require_tail(expected_tail, found.lsn)
                if known and known != found.append_id:
                    raise CorruptLog.with_another(found.lsn)
                value = values[0].value if values and values[0] is not None else None
                checks.require_condition(condition, value)
                raise EngineUnavailable("a key changed, and changed back")
        self._log.saw(tail)
        self._reading.know(tail, append_id)
        return tail

    def tail(self) -> int:
        """See ``LogEngine``."""
        facts, _ = self._log.read()
        return facts.tail.lsn

    def first(self) -> int:
        """See ``LogEngine``."""
        facts, _ = self._log.read()
        return facts.trimmed + 1

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
        return self._reading.read(after, limit, max_bytes, tag)

    def wait(self, after: int, *, timeout_s: float) -> int:
        """See ``LogEngine``. A watch wakes it; it looks again every second all the same."""
        end = time.monotonic() + timeout_s
        waited_from: int | None = None
        while True:
            count = self._watch.count
            tail = self.tail()
            checks.check_position(after, 0, tail)
            left_s = end - time.monotonic()
            if tail > after and waited_from is not None:
                self._watch.missed(waited_from)
            if tail > after or left_s <= 0:
                return tail
            self._watch.wait(count, min(left_s, _LOOK_S))
            waited_from = count
            if self._log.client.closing.is_set():
                raise EngineStopped("the log engine was closed")

    def trim(self, through: int, *, configuration: int) -> None:
        """See ``LogEngine``. In force at once; the room is given back piece by piece."""
        keys = self._keys
        for _ in range(_ROUNDS):
            facts, found = self._log.read(get(keys.snapshot), get(keys.trimmed))
            checks.require_configuration(configuration, facts.configuration)
            snapshot = find(found)
            checks.check_trim(through, snapshot and snapshot.lsn)
            if through <= facts.trimmed or not found:
                break
            conditions = [
                self._log.current(configuration),
                unchanged(keys.trimmed, revision_of(found[1].kvs[0])),
            ]
            written = self._log.write(conditions, [put(keys.trimmed, str(through).encode())])
            if written.facts is None:
                break
        while self._remove_some(configuration):
            pass

    # Metadata.

    def metadata(self, key: str) -> bytes | None:
        """See ``LogEngine``."""
        _, found = self._log.read(get(self._keys.metadata(key)))
        return found[0].kvs[0].value if found and found[0].kvs else None

    def all_metadata(self) -> dict[str, bytes]:
        """See ``LogEngine``."""
        _, found = self._log.read(scan(*self._keys.all_metadata(), 0))
        return {self._keys.name_of(kv.key): kv.value for kv in (found[0].kvs if found else ())}

    def put_metadata(
        self,
        metadata: Mapping[str, bytes | None],
        *,
        configuration: int,
        condition: MetadataCondition | None = None,
    ) -> None:
        """See ``LogEngine``."""
        checks.check_metadata(metadata, condition)
        writes = self._metadata_writes(metadata)
        names = [*metadata, *([condition.key] if condition else [])]
        keys = [self._keys.metadata(name) for name in dict.fromkeys(names)]
        for _ in range(_ROUNDS):
            facts, found = self._log.read(*map(get, keys))
            checks.require_configuration(configuration, facts.configuration)
            there = [one.kvs[0] if one.kvs else None for one in found or ()]
            if condition is not None:
                value = there[keys.index(self._keys.metadata(condition.key))]
                checks.require_condition(condition, None if value is None else value.value)
            # A write that was delayed on its way must not undo a later one.
            conditions = [
                unchanged(key, revision_of(kv)) for key, kv in zip(keys, there, strict=True)
            ]
            conditions.append(self._log.current(configuration))
            if not writes or self._log.write(conditions, writes).facts is None:
                return
        raise EngineUnavailable("others write the same metadata at the same time")

    # Snapshots.

    def save_snapshot(self, lsn: int, chunks: Iterable[bytes], *, configuration: int) -> None:
        """See ``LogEngine``."""
        self._snapshots.save(lsn, chunks, configuration)

    def load_snapshot(self) -> Snapshot | None:
        """See ``LogEngine``."""
        return self._snapshots.load()

    def close(self) -> None:
        """See ``LogEngine``."""
        self._log.close()
        self._watch.close()

    def _check_size(self, entries: Sequence[NewEntry]) -> None:
        if len(entries) > self.limits.entries:
            raise InvalidRequest(f"{len(entries)} entries; one append has {self.limits.entries}")
        size = sum(
            len(entry.body) + sum(len(tag.encode()) for tag in entry.tags) for entry in entries
        )
        if size > self.limits.append_bytes:
            raise InvalidRequest(f"{size} bytes; one append has {self.limits.append_bytes}")

    def _metadata_writes(self, metadata: Mapping[str, bytes | None]) -> list[pb.RequestOp]:
        if len(metadata) > _MOST_KEYS:
            raise InvalidRequest(f"{len(metadata)} metadata keys; etcd takes {_MOST_KEYS} at once")
        return [
            delete(self._keys.metadata(name))
            if value is None
            else put(self._keys.metadata(name), value)
            for name, value in metadata.items()
        ]

    def _holds(self, condition: MetadataCondition) -> pb.Compare:
        key = self._keys.metadata(condition.key)
        return absent(key) if condition.value is None else equal(key, condition.value)

    def _remove_some(self, configuration: int) -> bool:
        """Remove keys of trimmed appends; return whether there may be more."""
        first, keys = self._keys.append(0), self._keys
        facts, found = self._log.read(scan(first, keys.log_end, 1, keys_only=True))
        lowest = keys.last_of(found[0].kvs[0].key) if found and found[0].kvs else None
        if lowest is None or lowest > facts.trimmed:
            self._space.moved(facts.revision, trimmed=True)
            return False
        through = min(facts.trimmed, lowest + _TRIMMED_AT_ONCE)
        written = self._log.write(
            [self._log.current(configuration)],
            [delete(first, keys.append(through + 1))],
            again=True,
        )
        if written.facts is not None:
            checks.require_configuration(configuration, written.facts.configuration)
        return True
