"""Model of the world: an operator of a group, who asks its leader and asks again."""

from __future__ import annotations

from typing import Any

import grpc

from chaos.sim.loop import Process
from chaos.sim.world import World
from curp.v1 import curp_pb2 as pb

__all__ = ["Operator"]

_TIMEOUT_S = 3.0
_TRIES = 4
_PAUSE_S = 0.4
_SERVICE = "/curp.v1.Group/"


class Operator:
    """Sees one request through: to the leader, under the number that is known then.

    As ``curp``'s commands do, and as an operator does who runs them again.
    """

    def __init__(self, world: World, servers: int) -> None:
        self._world = world
        self._servers = servers
        self._process = Process(world.loop, "operator")
        self._tries = 0

    def change_witnesses(self, leader: int, wanted: tuple[str, ...], configuration: int) -> None:
        """Have another list put in force, in the place of that number's."""
        request = pb.ChangeWitnessesRequest(witnesses=wanted, configuration=configuration)
        self._send("ChangeWitnesses", leader, request)

    def transfer(self, leader: int, replica: str) -> None:
        """Have the leadership handed over."""
        self._send("Transfer", leader, pb.TransferRequest(replica=replica))

    def _send(self, method: str, target: int, request: Any) -> None:
        self._tries += 1

        def ended(status: Any, reply: bytes | None) -> None:
            self._world.trace("operator", f"{method}: {status.code().name} {status.details()}")
            if status.code() is not grpc.StatusCode.OK and self._tries < _TRIES:
                self._process.after(_PAUSE_S, self._look, method, request, 0)

        self._ask(method, target, request, ended)

    def _look(self, method: str, request: Any, target: int) -> None:
        """Find out who leads under which number, replica by replica, and ask again there."""

        def ended(status: Any, reply: bytes | None) -> None:
            found = pb.GroupConfiguration()
            if status.code() is grpc.StatusCode.OK and reply is not None:
                found.ParseFromString(reply)
            if found.leader:
                if method == "ChangeWitnesses":
                    request.configuration = found.configuration
                leader = found.leader.removeprefix("server").partition(":")[0]
                self._send(method, int(leader), request)
            elif target + 1 < self._servers:
                self._look(method, request, target + 1)

        self._ask("Configuration", target, pb.ConfigurationRequest(), ended)

    def _ask(self, method: str, target: int, request: Any, ended: Any) -> None:
        self._world.network.call(
            self._process,
            target,
            "operator",
            _SERVICE + method,
            (),
            request.SerializeToString(),
            _TIMEOUT_S,
            ended,
        )
