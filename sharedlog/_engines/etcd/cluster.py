"""Transactions at one cluster of etcd, which notice that it is another, or went back."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import grpc

from sharedlog._engines.etcd.address import DEFAULT_REQUEST_BYTES, EtcdAddress
from sharedlog._engines.etcd.calls import (
    DELETE_RANGE,
    RANGE,
    STATUS,
    TXN,
    equal,
    may_be_better_elsewhere,
    put,
)
from sharedlog._engines.etcd.client import Client
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb
from sharedlog._engines.owner import Owner

# For what gRPC and etcd put around a request.
_FRAME_BYTES = 4 << 10
# An operator's own restart of a node may lose what it applied: etcd's postmortem.
_FORGETFUL = {(3, 5, 0), (3, 5, 1), (3, 5, 2)}


class Cluster:
    """One process's way to a cluster. Any thread.

    Every answer is held against what was seen here before it was asked for: another cluster's
    id, or a revision that went back, is ``corrupt``: a cluster that was restored from a backup,
    or a node that lost what it had.
    """

    def __init__(self, address: EtcdAddress, owner: Owner) -> None:
        self.address = address
        self.client = Client(address, owner)
        self._owner = owner
        self._revision = 0
        self._id = 0
        # For a signal's handler that asks in the middle of that: what is noted is then lower.
        self._lock = threading.RLock()

    @property
    def id(self) -> int:
        """The number of the cluster that answered, 0 before one did."""
        return self._id

    @property
    def revision(self) -> int:
        """The newest revision that was seen."""
        return self._revision

    def check_size(self, request: pb.TxnRequest) -> None:
        """Raise ``invalid`` for what the server would not take."""
        size = request.ByteSize() + _FRAME_BYTES
        if size > self.address.max_request_bytes:
            raise self._owner.invalid(
                f"{size} bytes in one request; the server takes {self.address.max_request_bytes} "
                "(its --max-request-bytes, and max_request_bytes= of the log's URL)"
            )

    def send(self, request: pb.TxnRequest, *, again: bool, writes: bool = False) -> pb.TxnResponse:
        """Send a transaction; ``again``: to the next node too, if a reply is lost.

        ``writes``: a refusal is told as such only where no reply was lost before it.
        """
        before = self._revision
        response = self.client.call(TXN, request, again=again, writes=writes)
        # A write makes a revision that no answer had before.
        wrote = response.succeeded and any(one.HasField("put") for one in request.success)
        self._check(response.header, before + wrote)
        return response

    def ranges(self, asked: Sequence[pb.RangeRequest]) -> list[pb.RangeResponse]:
        """Read these as of one revision, without a transaction.

        Some releases refuse every transaction where there is no room, also those that only read.
        """
        found: list[pb.RangeResponse] = []
        for one in asked:
            before = self._revision
            if found:
                one.revision = found[0].header.revision
            found.append(self.client.call(RANGE, one, again=True))
            self._check(found[-1].header, before)
        return found

    def delete(self, step: pb.DeleteRangeRequest) -> None:
        """Delete keys, without a transaction."""
        before = self._revision
        self._check(self.client.call(DELETE_RANGE, step, again=True).header, before)

    def _check(self, header: pb.ResponseHeader, at_least: int) -> None:
        if self._id not in (0, header.cluster_id):
            raise self._owner.corrupt(
                f"another cluster answers: {header.cluster_id}, and not {self._id}"
            )
        if header.revision < at_least:
            raise self._owner.corrupt(
                f"the cluster went back: it is at revision {header.revision}, and {at_least} was "
                "seen: restored from a backup, or a node that lost what it had"
            )
        with self._lock:
            self._id = header.cluster_id
            self._revision = max(self._revision, header.revision)

    def try_size(self, key: bytes) -> None:
        """Send as much as an append may be, to be refused by its condition alone.

        A server that takes less would stop every writer in turn.
        """
        if self.address.max_request_bytes == DEFAULT_REQUEST_BYTES:
            return
        padding = bytes(self.address.max_request_bytes - _FRAME_BYTES)
        request = pb.TxnRequest(compare=[equal(key, b"no log's")], success=[put(key, padding)])
        self.send(request, again=True)

    def ask_durability(self) -> str:
        """Return what the cluster promises of an append, by its version."""
        owner = self._owner
        try:
            version = self.client.call(STATUS, pb.StatusRequest(), again=True).version
        except owner.unavailable as error:
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
        if cost := forgets(version):
            owner.events.warning(
                "log_settings_weak", log=str(self.address), found=version, cost=cost
            )
            told += f"; in this version {cost}"
        return told

    def close(self) -> None:
        """Close the connections; idempotent."""
        self.client.close()


def forgets(version: str) -> str:
    """Return what a release may lose, empty if nothing is known of that."""
    if _numbers(version) not in _FORGETFUL:
        return ""
    return "a member that is killed may lose what it had applied: upgrade to 3.5.3 or later"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("-")[0].split(".") if part.isdigit())
