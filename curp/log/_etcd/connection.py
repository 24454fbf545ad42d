"""Transactions on one log in etcd, which notice that it is another, or went back."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from typing import NamedTuple

import grpc

from curp.log._checks import APPEND_ID_BYTES
from curp.log._engine import NewLog
from curp.log._errors import (
    CorruptLog,
    EngineUnavailable,
    InvalidRequest,
    LogExists,
    NoSuchLog,
)
from curp.log._etcd.address import DEFAULT_REQUEST_BYTES, EtcdAddress
from curp.log._etcd.calls import (
    STATUS,
    TXN,
    absent,
    equal,
    get,
    may_be_better_elsewhere,
    newest,
    put,
    scan,
)
from curp.log._etcd.client import Client
from curp.log._etcd.keys import Keys, LogId, Tail, read_number
from curp.log._etcd.v1 import etcd_pb2 as pb
from rifl._log import get_logger

_log = get_logger("curp.log")
FORMAT = 1
# For what gRPC and etcd put around a request.
_FRAME_BYTES = 4 << 10
# An operator's own restart of a node may lose what it applied: etcd's postmortem.
_FORGETFUL = {(3, 5, 0), (3, 5, 1), (3, 5, 2)}


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
        self._revision = 0
        self._tail = 0
        self._cluster = 0
        self._lock = threading.Lock()
        self.client = Client(address)
        try:
            self._log_id = self._open(group, new, read_only=read_only)
            if address.max_request_bytes != DEFAULT_REQUEST_BYTES and not read_only:
                self._try_size()
            self.durability = self._ask_version()
        except BaseException:
            self.client.close()
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
        response = self._send(request, again=True)
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
        size = request.ByteSize() + _FRAME_BYTES
        if size > self.address.max_request_bytes:
            raise InvalidRequest(
                f"{size} bytes in one request; the server takes {self.address.max_request_bytes} "
                "(its --max-request-bytes, and max_request_bytes= of the log's URL)"
            )
        before = self._tail
        response = self._send(request, again=again)
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
        self.client.close()

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

    def _send(self, request: pb.TxnRequest, *, again: bool) -> pb.TxnResponse:
        before = self._revision
        response = self.client.call(TXN, request, again=again)
        header = response.header
        if self._cluster not in (0, header.cluster_id):
            raise CorruptLog(
                f"another cluster answers: {header.cluster_id}, and not {self._cluster}"
            )
        # A write makes a revision that nobody has seen.
        wrote = response.succeeded and any(one.HasField("put") for one in request.success)
        if header.revision < before + wrote:
            raise CorruptLog(
                f"the cluster went back: it is at revision {header.revision}, and {before} was "
                "seen: restored from a backup, or a node that lost what it had"
            )
        with self._lock:
            self._cluster = header.cluster_id
            self._revision = max(self._revision, header.revision)
        return response

    # Opening.

    def _open(self, group: str, new: NewLog | None, *, read_only: bool) -> bytes:
        found = self._look()
        if new is not None:
            if found is not None:
                raise LogExists.of(str(self.address), group)
            return self._create(group, new)
        if found is None:
            (rest,) = self._send(
                pb.TxnRequest(success=[scan(self.keys.root, self.keys.end, 1)]), again=True
            ).responses
            if rest.range.kvs:
                raise CorruptLog(f"{self.address} has no id for the log of {group!r}")
            raise NoSuchLog.of(str(self.address), group)
        return self._check(group, found, read_only=read_only)

    def _create(self, group: str, new: NewLog) -> bytes:
        keys = self.keys
        log_id = LogId(secrets.token_hex(16), FORMAT, self._cluster).value()
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
        if not self._send(request, again=True).succeeded and (found := self._look()) != log_id:
            if found is None:
                raise CorruptLog(f"{self.address} has parts of a log of {group!r}")
            raise LogExists.of(str(self.address), group)
        return log_id

    def _look(self) -> bytes | None:
        response = self._send(pb.TxnRequest(success=[get(self.keys.log_id)]), again=True)
        (found,) = newest(response.responses)
        return None if found is None else found.value

    def _check(self, group: str, value: bytes, *, read_only: bool) -> bytes:
        found = LogId.read(value)
        if found.format > FORMAT:
            raise CorruptLog(
                f"the log of {group!r} has format {found.format}, written by a newer release; "
                f"this one knows {FORMAT}"
            )
        if found.cluster != self._cluster and not read_only:
            raise CorruptLog(
                f"the log of {group!r} was made in cluster {found.cluster}, and this is cluster "
                f"{self._cluster}: what was acknowledged after the backup it came by is not in "
                "it (curp log accept-loss has it go on all the same)"
            )
        return value

    def _try_size(self) -> None:
        """Send as much as an append may be, to be refused by its condition alone.

        A server that takes less would stop every leader in turn.
        """
        padding = bytes(self.address.max_request_bytes - _FRAME_BYTES)
        request = pb.TxnRequest(
            compare=[equal(self.keys.log_id, b"no log's")],
            success=[put(self.keys.log_id, padding)],
        )
        self._send(request, again=True)

    def _ask_version(self) -> str:
        try:
            version = self.client.call(STATUS, pb.StatusRequest(), again=True).version
        except EngineUnavailable as error:
            cause = error.__cause__
            if not isinstance(cause, grpc.RpcError) or may_be_better_elsewhere(cause):
                raise
            # Some releases tell this to certain users only.
            version = "of a version that it does not tell this user"
        told = (
            f"etcd {version}: an append is in the log of most of the cluster's members, and on "
            "their disks, before it is acknowledged (one with --unsafe-no-fsync only says so: "
            "that cannot be seen from here)"
        )
        if _numbers(version) in _FORGETFUL:
            cost = "a member that is killed may lose what it had applied: upgrade to 3.5.3 or later"
            _log.warning("log_settings_weak", log=str(self.address), found=version, cost=cost)
            told += f"; in this version {cost}"
        return told


_FACTS = 4


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("-")[0].split(".") if part.isdigit())
