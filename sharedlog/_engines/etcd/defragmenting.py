"""Defragmentation of an etcd cluster: what is compacted is given back, member after member."""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

from sharedlog._core.errors import LogError
from sharedlog._engines.etcd.address import EtcdAddress
from sharedlog._engines.etcd.calls import ALARM, COMPACT, DEFRAGMENT, STATUS
from sharedlog._engines.etcd.client import Client
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb
from sharedlog._engines.owner import LOG

# A member answers nothing while it copies its file.
_COPY_S = 300.0
# Of revisions others of the cluster's users may be reading at.
_KEPT = 1_000
_FULL = "NOSPACE"


class ClusterMember(NamedTuple):
    """A member of the cluster: bytes of its file before and afterwards, or why it was not done."""

    host: str
    before: int
    after: int
    error: str


def defragment(address: EtcdAddress) -> list[ClusterMember]:
    """Compact, then defragment each host of the address, the one that leads last.

    At the end the NOSPACE alarm is disarmed where there is room again. With authentication, only
    root may do so. Raises ``LogUnavailable``; of a member that did not do it its ``error`` says
    why, and the next ones are left alone: two that stand still may be too many.
    """
    with closing(Client(address, LOG)) as client:
        now = client.call(STATUS, pb.StatusRequest(), again=True)
        revision = now.header.revision - (0 if _alarmed(now) else _KEPT)
        if address.compact and revision > 0:
            try:
                request = pb.CompactionRequest(revision=revision, physical=True)
                client.call(COMPACT, request, again=False)
            except LogError as error:
                # Such as: another client compacted further.
                LOG.events.info("log_not_compacted", log=str(address), error=str(error))
        members: list[ClusterMember] = []
        for node in _leader_last(client):
            members.append(_defragmented(client, node))
            if members[-1].error:
                break
        else:
            _disarm(client)
        return members


def _leader_last(client: Client) -> list[int]:
    nodes = range(len(client.address.hosts))

    def leads(node: int) -> bool:
        try:
            found = client.call_at(node, STATUS, pb.StatusRequest(), client.address.timeout_s)
        except LogError:
            return False
        return found.leader == found.header.member_id

    return sorted(nodes, key=leads)


def _defragmented(client: Client, node: int) -> ClusterMember:
    host = client.address.hosts[node]
    timeout_s = client.address.timeout_s
    before = 0
    try:
        before = client.call_at(node, STATUS, pb.StatusRequest(), timeout_s).db_size
        client.call_at(node, DEFRAGMENT, pb.DefragmentRequest(), _COPY_S)
        after = client.call_at(node, STATUS, pb.StatusRequest(), timeout_s).db_size
    except LogError as error:
        return ClusterMember(host, before, before, str(error))
    return ClusterMember(host, before, after, "")


def _disarm(client: Client) -> None:
    found = client.call(STATUS, pb.StatusRequest(), again=True)
    if _alarmed(found) and found.db_size < client.address.quota_bytes:
        raised = client.call(ALARM, pb.AlarmRequest(alarm=pb.NOSPACE), again=True).alarms
        for each in raised:
            request = pb.AlarmRequest(
                action=pb.AlarmRequest.DEACTIVATE, member_id=each.member_id, alarm=each.alarm
            )
            client.call(ALARM, request, again=True)


def _alarmed(found: pb.StatusResponse) -> bool:
    return any(_FULL in each for each in found.errors)
