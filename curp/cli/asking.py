"""What the command asks a group's replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grpc

from curp.v1 import curp_pb2 as pb
from curp.v1 import curp_pb2_grpc

__all__ = ["Group", "GroupError"]


class GroupError(Exception):
    """The group could not be asked, or refused; ``str()`` is for the user."""


class Group:
    """A group, reached by any of its replicas."""

    def __init__(self, targets: Sequence[str], *, timeout_s: float = 10.0) -> None:
        self._targets = list(targets)
        self._timeout_s = timeout_s

    def statuses(self) -> list[tuple[str, pb.GroupStatusReply | None]]:
        """Return what each replica says of itself, None for one that says nothing."""
        found: dict[str, pb.GroupStatusReply | None] = {}
        waiting = list(self._targets)
        while waiting:
            address = waiting.pop(0)
            if address in found:
                continue
            try:
                status = found[address] = self._ask(address, _status)
            except GroupError:
                found[address] = None
                continue
            others = (*status.configuration.replicas, status.configuration.leader)
            waiting += [other for other in others if other]
        return list(found.items())

    def configuration(self) -> pb.GroupConfiguration:
        """Return the configuration as the leader knows it; raises ``GroupError``."""
        for _, status in self.statuses():
            if status is not None and status.role == "leader":
                return status.configuration
        raise GroupError("none of the replicas leads now")

    def change_witnesses(self, change: Callable[[list[str]], list[str]]) -> pb.GroupConfiguration:
        """Put another list in force; ``change`` makes it of the present one."""
        present = self.configuration()
        witnesses = change(list(present.witnesses))
        request = pb.ChangeWitnessesRequest(
            witnesses=witnesses, configuration=present.configuration
        )
        changed: pb.GroupConfiguration = self._ask(
            present.leader, lambda stub, timeout: stub.ChangeWitnesses(request, timeout=timeout)
        )
        return changed

    def transfer(self, replica: str) -> str:
        """Have the leader hand over; return the address of the one that led."""
        leader = self.configuration().leader
        request = pb.TransferRequest(replica=replica)
        self._ask(leader, lambda stub, timeout: stub.Transfer(request, timeout=timeout))
        return leader

    def _ask(self, address: str, ask: Callable[[Any, float], Any]) -> Any:
        with grpc.insecure_channel(address) as channel:
            try:
                return ask(curp_pb2_grpc.GroupStub(channel), self._timeout_s)
            except grpc.RpcError as error:
                details = error.details() if isinstance(error, grpc.Call) else str(error)
                raise GroupError(f"{address}: {details}") from error


def _status(stub: Any, timeout: float) -> Any:
    return stub.Status(pb.GroupStatusRequest(), timeout=timeout)
