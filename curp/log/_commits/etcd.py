"""Groups' logs in etcd."""

from __future__ import annotations

import secrets
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import quote

from curp.log._commits.keys import CONFIGURATION, FORMAT, first_keys, loss_puts
from curp.log._errors import LogUnavailable, no_such_log
from curp.log._owner import GROUPS
from curp.log._values import NewLog
from sharedlog._engines.checksums import kept, values_of
from sharedlog._engines.etcd.address import EtcdAddress
from sharedlog._engines.etcd.calls import TXN, delete, get, newest, put, revision_of, unchanged
from sharedlog._engines.etcd.client import Client
from sharedlog._engines.etcd.engine import EtcdEngine
from sharedlog._engines.etcd.keys import Keys, LogId
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb
from sharedlog._engines.formats import check_format
from sharedlog._engines.owner import Home

if TYPE_CHECKING:
    from _rifl_ground.findings import Checkup


def open_etcd(
    address: EtcdAddress, group: str, *, new: NewLog | None = None, read_only: bool = False
) -> EtcdEngine:
    """Open a group's log, or create it. Raises errors of the shared log."""
    return EtcdEngine(
        address,
        group,
        new=None if new is None else first_keys(new),
        removed=0 if new is None else new.trimmed,
        read_only=read_only,
        home=_home(address, group),
    )


def examine_etcd(address: EtcdAddress, group: str) -> Checkup:
    """Look at a group's log by the checks of its opening; only reads."""
    from sharedlog._engines.etcd import doctor

    return doctor.examine_log(address, group, _home(address, group))


def accept_loss(address: EtcdAddress, group: str, told: dict[str, str]) -> str:
    """Have a log go on in the cluster where it is now; why it had stopped, empty if it had not.

    It is another log from then on to all that knew it before. Raises errors of the shared log.
    """
    keys = Keys(_root(address, group))
    configuration_key = keys.key(CONFIGURATION)
    with closing(Client(address, GROUPS)) as client:
        asked = [get(keys.id), get(configuration_key)]
        found = client.call(TXN, pb.TxnRequest(success=asked), again=True)
        log_id, configuration = newest(found.responses)
        if log_id is None:
            raise no_such_log(str(address), group)
        before, here = LogId.read(log_id.value), found.header.cluster_id
        check_format(before.format, FORMAT, f"{address}: the log of {group!r}")
        if before.cluster == here:
            return ""
        stopped = f"it was made in cluster {before.cluster}, and this is cluster {here}"
        moved = before._replace(log=secrets.token_hex(16), cluster=here)
        held = values_of({CONFIGURATION: None if configuration is None else configuration.value})
        request = pb.TxnRequest(
            compare=[
                unchanged(keys.id, revision_of(log_id)),
                unchanged(configuration_key, revision_of(configuration)),
            ],
            success=[
                put(keys.id, moved.value()),
                *(
                    delete(keys.key(one.key))
                    if one.value is None
                    else put(keys.key(one.key), kept(one.key, one.value))
                    for one in loss_puts(held, {**told, "stopped": stopped})
                ),
            ],
        )
        if not client.call(TXN, request, again=False).succeeded:
            raise LogUnavailable(f"{address}: another process changes it at the same time")
        return stopped


def _root(address: EtcdAddress, group: str) -> str:
    return f"{address.prefix}/{quote(group, safe='')}/"


def _home(address: EtcdAddress, group: str) -> Home:
    return Home(GROUPS, _root(address, group), FORMAT, "curp log accept-loss")
