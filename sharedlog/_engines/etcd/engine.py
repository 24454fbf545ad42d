"""``Engine`` over etcd."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping

from sharedlog._core.commit import Commit, only_renews
from sharedlog._core.errors import CorruptLog, InvalidRequest, LogFull, LogStopped, LogUnavailable
from sharedlog._core.steps import Lsns, Rows
from sharedlog._engines.checks import check_commit
from sharedlog._engines.checksums import PAGE, damage, named_values, paged, value_of
from sharedlog._engines.engine import Limits
from sharedlog._engines.etcd.address import EtcdAddress
from sharedlog._engines.etcd.budget import SHARE, Budget
from sharedlog._engines.etcd.calls import LEASE_TIME_TO_LIVE, delete, get, put, scan, unchanged
from sharedlog._engines.etcd.commits import MOST_CONDITIONS, Commits
from sharedlog._engines.etcd.compaction import Space
from sharedlog._engines.etcd.connection import EtcdConnection, Facts
from sharedlog._engines.etcd.keys import AppendPlace, after_all
from sharedlog._engines.etcd.reading import Reading
from sharedlog._engines.etcd.records import unpack
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb
from sharedlog._engines.etcd.watch import Watch
from sharedlog._engines.forks import belongs_here
from sharedlog._engines.owner import Home

# Of entries and tags, so that keys and frames fit into what is left of a request.
_MOST_ENTRIES = 2_000
_MOST_OPERATIONS = 220
_MOST_TAGS = 900
_ROOM_BYTES = 512 << 10
_LOOK_S = 1.0
_GET_AT_ONCE = 100
_ENDING_S = 0.1
_ROUNDS = 100
# Appends that are read to learn their tags, and tags that one transaction deletes from.
_PAGE = 32
_TAGS_AT_ONCE = 90


class EtcdEngine:
    """An ``Engine`` in etcd 3.4 or newer; any thread, any number of processes and machines.

    A commit is one transaction on a quorum; those of threads that meet share one, and those of
    processes that meet take turns by the revision of the log's head. All reads are linearizable.
    A commit whose reply was lost is recognised by what it appended, or is ``LogUnavailable``.
    ``limits`` follow from the largest request that the server takes.

    Entries get half of the cluster's quota (``LogFull``), so that fences are raised and trims
    declared where there is no room for entries.
    """

    def __init__(
        self,
        address: EtcdAddress,
        name: str,
        *,
        new: Mapping[str, bytes] | None = None,
        removed: int = 0,
        read_only: bool = False,
        home: Home | None = None,
    ) -> None:
        """Open the log of that name; ``new``: create it, with these keys, behind that LSN.

        ``read_only``: for tools that only look, also at a log that came by a backup. ``home``: of
        a log that is not one of ``sharedlog``'s own. Raises ``NoSuchLog``, ``LogExists``,
        ``NewerFormat``, ``CorruptLog``.
        """
        self._log = EtcdConnection(
            address, name, new=new, removed=removed, read_only=read_only, home=home
        )
        self._space = Space(self._log.client, SHARE)
        self._commits = Commits(self._log, Budget(self._log.client), self._space)
        self._reading = Reading(self._log)
        self._removal = Removal(self._log)
        self._watch = Watch(self._log.client, self._log.keys)
        self.limits = Limits(
            _MOST_ENTRIES,
            address.max_request_bytes - _ROOM_BYTES,
            _MOST_OPERATIONS,
            whole_terms=True,
        )
        belongs_here(self)

    @property
    def durability(self) -> str:
        """What the store promises of an append that returned, in a sentence."""
        return self._log.durability

    def commit(self, commit: Commit) -> Lsns:
        """Commit, or raise ``Refused`` with the values of the conditions' keys."""
        check_commit(commit, self.limits)
        if len(commit.conditions) > MOST_CONDITIONS:
            raise InvalidRequest(
                f"{len(commit.conditions)} conditions in one step; this log takes {MOST_CONDITIONS}"
            )
        tags = {tag for entry in commit.entries for tag in entry.tags}
        if len(tags) > _MOST_TAGS:
            raise InvalidRequest(f"{len(tags)} tags in one append; this log takes {_MOST_TAGS}")
        if not commit.entries and commit.puts:
            renews = all(only_renews(put, commit.conditions) for put in commit.puts)
            renewed = self._commits.renew(commit) if renews else None
            if renewed is not None:
                return renewed
        return self._commits.commit(commit)

    def get(self, keys: tuple[str, ...]) -> dict[str, bytes | None]:
        """Return the values of these keys as of one moment."""
        values: dict[str, bytes | None] = {}
        moment = 0
        for start in range(0, len(keys), _GET_AT_ONCE):
            some = keys[start : start + _GET_AT_ONCE]
            asked = (get(self._log.keys.key(key), revision=moment) for key in some)
            facts, found = self._log.read(*asked)
            moment = moment or facts.revision
            for key, one in zip(some, found, strict=True):
                values[key] = value_of(key, one.kvs[0].value) if one.kvs else None
        return values

    def scan(self, prefix: str) -> dict[str, bytes]:
        """Return the keys with this prefix, and their values, as of one moment."""
        first = self._log.keys.key(prefix)
        return named_values(self._scanned(first, after_all(first), 0))

    def damaged(self) -> list[str]:
        """Return in words which keys are damaged."""
        root = self._log.keys.key("")
        end = after_all(root)
        return damage(paged(lambda after: self._scanned(root + after + b"\0", end, PAGE)))

    def _scanned(self, first: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        _, (found,) = self._log.read(scan(first, end, limit))
        return [(self._log.keys.name_of(kv.key), kv.value) for kv in found.kvs]

    def remaining(self, key: str) -> float:
        """Return the seconds left of a key's term, in whole seconds of etcd's leader."""
        _, (found,) = self._log.read(get(self._log.keys.key(key)))
        if not found.kvs:
            return 0.0
        if not found.kvs[0].lease:
            return float("inf")
        asked = pb.LeaseTimeToLiveRequest(id=found.kvs[0].lease)
        lease = self._log.client.call(LEASE_TIME_TO_LIVE, asked, again=True)
        # Rounded down; and it is there until etcd has noticed that it is over.
        return max(_ENDING_S, min(lease.ttl + 1.0, float(lease.granted_ttl)))

    def read(self, after: int, limit: int, tag: str | None = None) -> Rows:
        """Return rows with LSN above ``after``, with the tag if one is given."""
        return self._reading.read(after, limit, tag)

    def tail(self) -> int:
        """Return the LSN of the last entry, 0 if there was never one."""
        facts, _ = self._log.read()
        return facts.head.tail

    def first(self) -> int:
        """Return the LSN of the oldest row that is there; tail + 1 if there is none."""
        facts, _ = self._log.read()
        return facts.first

    def wait(self, after: int, timeout_s: float) -> int:
        """Wait until the tail is above ``after``: woken by a watch, and looking every second.

        What another request of this process was told meanwhile is not asked again.
        """
        return self._wait(after, timeout_s, 0.0)

    def hear(self, after: int, timeout_s: float) -> int:
        """Wait; what was told within a second is not asked again. See ``Stirring``."""
        return self._wait(after, timeout_s, 0.0 if self.stirs is None else _LOOK_S)

    def _wait(self, after: int, timeout_s: float, known_s: float) -> int:
        watch, since_s = self._watch, time.monotonic()
        end, silent = since_s + timeout_s, False
        while True:
            seen, left_s = self._log.seen, end - time.monotonic()
            looks = silent or not watch.news or left_s <= 0 or seen.tail > after
            if watch.news > seen.revision or (looks and seen.as_of_s < since_s - known_s):
                self.tail()
                seen = self._log.seen
            watch.check(seen.head_revision)
            if seen.tail > after or left_s <= 0:
                return seen.tail
            since_s = time.monotonic()
            silent = not watch.wait(seen.revision, min(left_s, _LOOK_S))
            if self._log.client.closing.is_set():
                raise LogStopped("the log was closed")

    @property
    def stirs(self) -> int | None:
        """A number that is another one soon after a key has changed; see ``Stirring``."""
        return self._watch.stirs

    def remove(self, through: int) -> None:
        """Remove the rows through this LSN, and their tags; idempotent."""
        self._removal.remove(through)
        self._space.moved(self._log.cluster.revision, trimmed=True)

    def close(self) -> None:
        """Close files and connections; idempotent."""
        self._log.close()
        self._watch.close()


class Removal:
    """Removes one log's rows. Any thread."""

    def __init__(self, log: EtcdConnection) -> None:
        self._log = log

    def remove(self, through: int) -> None:
        """Remove rows, and their listings with them; see ``Engine``."""
        keys, rivals = self._log.keys, 0
        while True:
            facts, (found,) = self._log.read(scan(keys.log, keys.log_end, _PAGE))
            last = min(through, facts.head.tail)
            doomed, tags, more = self._doomed(found, last)
            if facts.removed is not None and facts.removed >= last and not doomed:
                return
            target = doomed[-1].last if more else last
            deletes = []
            if doomed:
                deletes.append(delete(keys.log, keys.from_lsn(target + 1)))
                behind = b"%016x" % (target + 1)
                deletes += [delete(keys.tag(tag), keys.tag(tag) + behind) for tag in sorted(tags)]
            if self._step(facts, deletes, target):
                rivals = 0
                if not more:
                    return
            elif (rivals := rivals + 1) > _ROUNDS:
                raise LogUnavailable("others remove entries at the same time")

    def _doomed(
        self, found: pb.RangeResponse, last: int
    ) -> tuple[list[AppendPlace], set[str], bool]:
        """Return appends that go now, their tags, and whether there may be more."""
        doomed: list[AppendPlace] = []
        tags: set[str] = set()
        for kv in found.kvs:
            place = AppendPlace.read(kv.key)
            if place.last > last:
                return doomed, tags, False
            mine: set[str] = set()
            # A damaged one goes without its listings: below what is removed none is read.
            with contextlib.suppress(CorruptLog):
                mine.update(tag for row in unpack(place, kv.value) for tag in row.tags)
            if doomed and len(tags | mine) > _TAGS_AT_ONCE:
                return doomed, tags, True
            doomed.append(place)
            tags |= mine
        return doomed, tags, len(found.kvs) == _PAGE

    def _step(self, facts: Facts, deletes: list[pb.RequestOp], target: int) -> bool:
        """Do it in one step, if no other process removed anything meanwhile."""
        keys = self._log.keys
        compare = [unchanged(keys.removed, facts.removed_revision)]
        noted = [put(keys.removed, b"%d" % max(target, facts.removed or 0))]
        try:
            _, instead, _ = self._log.write(compare, [*noted, *deletes], (), again=True)
        except LogFull:
            if not deletes:
                raise
            # It takes no transactions. What is there tells how far it went: listings of what is
            # not there are below all that is read.
            for one in (delete(keys.removed), *deletes):
                self._log.cluster.delete(one.delete_range)
            return True
        return instead is None
