"""Driver of the product's ``GroupServicer``: requests of ``curp.v1.Group``."""

from __future__ import annotations

from typing import Any, Protocol

import grpc

from chaos.sim.group.driver import SimulatedDriver
from chaos.sim.network import Rpc
from chaos.sim.server import Server
from chaos.sim.world import World
from curp._core.group_call import SyncVerdict
from curp._replica.authority import GroupAuthority
from curp._replica.group_servicer import GroupServicer
from curp._replica.group_store import GroupStore
from curp.v1 import curp_pb2 as pb
from rifl._client.answers import FinalStatus
from rifl.core._shared.call import Call
from rifl.core._shared.errors import Deposed, RiflError

__all__ = ["SimulatedServicer"]

_OK = FinalStatus(grpc.StatusCode.OK)


class Asked(Protocol):
    """The replica that answers."""

    world: World
    driver: SimulatedDriver
    store: GroupStore
    authority: GroupAuthority
    group_servicer: GroupServicer


class SimulatedServicer:
    """Answers one replica's requests: as the product's servicer, where that does not block."""

    def __init__(self, replica: Asked) -> None:
        self._replica = replica

    def serve(self, server: Server, rpc: Rpc) -> None:
        """Answer a request."""
        replica = self._replica
        if rpc.method.endswith("/Configuration"):
            self._reply(rpc, replica.group_servicer.configuration())
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
        except RiflError as error:
            server.refuse(rpc, error)

    def _reply(self, rpc: Rpc, message: Any) -> None:
        self._replica.world.network.reply(rpc, _OK, message.SerializeToString())

    def _sync(self, server: Server, rpc: Rpc, configuration: int, call: Call) -> None:
        replica = self._replica
        store = replica.store
        if replica.group_servicer.leading is None or not store.serving:
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
        self._reply(rpc, pb.SyncReply(verdict=found))  # type: ignore[arg-type]  # an enum's number

    def _change_witnesses(self, server: Server, rpc: Rpc) -> None:
        """Answer when the list is in force, or why it is not."""
        replica, leading = self._replica, self._replica.group_servicer.leading
        if leading is None or not replica.store.serving:
            server.refuse(rpc, replica.store.not_leader())
            return

        def changed(listed: Any) -> None:
            self._reply(rpc, replica.group_servicer.configuration())

        def failed(error: Exception) -> None:
            if not isinstance(error, RiflError):
                error = Deposed(f"it may have changed: {error}")
            server.refuse(rpc, error)

        request = pb.ChangeWitnessesRequest.FromString(rpc.request)
        wanted = tuple(request.witnesses)
        changing = leading.changing_witnesses(wanted, request.configuration)
        replica.world.trace(server.name, f"changes witnesses to {','.join(wanted)}")
        replica.driver.begin(changing, changed, failed)

    def _transfer(self, server: Server, rpc: Rpc) -> None:
        wanted = pb.TransferRequest.FromString(rpc.request).replica
        try:
            self._replica.group_servicer.transfer(wanted)
        except RiflError as error:
            server.refuse(rpc, error)
            return
        self._replica.world.trace(server.name, f"hands over to {wanted or 'anybody'}")
        self._reply(rpc, pb.TransferReply())
