"""What the command asks a group's replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grpc

from curp.group_token import GROUP_TOKEN_KEY
from curp.v1 import curp_pb2 as pb
from curp.v1 import curp_pb2_grpc

__all__ = ["Group", "GroupError"]

_TRIES = 5


class GroupError(Exception):
    """The group could not be asked, or refused; ``str()`` is for the user."""


class Group:
    """A group, reached by any of its replicas."""

    def __init__(
        self,
        targets: Sequence[str],
        *,
        timeout_s: float = 10.0,
        credentials: grpc.ChannelCredentials | None = None,
        group_token: str | None = None,
    ) -> None:
        """``credentials``: None for plaintext. ``group_token``: what changes are asked with."""
        self._targets = list(targets)
        self._timeout_s = timeout_s
        self._credentials = credentials
        self._metadata = () if group_token is None else ((GROUP_TOKEN_KEY, group_token),)

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

    def leading(self) -> pb.GroupStatusReply:
        """Return what the leader says of itself; raises ``GroupError``."""
        for _, status in self.statuses():
            if status is not None and status.role == "leader":
                return status
        raise GroupError("none of the replicas leads now")

    def change_witnesses(self, change: Callable[[list[str]], list[str]]) -> pb.GroupConfiguration:
        """Put another list in force; ``change`` makes it of the one asked for before.

        Asked again where the group went on to another number meanwhile: the leader lists
        a witness anew by itself when it is back.
        """
        for _ in range(_TRIES):
            status = self.leading()
            try:
                return self._change_witnesses(status, change)
            except GroupError:
                if self.leading().configuration.configuration == status.configuration.configuration:
                    raise
        raise GroupError("the group's configuration changes all the time")

    def _change_witnesses(
        self, status: pb.GroupStatusReply, change: Callable[[list[str]], list[str]]
    ) -> pb.GroupConfiguration:
        present = status.configuration
        request = pb.ChangeWitnessesRequest(
            witnesses=change(list(status.wanted_witnesses)), configuration=present.configuration
        )
        changed: pb.GroupConfiguration = self._ask(
            present.leader, lambda stub, more: stub.ChangeWitnesses(request, **more)
        )
        return changed

    def transfer(self, replica: str) -> str:
        """Have the leader hand over; return the address of the one that led."""
        leader = self.leading().configuration.leader
        request = pb.TransferRequest(replica=replica)
        self._ask(leader, lambda stub, more: stub.Transfer(request, **more))
        return leader

    def finalize_upgrade(self, version: int, who: str) -> int:
        """Have the leader, of that version, make it the active one; return that."""
        leader = self.leading().configuration.leader
        request = pb.FinalizeUpgradeRequest(version=version, who=who)
        reply = self._ask(leader, lambda stub, more: stub.FinalizeUpgrade(request, **more))
        return int(reply.version)

    def _ask(self, address: str, ask: Callable[[Any, dict[str, Any]], Any]) -> Any:
        more = {"timeout": self._timeout_s, "metadata": self._metadata}
        with self._connect(address) as channel:
            try:
                return ask(curp_pb2_grpc.GroupStub(channel), more)
            except grpc.RpcError as error:
                details = error.details() if isinstance(error, grpc.Call) else str(error)
                raise GroupError(f"{address}: {details}") from error

    def _connect(self, address: str) -> grpc.Channel:
        if self._credentials is None:
            return grpc.insecure_channel(address)
        return grpc.secure_channel(address, self._credentials)


def _status(stub: Any, more: dict[str, Any]) -> Any:
    return stub.Status(pb.GroupStatusRequest(), **more)
