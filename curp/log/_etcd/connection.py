"""Transactions on one log in etcd, which notice that it is another, or went back."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from typing import NamedTuple

from curp.log._checks import APPEND_ID_BYTES
from curp.log._engine import NewLog
from curp.log._errors import CorruptLog, LogExists, NoSuchLog
from curp.log._etcd.keys import Keys, LogId, Tail, read_number
from curp.log._owner import GROUPS
from sharedlog._engines.etcd.address import EtcdAddress
from sharedlog._engines.etcd.calls import absent, equal, get, newest, put, scan
from sharedlog._engines.etcd.cluster import Cluster
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb

FORMAT = 1


class Facts(NamedTuple):
    """What a log is at one revision."""

    revision: int
    configuration: int
    tail: Tail
    trimmed: int


class Written(NamedTuple):
    """What became of a conditional write.

    ``facts``: None if it was done; else what is so instead, and ``found``, what the
    keys hold that were asked for in this case.
    """

    revision: int
    facts: Facts | None = None
    found: Sequence[pb.KeyValue | None] = ()


class Connection:
    """One process's way to a group's log in etcd. Any thread.

    Every write is conditional on the log's id, and every answer is held against what
    was seen here before it was asked for: another cluster's id, a revision or a tail
    that went back is ``CorruptLog``: a cluster that was restored from a backup, or a
    node that lost what it had.
    """

    def __init__(
        self, address: EtcdAddress, group: str, *, new: NewLog | None, read_only: bool
    ) -> None:
        self.address = address
        self.keys = Keys(address.prefix, group)
        self._tail = 0
        self._lock = threading.Lock()
        self._cluster = Cluster(address, GROUPS)
        self.client = self._cluster.client
        try:
            self._log_id = self._open(group, new, read_only=read_only)
            if not read_only:
                self._cluster.try_size(self.keys.log_id)
            self.durability = self._cluster.ask_durability()
        except BaseException:
            self._cluster.close()
            raise

    def read(
        self, *asked: pb.RequestOp, compare: Sequence[pb.Compare] = ()
    ) -> tuple[Facts, list[pb.RangeResponse] | None]:
        """Return facts, and what was asked for at the same revision; None: it compares not.

        Linearizable: it sees every write that was acknowledged before.
        """
        request = pb.TxnRequest(
            compare=compare, success=[*self._facts_asked(), *asked], failure=self._facts_asked()
        )
        before = self._tail
        response = self._cluster.send(request, again=True)
        facts = self._judge(response, before)
        if not response.succeeded:
            return facts, None
        return facts, [one.range for one in response.responses[_FACTS:]]

    def write(
        self,
        compare: Sequence[pb.Compare],
        writes: Sequence[pb.RequestOp],
        *asked: pb.RequestOp,
        again: bool = False,
    ) -> Written:
        """Write if all that holds, in one step; ``asked``: what to look at if it does not.

        ``again``: sent to the next node if a reply is lost. One that was done then
        looks refused: its caller sees by what it finds.
        """
        request = pb.TxnRequest(
            compare=[equal(self.keys.log_id, self._log_id), *compare],
            success=writes,
            failure=[*self._facts_asked(), *asked],
        )
        self._cluster.check_size(request)
        before = self._tail
        response = self._cluster.send(request, again=again)
        if response.succeeded:
            return Written(response.header.revision)
        facts = self._judge(response, before)
        return Written(facts.revision, facts, newest(response.responses[_FACTS:]))

    def current(self, configuration: int) -> pb.Compare:
        """Require that the number, which is above 0, is the current one."""
        number = str(configuration).encode() if configuration > 0 else b"none"
        return equal(self.keys.configuration, number)

    def saw(self, tail: int) -> None:
        """Note a tail that the log had: it is never below that again."""
        with self._lock:
            self._tail = max(self._tail, tail)

    def close(self) -> None:
        """Close the connections; idempotent."""
        self._cluster.close()

    def _facts_asked(self) -> list[pb.RequestOp]:
        keys = self.keys
        return [get(key) for key in (keys.log_id, keys.configuration, keys.tail, keys.trimmed)]

    def _judge(self, response: pb.TxnResponse, before: int) -> Facts:
        log_id, configuration, tail, trimmed = newest(response.responses[:_FACTS])
        if log_id is None or log_id.value != self._log_id:
            raise CorruptLog(f"{self.address} has lost the log, or has another one in its place")
        if configuration is None or tail is None or trimmed is None:
            raise CorruptLog(f"{self.address} has lost parts of the log")
        facts = Facts(
            response.header.revision,
            read_number("configuration number", configuration.value),
            Tail.read(tail.value),
            read_number("trimmed part", trimmed.value),
        )
        if facts.tail.lsn < before:
            raise CorruptLog(
                f"the log went back: it ends at {facts.tail.lsn}, and {before} was seen"
            )
        self.saw(facts.tail.lsn)
        return facts

    # Opening.

    def _open(self, group: str, new: NewLog | None, *, read_only: bool) -> bytes:
        found = self._look()
        if new is not None:
            if found is not None:
                raise LogExists.of(str(self.address), group)
            return self._create(group, new)
        if found is None:
            (rest,) = self._cluster.send(
                pb.TxnRequest(success=[scan(self.keys.root, self.keys.end, 1)]), again=True
            ).responses
            if rest.range.kvs:
                raise CorruptLog(f"{self.address} has no id for the log of {group!r}")
            raise NoSuchLog.of(str(self.address), group)
        return self._check(group, found, read_only=read_only)

    def _create(self, group: str, new: NewLog) -> bytes:
        keys = self.keys
        log_id = LogId(secrets.token_hex(16), FORMAT, self._cluster.id).value()
        request = pb.TxnRequest(
            compare=[absent(keys.root, keys.end)],
            success=[
                put(keys.log_id, log_id),
                put(keys.configuration, str(new.configuration).encode()),
                put(keys.tail, Tail(new.trimmed, bytes(APPEND_ID_BYTES)).value()),
                put(keys.trimmed, str(new.trimmed).encode()),
                *(put(keys.metadata(name), value) for name, value in new.metadata.items()),
            ],
        )
        if (
            not self._cluster.send(request, again=True).succeeded
            and (found := self._look()) != log_id
        ):
            if found is None:
                raise CorruptLog(f"{self.address} has parts of a log of {group!r}")
            raise LogExists.of(str(self.address), group)
        return log_id

    def _look(self) -> bytes | None:
        response = self._cluster.send(pb.TxnRequest(success=[get(self.keys.log_id)]), again=True)
        (found,) = newest(response.responses)
        return None if found is None else found.value

    def _check(self, group: str, value: bytes, *, read_only: bool) -> bytes:
        found = LogId.read(value)
        if found.format > FORMAT:
            raise CorruptLog(
                f"the log of {group!r} has format {found.format}, written by a newer release; "
                f"this one knows {FORMAT}"
            )
        if found.cluster != self._cluster.id and not read_only:
            raise CorruptLog(
                f"the log of {group!r} was made in cluster {found.cluster}, and this is cluster "
                f"{self._cluster.id}: what was acknowledged after the backup it came by is not in "
                "it (curp log accept-loss has it go on all the same)"
            )
        return value


_FACTS = 4
