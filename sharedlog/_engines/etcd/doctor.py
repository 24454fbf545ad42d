"""A look at a log in etcd by the checks of its opening; only reads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import TypeVar

import grpc

from _rifl_ground.findings import Checkup, reached, what_to_do
from sharedlog._core.errors import CorruptLog, LogError, LogFull, LogUnavailable, NoSuchLog
from sharedlog._engines.etcd.address import EtcdAddress
from sharedlog._engines.etcd.budget import SHARE
from sharedlog._engines.etcd.calls import STATUS, equal, may_be_better_elsewhere, put
from sharedlog._engines.etcd.cluster import Cluster, forgets
from sharedlog._engines.etcd.connection import (
    found_log,
    home_of,
    restored_elsewhere,
    told_remedy,
)
from sharedlog._engines.etcd.keys import Keys
from sharedlog._engines.etcd.opening import parts_of
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb
from sharedlog._engines.owner import Home

_T = TypeVar("_T")
# Of what entries get of the quota.
_MUCH = 0.9


class _NoAnswer(Exception):
    """The cluster does not answer now."""


def examine(url: str) -> Checkup:
    """Look at the log of a URL. Raises ``InvalidRequest`` for the URL itself."""
    address, name = parts_of(url)
    return examine_log(address, name, home_of(address, name))


def examine_log(address: EtcdAddress, name: str, home: Home) -> Checkup:
    """Look at a log by where it is, and its name there."""
    checkup = Checkup(f"{address}, log {name!r}", LogError, NoSuchLog)
    with reached(checkup, (_NoAnswer,)), closing(Cluster(address, home.owner)) as cluster:
        told = _look_at_members(checkup, cluster)
        if told is not None:
            _look_at_room(checkup, told, address.quota_bytes)
        keys = Keys(home.root)
        look = partial(found_log, cluster, keys, name, home.format)
        found = checkup.refused("log", partial(_answered, look))
        if found is not None and found[1].cluster != cluster.id:
            lost = restored_elsewhere(name, found[1], cluster.id, told_remedy(home))
            checkup.error("history", lost, what_to_do(CorruptLog))
        # Both ask for what a condition refuses, also where there is no log.
        checkup.refused("size", partial(_answered, partial(cluster.try_size, keys.id)))
        if address.username:
            checkup.refused("rights", partial(_answered, partial(_try_writing, cluster, keys)))
    return checkup


def _answered(ask: Callable[[], _T]) -> _T:
    try:
        return ask()
    except LogUnavailable as error:
        cause = error.__cause__
        if isinstance(cause, grpc.RpcError) and may_be_better_elsewhere(cause):
            raise _NoAnswer(str(error)) from error
        raise


def _try_writing(cluster: Cluster, keys: Keys) -> None:
    request = pb.TxnRequest(compare=[equal(keys.id, b"no log's")], success=[put(keys.id, b"")])
    cluster.send(request, again=True)


def _look_at_members(checkup: Checkup, cluster: Cluster) -> pb.StatusResponse | None:
    """Ask each host of the URL for its state; one of them, None if none tells."""
    client, silent, found = cluster.client, [], None
    for node, host in enumerate(cluster.address.hosts):
        try:
            told = client.call_at(node, STATUS, pb.StatusRequest(), cluster.address.try_s)
        except LogError as error:
            cause = error.__cause__
            # Some releases tell this to certain users only.
            if not isinstance(cause, grpc.RpcError) or may_be_better_elsewhere(cause):
                silent.append(host)
                client.leave(node)
            continue
        if cost := forgets(told.version):
            checkup.warning("server", f"{host} is etcd {told.version}: {cost}", "Upgrade it.")
        if not told.leader:
            checkup.error("server", f"{host} knows no leader", "Bring the other members back.")
        found = found or told
    if silent and len(silent) < len(cluster.address.hosts):
        checkup.warning(
            "members",
            f"{', '.join(silent)} of {len(cluster.address.hosts)} hosts do not answer: without a "
            "majority nothing is written",
            "Bring them back, or correct the URL.",
        )
    return found


def _look_at_room(checkup: Checkup, told: pb.StatusResponse, quota: int) -> None:
    share, used = quota // SHARE, told.db_size_in_use
    text = (
        f"{used} bytes are in use, and entries get up to {share}, half of the quota (quota_bytes= "
        "of the log's URL)"
    )
    if used > share or any("NOSPACE" in each for each in told.errors):
        checkup.error("room", text, what_to_do(LogFull))
    elif used > _MUCH * share:
        checkup.warning("room", text, what_to_do(LogFull))
