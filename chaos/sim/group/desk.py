"""What a replica answers to ``curp.v1.Group``."""

from __future__ import annotations

import contextlib
from typing import Protocol

import grpc

from chaos.sim.group.leadership import Leadership
from chaos.sim.machine import Machine
from chaos.sim.network import Rpc
from chaos.sim.server import Server
from chaos.sim.witness import GROUP
from chaos.sim.world import World
from curp._core.group_call import SyncVerdict
from curp._replica.authority import GroupAuthority
from curp._replica.desk import group_configuration
from curp._replica.group_store import GroupStore
from curp._replica.metadata import read_witness_list
from curp.log._engine import LogEngine
from curp.log._errors import EngineUnavailable
from curp.v1 import curp_pb2 as pb
from lease_server._errors import LeaseError
from rifl._client.answers import FinalStatus
from rifl.core._shared.call import Call
from rifl.core._shared.errors import NotLeader, RiflError

__all__ = ["GroupDesk"]

_OK = FinalStatus(grpc.StatusCode.OK)


class Asked(Protocol):
    """The replica that answers."""

    world: World
    address: str
    log: LogEngine
    store: GroupStore
    machine: Machine
    authority: GroupAuthority
    leadership: Leadership | None

    @property
    def log_id(self) -> int:
        """The log's, 0 while nobody drew one."""

    def transfer(self, wanted: str) -> None:
        """Hand the leadership over."""


class GroupDesk:
    """Answers one replica's requests."""

    def __init__(self, replica: Asked) -> None:
        self._replica = replica

    def serve(self, server: Server, rpc: Rpc) -> None:
        """Answer a request."""
        replica = self._replica
        if rpc.method.endswith("/Configuration"):
            replica.world.network.reply(rpc, _OK, self._configuration().SerializeToString())
            return
        if rpc.method.endswith("/ChangeWitnesses"):
            self._change_witnesses(server, rpc)
            return
        if rpc.method.endswith("/Transfer"):
            self._transfer(server, rpc)
            return
        request = pb.SyncRequest.FromString(rpc.request)
        key = request.key if request.WhichOneof("identity") == "key" else None
        call = Call(request.client_id, request.token, None if key is not None else request.seq, key)
        try:
            replica.authority.check(call.client_id, call.token)
            self._sync(server, rpc, request.configuration, call)
        except LeaseError as error:
            server.refuse(rpc, NotLeader(str(error)))
        except RiflError as error:
            server.refuse(rpc, error)

    def _sync(self, server: Server, rpc: Rpc, configuration: int, call: Call) -> None:
        replica = self._replica
        store, leadership = replica.store, replica.leadership
        if leadership is None or leadership.listed is None or not store.serving:
            server.refuse(rpc, store.not_leader())
            return
        try:
            found = store.call_synced(configuration, call)
        except RiflError as error:
            server.refuse(rpc, error)
            return
        if not isinstance(found, SyncVerdict):
            again = (server, rpc, configuration, call)
            found.add_callback(lambda _: server.process.after(0.0, self._sync, *again))
            return
        reply = pb.SyncReply(verdict=found)  # type: ignore[arg-type]  # an enum's number
        replica.world.network.reply(rpc, _OK, reply.SerializeToString())

    def _change_witnesses(self, server: Server, rpc: Rpc) -> None:
        """Answer when the list is in force; never if its leader gives up before."""
        replica, leadership = self._replica, self._replica.leadership
        request = pb.ChangeWitnessesRequest.FromString(rpc.request)

        def changed() -> None:
            replica.world.network.reply(rpc, _OK, self._configuration().SerializeToString())

        wanted = tuple(request.witnesses)
        if leadership is None or not (
            replica.store.serving
            and leadership.change_witnesses(wanted, request.configuration, changed)
        ):
            server.refuse(rpc, replica.store.not_leader())

    def _transfer(self, server: Server, rpc: Rpc) -> None:
        try:
            self._replica.transfer(pb.TransferRequest.FromString(rpc.request).replica)
        except RiflError as error:
            server.refuse(rpc, error)
            return
        self._replica.world.network.reply(rpc, _OK, pb.TransferReply().SerializeToString())

    def _configuration(self) -> pb.GroupConfiguration:
        replica, leadership = self._replica, self._replica.leadership
        leader = ""
        listed = None
        if leadership is not None and leadership.listed is not None and replica.store.serving:
            leader, listed = replica.address, leadership.listed
        else:
            with contextlib.suppress(EngineUnavailable):
                listed = read_witness_list(replica.log)
        found = group_configuration(GROUP, leader, listed)
        found.log = replica.log_id
        found.serves = replica.store.takes_calls()
        found.methods.extend(replica.machine.conflicts())
        return found
