"""Commits to a log in etcd: those that meet share a transaction, rivals take turns."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from sharedlog._core.commit import Commit, Condition, Refused, stamped
from sharedlog._core.errors import CorruptLog, LogError, LogFull, LogUnavailable
from sharedlog._core.steps import Lsns
from sharedlog._engines.checksums import expected, kept, value_of
from sharedlog._engines.etcd.budget import Budget
from sharedlog._engines.etcd.calls import LEASE_GRANT, absent, delete, equal, get, put, unchanged
from sharedlog._engines.etcd.compaction import Space
from sharedlog._engines.etcd.connection import EtcdConnection, Facts
from sharedlog._engines.etcd.keys import MARK_BYTES, AppendPlace, EtcdHead
from sharedlog._engines.etcd.records import pack
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb
from sharedlog._engines.group_commit import GroupCommit, PendingCommit

# Of conditions' keys in one transaction: each is compared there, or read if that failed.
MOST_CONDITIONS = 110
# Of what one transaction writes: keys, and listings under tags.
MOST_WRITES = 1200
_MOST_COMMITS = 64
# For what is neither a body nor a name: frames, checksums, marks.
_ROOM_BYTES = 128 << 10
_EACH_BYTES = 128
_ROUNDS = 200
_PAUSE_S = 0.02


class _State(NamedTuple):
    """The log's head by a revision, and what some of its keys held then.

    ``terms``: those of them that etcd removes by itself, and that may be gone by the same head.
    """

    head: EtcdHead
    revision: int
    values: Mapping[str, bytes | None]
    terms: Collection[str] = ()


class _Plan(NamedTuple):
    """The plan of one transaction: its commits, and their conditions."""

    included: list[tuple[PendingCommit, Lsns]]
    head: EtcdHead
    view: dict[str, bytes | None]
    # Seconds, of the keys in ``view`` that have one.
    terms: dict[str, float]
    compare: list[pb.Compare]
    writes: list[pb.RequestOp]
    # An append of it, by which it is recognised if its reply is lost.
    place: AppendPlace | None


class Commits:
    """Judges commits and writes them. Any thread.

    Each transaction writes the log's head, and is conditional on the revision of the head that
    its writer knows: whatever was read with that head is still so, if it succeeds. Conditions on
    keys that were not read, and on those with a term, are compared in the transaction itself, so
    that a commit without a rival takes one round trip. One that fails brings what is so instead,
    as of one revision, by which all of its commits are judged again.
    """

    def __init__(self, log: EtcdConnection, budget: Budget, space: Space) -> None:
        self._log = log
        self._budget = budget
        self._space = space
        self._group_commit = GroupCommit(self._write)
        # Of the thread that writes.
        self._state: _State | None = None
        # Whether it was read after the waiting calls began: an older one refuses no call.
        self._fresh = False
        self._most_bytes = log.address.max_request_bytes - _ROOM_BYTES
        self._pause = threading.Event()

    def commit(self, commit: Commit) -> Lsns:
        """Have it happen; blocks. Raises ``Refused``, ``LogError``."""
        return self._group_commit.commit(commit)

    def renew(self, commit: Commit) -> Lsns | None:
        """Have terms of keys run anew, in a step of its own; None: a condition does not hold.

        The head is not written, so that no thread is woken, and what was read with it stays so:
        keys with a term are compared in each transaction.
        """
        keys = self._log.keys
        compare = [_holds(keys.key(key), expected(key, value)) for key, value in commit.conditions]
        puts = self._puts((put.key, put.value, put.term_s) for put in commit.puts)
        writes = [*puts, get(keys.head)]
        asked_s = time.monotonic()
        revision, instead, found = self._log.write(compare, writes, (), again=True)
        self._space.moved(revision)
        if instead is not None:
            return None
        there = found[0].kvs[0] if found[0].kvs else pb.KeyValue()
        head = EtcdHead.read(there.value)
        self._log.saw(revision, head, there.mod_revision, asked_s)
        return Lsns(head.tail, head.tail)

    def _write(self, waiting: Sequence[PendingCommit]) -> None:
        """Settle all of them; called by one thread at a time."""
        left = list(waiting)
        self._fresh = False
        try:
            for number in range(_ROUNDS):
                if not left:
                    return
                if number and number % 10 == 0:
                    # Rivals of other processes, again and again: not in step with them.
                    self._pause.wait(_PAUSE_S * secrets.randbelow(1000) / 1000)
                chosen, rest = self._chosen(left)
                left = self._round(chosen) + rest
            raise LogUnavailable("others commit all the time")
        except Exception as error:  # noqa: BLE001 - it is the waiting calls get it
            self._state = None
            if isinstance(error, CorruptLog) and len(left) > 1:
                # A damaged key fails only the commits that use it.
                for each in left:
                    self._write([each])
                return
            for each in left:
                each.failed(error)

    def _chosen(
        self, left: Sequence[PendingCommit]
    ) -> tuple[list[PendingCommit], list[PendingCommit]]:
        """Return as many as one transaction takes, at least one, and the others."""
        keys: set[str] = set()
        writes = size = 0
        for number, each in enumerate(left):
            keys |= {condition.key for condition in each.commit.conditions}
            writes += _writes_of(each.commit)
            size += _bytes_of(each.commit)
            if number and (
                len(keys) > MOST_CONDITIONS
                or writes > MOST_WRITES
                or size > self._most_bytes
                or number >= _MOST_COMMITS
            ):
                return list(left[:number]), list(left[number:])
        return list(left), []

    def _round(self, chosen: list[PendingCommit]) -> list[PendingCommit]:
        """Try a transaction; return those that are not settled."""
        keys = list(dict.fromkeys(one.key for each in chosen for one in each.commit.conditions))
        asked = [get(self._log.keys.key(key)) for key in keys]
        if self._state is None:
            facts, found = self._log.read(*asked)
            self._state = _state(facts, keys, found)
            self._fresh = True
        mark = secrets.token_bytes(MARK_BYTES)
        plan, unsettled = self._plan(self._state, chosen, mark)
        if not plan.included:
            return unsettled
        if plan.place is not None:
            asked.append(get(self._log.keys.append(plan.place)))
        mine = [each for each, _ in plan.included]
        try:
            # Without an entry it would not be recognised: it is sent once.
            puts = ((key, value, plan.terms.get(key)) for key, value in plan.view.items())
            writes = [*plan.writes, *self._puts(puts)]
            revision, instead, found = self._log.write(
                plan.compare, writes, asked, again=plan.place is not None
            )
        except LogError as error:
            # Of these alone: the others were not sent.
            known, self._state = self._state.revision, None
            told = self._full(error, plan, asked, mark, known)
            if told is None:
                self._settle(plan)
                return unsettled
            for each in mine:
                each.failed(told)
            return unsettled if not isinstance(told, LogUnavailable) else self._gave_up(unsettled)
        self._space.moved(revision)
        self._fresh = True
        if instead is None:
            self._log.saw(revision, plan.head, revision)
            stays = {key: value for key, value in plan.view.items() if key not in plan.terms}
            self._state = _State(plan.head, revision, stays)
            self._settle(plan)
            return unsettled
        self._state = None
        if _was_done(plan, mark, instead, found):
            # Its reply was lost.
            self._settle(plan)
            return unsettled
        if plan.place is not None and instead.first > plan.place.last:
            for each in mine:
                each.failed(LogUnavailable("what was appended was trimmed before its reply came"))
            return unsettled
        self._state = _state(instead, keys, found)
        return mine + unsettled

    def _full(
        self,
        error: LogError,
        plan: _Plan,
        asked: Sequence[pb.RequestOp],
        mark: bytes,
        known: int,
    ) -> LogError | None:
        """Return what to tell of a transaction that failed so; None if it was done.

        etcd looks for room before it proposes one, and refuses it, and again as it applies it, and
        then does it and says the same (``quotaApplierV3`` in etcdserver/apply/quota.go).
        """
        if not isinstance(error, LogFull):
            return error
        try:
            facts, found = self._log.read(*asked)
        except LogError as unread:
            return unread
        if _was_done(plan, mark, facts, found):
            return None
        if facts.head_revision == known or (plan.place and facts.first <= plan.place.last):
            return error
        return LogUnavailable(f"{error}; others wrote since, and whether it was done is not known")

    def _gave_up(self, unsettled: list[PendingCommit]) -> list[PendingCommit]:
        """Fail those, too, that were not sent: no call waits for one timeout after another."""
        for each in unsettled:
            each.failed(LogUnavailable("the commits before this one could not be sent"))
        return []

    def _puts(self, puts: Iterable[tuple[str, bytes | None, float | None]]) -> list[pb.RequestOp]:
        """Return the writes of keys: those with one term go with one new lease of etcd's.

        A mere keep-alive of an older one would not do: it is answered from one member's memory,
        so a member that led once and does not know better answers it too (etcd issue 15247).
        Leases whose keys moved on run out.
        """
        leases: dict[int, int] = {}
        writes = []
        for name, value, term_s in puts:
            key, lease = self._log.keys.key(name), 0
            if value is None:
                writes.append(delete(key))
                continue
            if term_s is not None:
                # Up: who counts on its whole term must have it. It runs from here.
                ttl = math.ceil(term_s)
                if ttl not in leases:
                    asked = pb.LeaseGrantRequest(ttl=ttl)
                    leases[ttl] = self._log.client.call(LEASE_GRANT, asked, again=True).id
                lease = leases[ttl]
            writes.append(put(key, kept(name, value), lease=lease))
        return writes

    def _settle(self, plan: _Plan) -> None:
        for each, lsns in plan.included:
            each.done(lsns)

    def _plan(
        self, state: _State, chosen: Sequence[PendingCommit], mark: bytes
    ) -> tuple[_Plan, list[PendingCommit]]:
        """Say what one transaction may do; refuse what cannot be; return what has to wait."""
        keys = self._log.keys
        head, view, deferred = state.head, dict[str, bytes | None](), list[PendingCommit]()
        plan = _Plan([], head, view, {}, [unchanged(keys.head, state.revision)], [], None)
        compared: dict[str, bytes | None] = {}
        here = ChainMap(view, compared, dict(state.values))
        listed: list[pb.RequestOp] = []
        place: AppendPlace | None = None
        for each in chosen:
            commit = each.commit
            unmet = [one for one in commit.conditions if here.get(one.key, one.value) != one.value]
            if unmet:
                if self._fresh and _known(commit.conditions, state.values, view):
                    found = {one.key: state.values[one.key] for one in commit.conditions}
                    each.done(Refused(found))
                else:
                    # What it depends on is about to be written, or has to be read (again).
                    deferred.append(each)
                continue
            if commit.entries and (full := self._budget.refusal(_bytes_of(commit))):
                # It is of no use that was trimmed, until it is forgotten.
                self._space.make_room(self._log.cluster.revision)
                each.failed(full)
                continue
            for one in commit.conditions:
                if one.key not in view and (one.key not in state.values or one.key in state.terms):
                    compared[one.key] = one.value
            count = len(commit.entries)
            lsns = Lsns(head.tail + 1 if count else head.tail, head.tail + count)
            for new in commit.puts:
                view[new.key] = stamped(new, *lsns)
                plan.terms.pop(new.key, None)
                if new.term_s is not None:
                    plan.terms[new.key] = new.term_s
            if count:
                head = EtcdHead(lsns.last, max(head.at_us, commit.at_us), mark)
                place = AppendPlace(lsns.last, count)
                value = pack(mark, lsns.first, head.at_us, commit.entries)
                listed.append(put(keys.append(place), value))
                tags = {tag for entry in commit.entries for tag in entry.tags}
                listed += [put(keys.tagged(tag, place), b"") for tag in sorted(tags)]
            plan.included.append((each, lsns))
        head = head._replace(mark=mark)
        plan.compare.extend(
            _holds(keys.key(key), expected(key, value)) for key, value in compared.items()
        )
        plan.writes.append(put(keys.head, head.value()))
        plan.writes.extend(listed)
        if deferred and not plan.included and state.values:
            # Nothing stands in their way but what was not read.
            self._state = None
        return plan._replace(head=head, place=place), deferred


def _state(facts: Facts, keys: Sequence[str], found: Sequence[pb.RangeResponse]) -> _State:
    values = {
        key: value_of(key, one.kvs[0].value) if one.kvs else None
        for key, one in zip(keys, found, strict=False)
    }
    terms = {key for key, one in zip(keys, found, strict=False) if one.kvs and one.kvs[0].lease}
    return _State(facts.head, facts.head_revision, values, terms)


def _known(
    conditions: Sequence[Condition],
    values: Mapping[str, bytes | None],
    view: Mapping[str, bytes | None],
) -> bool:
    """Whether all of a refusal is known: what the keys hold, with no write of them queued."""
    return all(one.key in values and one.key not in view for one in conditions)


def _was_done(plan: _Plan, mark: bytes, facts: Facts, found: Sequence[pb.RangeResponse]) -> bool:
    """Whether a transaction is among what was done, by what is so now: its mark is there."""
    if facts.head.mark == mark:
        return True
    return plan.place is not None and any(one.value.startswith(mark) for one in found[-1].kvs)


def _holds(key: bytes, value: bytes | None) -> pb.Compare:
    return absent(key) if value is None else equal(key, value)


def _writes_of(commit: Commit) -> int:
    tags = {tag for entry in commit.entries for tag in entry.tags}
    return 1 + len(tags) + len(commit.puts)


def _bytes_of(commit: Commit) -> int:
    """Return about how many bytes a commit takes in a request, rather more."""
    size = _EACH_BYTES
    tags: set[str] = set()
    for entry in commit.entries:
        size += len(entry.body) + sum(map(len, entry.tags)) + 32
        tags.update(entry.tags)
    # Quoted in keys.
    size += sum(3 * len(tag) + _EACH_BYTES for tag in tags)
    held = [(one.key, one.value) for one in commit.conditions]
    held += [(one.key, one.value) for one in commit.puts]
    return size + sum(len(key) + len(value or b"") + _EACH_BYTES for key, value in held)
