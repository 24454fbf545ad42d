"""Reads and writes of one log in etcd, which notice that it is another, or went back."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sharedlog._core.errors import CorruptLog, LogExists, LogFull, NoSuchLog
from sharedlog._engines.checksums import kept
from sharedlog._engines.etcd.address import EtcdAddress
from sharedlog._engines.etcd.calls import absent, equal, get, newest, put, scan
from sharedlog._engines.etcd.cluster import Cluster
from sharedlog._engines.etcd.keys import MARK_BYTES, AppendPlace, EtcdHead, Keys, LogId
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb
from sharedlog._engines.formats import check_format
from sharedlog._engines.owner import LOG, Home

FORMAT = 1


class Facts(NamedTuple):
    """What a log is at one revision. ``head_revision``: by which the head was written.

    ``removed`` is None if that is not known but by what is there; ``lowest``: the oldest
    append that is there.
    """

    revision: int
    head: EtcdHead
    head_revision: int
    removed: int | None
    removed_revision: int
    lowest: AppendPlace | None

    @property
    def first(self) -> int:
        """The oldest LSN that is there, tail + 1 if there is none."""
        if self.removed is not None:
            return self.removed + 1
        return self.head.tail + 1 if self.lowest is None else self.lowest.first


class SeenHead(NamedTuple):
    """The newest that a process has seen of a log: as of ``revision``.

    ``as_of_s``: every append that returned before then is in it, by the monotonic clock.
    """

    revision: int = 0
    tail: int = 0
    head_revision: int = 0
    mark: bytes = b""
    as_of_s: float = 0.0


class EtcdConnection:
    """One process's way to a log in etcd. Any thread.

    Every write is conditional on the log's id, and every answer is held against what was seen
    here before: a head that is older than that, or another one by the same revision, is
    ``CorruptLog``, as what ``Cluster`` notices is.
    """

    def __init__(
        self,
        address: EtcdAddress,
        name: str,
        *,
        new: Mapping[str, bytes] | None,
        removed: int = 0,
        read_only: bool = False,
        home: Home | None = None,
    ) -> None:
        home = home or home_of(address, name)
        self.address = address
        self._format = home.format
        self._remedy = told_remedy(home)
        self.keys = Keys(home.root)
        self.seen = SeenHead()
        # It may be asked for within itself, by a signal's handler: what it guards is whole by then.
        self._lock = threading.RLock()
        self.cluster = Cluster(address, home.owner)
        self.client = self.cluster.client
        try:
            if new is not None:
                self._id = self._create(name, new, removed)
            else:
                self._id = self._find(name, read_only=read_only)
            if not read_only:
                self.cluster.try_size(self.keys.id)
            self.durability = self.cluster.ask_durability()
        except BaseException:
            self.cluster.close()
            raise

    def read(self, *asked: pb.RequestOp) -> tuple[Facts, list[pb.RangeResponse]]:
        """Return facts, and what was asked for at the same revision.

        Linearizable: it sees every write that was acknowledged before.
        """
        before, asked_s = self.seen, time.monotonic()
        wanted = [*self._facts_asked(), *asked]
        try:
            response = self.cluster.send(pb.TxnRequest(success=wanted), again=True)
            revision, found = response.header.revision, [one.range for one in response.responses]
        except LogFull:
            found = self.cluster.ranges([one.range for one in wanted])
            revision = found[0].header.revision
        return self._judge(revision, found[:_FACTS], before, asked_s), found[_FACTS:]

    def write(
        self,
        compare: Sequence[pb.Compare],
        writes: Sequence[pb.RequestOp],
        asked: Sequence[pb.RequestOp],
        *,
        again: bool,
    ) -> tuple[int, Facts | None, list[pb.RangeResponse]]:
        """Write if all that holds, in one step: the revision; else facts, and what was asked.

        What ``writes`` read is returned, too.

        ``again``: sent to the next node if a reply is lost. One that was done then looks refused:
        its caller sees by what it finds.
        """
        before, asked_s = self.seen, time.monotonic()
        request = pb.TxnRequest(
            compare=[equal(self.keys.id, self._id), *compare],
            failure=[*self._facts_asked(), *asked],
        )
        request.success.extend(grouped(writes, max(len(request.compare), len(request.failure))))
        self.cluster.check_size(request)
        response = self.cluster.send(request, again=again, writes=True)
        revision = response.header.revision
        if response.succeeded:
            done = response.responses
            return revision, None, [one.range for one in done if one.HasField("range")]
        found = [one.range for one in response.responses]
        return revision, self._judge(revision, found[:_FACTS], before, asked_s), found[_FACTS:]

    def saw(self, revision: int, head: EtcdHead, head_revision: int, asked_s: float = 0.0) -> None:
        """Note a head that the log has at a revision: it never goes back.

        ``asked_s``: when the request was sent that it was read by.
        """
        with self._lock:
            seen = self.seen
            if revision >= seen.revision:
                seen = SeenHead(revision, head.tail, head_revision, head.mark, seen.as_of_s)
            self.seen = seen._replace(as_of_s=max(asked_s, seen.as_of_s))

    def close(self) -> None:
        """Close the connections; idempotent."""
        self.cluster.close()

    def _facts_asked(self) -> list[pb.RequestOp]:
        keys = self.keys
        lowest = scan(keys.log, keys.log_end, 1, keys_only=True)
        return [get(keys.id), get(keys.head), get(keys.removed), lowest]

    def _judge(
        self, revision: int, found: Sequence[pb.RangeResponse], before: SeenHead, asked_s: float
    ) -> Facts:
        log_id, head, removed, lowest = (one.kvs[0] if one.kvs else None for one in found)
        if log_id is None or log_id.value != self._id:
            raise CorruptLog(f"{self.address} has lost the log, or has another one in its place")
        if head is None:
            raise CorruptLog(f"{self.address} has lost the log's head")
        if removed is not None and not removed.value.isdigit():
            raise CorruptLog(f"the log's trimmed part is damaged: {removed.value!r}")
        facts = Facts(
            revision,
            EtcdHead.read(head.value),
            head.mod_revision,
            None if removed is None else int(removed.value),
            0 if removed is None else removed.mod_revision,
            None if lowest is None else AppendPlace.read(lowest.key),
        )
        written = before.head_revision
        if facts.head_revision < written:
            raise CorruptLog(
                f"the log went back: its head is of revision {facts.head_revision}, and {written} "
                "was seen"
            )
        if facts.head_revision == written and facts.head.mark != before.mark:
            raise CorruptLog(f"the log's head of revision {written} is not the one that was seen")
        self.saw(revision, facts.head, facts.head_revision, asked_s)
        return facts

    # Opening.

    def _create(self, name: str, new: Mapping[str, bytes], removed: int) -> bytes:
        keys = self.keys
        # To learn the cluster's number.
        found = self._look()
        made = LogId(secrets.token_hex(16), self._format, self.cluster.id).value()
        writes = [
            put(keys.id, made),
            put(keys.head, EtcdHead(removed, 0, secrets.token_bytes(MARK_BYTES)).value()),
            put(keys.removed, b"%d" % removed),
            *(put(keys.key(key), kept(key, value)) for key, value in new.items()),
        ]
        request = pb.TxnRequest(compare=[absent(keys.root, keys.end)])
        request.success.extend(grouped(writes, 1))
        self.cluster.check_size(request)
        if found is None:
            if _put_once(self.cluster, keys, request, made):
                return made
            found = self._look()
        if found is None:
            raise CorruptLog(f"{self.address} has parts of a log {name!r}, and not its id")
        raise LogExists(f"{self.address} has a log {name!r} already: open it")

    def _find(self, name: str, *, read_only: bool) -> bytes:
        value, made = found_log(self.cluster, self.keys, name, self._format)
        if made.cluster != self.cluster.id and not read_only:
            raise CorruptLog(restored_elsewhere(name, made, self.cluster.id, self._remedy))
        return value

    def _look(self) -> bytes | None:
        return _id_of(self.cluster, self.keys)


def found_log(cluster: Cluster, keys: Keys, name: str, known: int) -> tuple[bytes, LogId]:
    """Return the id of the log that is there, whole and read; only reads.

    Raises ``NoSuchLog``, ``CorruptLog``, ``NewerFormat`` for a format above ``known``.
    """
    value = _id_of(cluster, keys)
    if value is None:
        rest = pb.TxnRequest(success=[scan(keys.root, keys.end, 1)])
        if cluster.send(rest, again=True).responses[0].range.kvs:
            raise CorruptLog(f"{cluster.address} has parts of a log {name!r}, and not its id")
        raise NoSuchLog(f"{cluster.address} has no log {name!r}; create makes one")
    found = LogId.read(value)
    check_format(found.format, known, f"{cluster.address}: the log {name!r}")
    return value, found


def told_remedy(home: Home) -> str:
    """Return what is said of the command that accepts a loss, if there is one."""
    return home.remedy and f" ({home.remedy} has it go on all the same)"


def restored_elsewhere(name: str, made: LogId, now: int, remedy: str) -> str:
    """Return what is said of a log that was made in another cluster than ``now``."""
    return (
        f"the log {name!r} was made in cluster {made.cluster}, and this is cluster {now}: what "
        f"was acknowledged after the backup it came by is not in it{remedy}"
    )


def home_of(address: EtcdAddress, name: str) -> Home:
    """Return where a shared log is kept."""
    return Home(LOG, f"{address.prefix}/log:{name}/", FORMAT, "sharedlog accept-loss")


def accept_cluster(address: EtcdAddress, name: str, new: Mapping[str, bytes]) -> str:
    """Have a log be of the cluster that it is in; why it was not, empty if it was.

    It gets another id and these keys: programs that had it open have another log from then on.
    """
    keys = Keys(home_of(address, name).root)
    with contextlib.closing(Cluster(address, LOG)) as cluster:
        while True:
            value = _id_of(cluster, keys)
            if value is None:
                raise NoSuchLog(f"{address} has no log {name!r}")
            found = LogId.read(value)
            if found.cluster == cluster.id:
                return ""
            made = LogId(secrets.token_hex(16), found.format, cluster.id).value()
            writes = [
                put(keys.id, made),
                *(put(keys.key(key), kept(key, each)) for key, each in new.items()),
            ]
            request = pb.TxnRequest(compare=[equal(keys.id, value)], success=writes)
            if _put_once(cluster, keys, request, made):
                return f"it was made in cluster {found.cluster}, and this is cluster {cluster.id}"


def _id_of(cluster: Cluster, keys: Keys) -> bytes | None:
    response = cluster.send(pb.TxnRequest(success=[get(keys.id)]), again=True)
    (found,) = newest(response.responses)
    return None if found is None else found.value


def _put_once(cluster: Cluster, keys: Keys, request: pb.TxnRequest, made: bytes) -> bool:
    """Put an id by a transaction that is sent again if its reply is lost; whether it is there."""
    try:
        done = cluster.send(request, again=True).succeeded
    except LogFull:
        # etcd says so of what it did, too (see ``Commits._full``).
        if _id_of(cluster, keys) == made:
            return True
        raise
    return done or _id_of(cluster, keys) == made


_FACTS = 4
# What etcd takes in each list of a transaction, and in those within it together with it.
_OPERATIONS = 128


def grouped(steps: Sequence[pb.RequestOp], beside: int) -> Sequence[pb.RequestOp]:
    """Return operations for one transaction, in groups if they are too many for its list.

    etcd lets a transaction within another have as many as the outer one's longest list leaves
    of its bound. ``beside``: the longest of the other lists.
    """
    if len(steps) <= _OPERATIONS:
        return steps
    groups = 2
    while (size := -(-len(steps) // groups)) > _OPERATIONS - max(groups, beside):
        groups += 1
    return [
        pb.RequestOp(txn=pb.TxnRequest(success=steps[start : start + size]))
        for start in range(0, len(steps), size)
    ]
