"""``accept``: an operator says that what a log in etcd lost is lost."""

from __future__ import annotations

import json
import secrets
from contextlib import closing

from curp.log._errors import EngineUnavailable, NoSuchLog
from curp.log._etcd.keys import Keys, LogId, read_number
from curp.log._owner import GROUPS
from sharedlog._engines.etcd.address import EtcdAddress
from sharedlog._engines.etcd.calls import TXN, delete, get, newest, put, revision_of, unchanged
from sharedlog._engines.etcd.client import Client
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb

# Above every number that the lost cluster can have given since the backup.
_NUMBERS = 1 << 32


def accept(address: EtcdAddress, group: str, who: str, why: str) -> str:
    """Have the log go on where it is now; why it had stopped, empty if it had not.

    It is another log from then on to all that knew it before. Raises a ``LogError``.
    """
    keys = Keys(address.prefix, group)
    with closing(Client(address, GROUPS)) as client:
        asked = [get(keys.log_id), get(keys.configuration)]
        found = client.call(TXN, pb.TxnRequest(success=asked), again=True)
        log_id, configuration = newest(found.responses)
        if log_id is None or configuration is None:
            raise NoSuchLog.of(str(address), group)
        before, here = LogId.read(log_id.value), found.header.cluster_id
        if before.cluster == here:
            return ""
        stopped = f"it was made in cluster {before.cluster}, and this is cluster {here}"
        number = read_number("configuration number", configuration.value) + _NUMBERS
        moved = before._replace(log=secrets.token_hex(16), cluster=here)
        told = {"who": who, "why": why, "stopped": stopped}
        request = pb.TxnRequest(
            compare=[
                unchanged(keys.log_id, revision_of(log_id)),
                unchanged(keys.configuration, revision_of(configuration)),
            ],
            success=[
                put(keys.log_id, moved.value()),
                put(keys.configuration, str(number).encode()),
                delete(keys.lease),
                put(keys.loss(before.log), json.dumps(told).encode()),
            ],
        )
        if not client.call(TXN, request, again=False).succeeded:
            raise EngineUnavailable(f"{address}: somebody else changes it at the same time")
        return stopped
