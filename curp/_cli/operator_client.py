"""The operator's client: what a command asks a group's replicas."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import grpc

from curp._group_token import GROUP_TOKEN_KEY, why_kept_off
from curp._replica.fan_out import ask_all
from curp._security import channel_credentials, read_token
from curp.v1 import curp_pb2 as pb
from curp.v1 import curp_pb2_grpc

_TRIES = 5
_TIMEOUT_S = 10.0
_GRACE_S = 0.5
_TRANSFER_S = 30.0
_LOOK_S = 0.05


class GroupError(Exception):
    """The group could not be asked, or refused; ``str()`` is for the user."""


class OperatorClient:
    """A group, reached by any of its replicas."""

    def __init__(
        self,
        targets: Sequence[str],
        *,
        timeout_s: float = _TIMEOUT_S,
        credentials: grpc.ChannelCredentials | None = None,
        group_token: str | None = None,
    ) -> None:
        """``credentials``: None for plaintext. ``group_token``: what changes are asked with."""
        self._targets = list(targets)
        # Why a replica said nothing when it was asked last, by its address.
        self.silent: dict[str, str] = {}
        self._timeout_s = timeout_s
        self._credentials = credentials
        self._metadata = () if group_token is None else ((GROUP_TOKEN_KEY, group_token),)

    def statuses(self) -> list[tuple[str, pb.GroupStatusReply | None]]:
        """Return what each replica says of itself, None for one that says nothing.

        Why it said nothing is in ``silent`` then. All are asked at once.
        """
        found: dict[str, pb.GroupStatusReply | None] = {}
        waiting = list(dict.fromkeys(self._targets))
        log = 0
        while waiting:
            asked = ask_all(waiting, self._status, timeout_s=self._timeout_s + _GRACE_S)
            for address in waiting:
                status = found[address] = asked.get(address)
                # 0 if the replica has not read it yet.
                of = 0 if status is None else status.configuration.log
                log = log or of
                if of not in (0, log):
                    # The process that has this address by now.
                    self.silent[address] = "a replica of another group answers there"
                    found[address] = None
            others = [
                other
                for address in waiting
                if (status := found[address]) is not None
                for other in (*status.configuration.replicas, status.configuration.leader)
            ]
            waiting = [other for other in dict.fromkeys(others) if other and other not in found]
        return list(found.items())

    def _status(self, address: str) -> pb.GroupStatusReply | None:
        try:
            status: pb.GroupStatusReply = self._ask(address, _status)
        except GroupError as error:
            self.silent[address] = str(error).removeprefix(f"{address}: ")
            return None
        return status

    def leading(self) -> pb.GroupStatusReply:
        """Return what the leader says of itself; raises ``GroupError``."""
        for _, status in self.statuses():
            if status is not None and status.role == "leader":
                return status
        raise self._leaderless()

    def _leaderless(self) -> GroupError:
        silent = "".join(f"; {address}: {why}" for address, why in self.silent.items())
        return GroupError(f"none of the replicas leads now{silent}")

    def change_witnesses(self, change: Callable[[list[str]], list[str]]) -> pb.GroupConfiguration:
        """Put another list in force; ``change`` makes it of the one asked for before.

        Asked again if the group went on to another number meanwhile: the leader lists
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

    def transfer(self, replica: str) -> tuple[str, pb.GroupStatusReply]:
        """Have the leader hand over, and wait until another one takes calls.

        Returns the address of the one that led, and what the one that leads says. Raises
        ``GroupError`` for a replica that does not answer, before anything is done, and where
        another one leads in the end.
        """
        statuses = [status for _, status in self.statuses() if status is not None]
        led = _serving(statuses)
        if led is None:
            raise self._leaderless()
        self._check_may_lead(replica, statuses)
        request = pb.TransferRequest(replica=replica)
        address = led.configuration.leader
        if replica == led.replica:
            return address, led
        self._ask(address, lambda stub, more: stub.Transfer(request, **more))
        until = time.monotonic() + _TRANSFER_S
        while time.monotonic() < until:
            leads = _serving(status for _, status in self.statuses() if status is not None)
            if leads is not None and leads.replica != led.replica:
                if replica not in ("", leads.replica):
                    raise GroupError(f"{leads.replica} leads, and not {replica}")
                return address, leads
            time.sleep(_LOOK_S)
        raise GroupError(
            f"{led.replica} hands over, and no other replica leads yet: see curp status"
        )

    def _check_may_lead(self, replica: str, statuses: Sequence[pb.GroupStatusReply]) -> None:
        found = {status.replica: status for status in statuses}
        if replica and replica not in found:
            silent = f"; no answer from {', '.join(self.silent)}" if self.silent else ""
            raise GroupError(
                f"no replica is called {replica!r}: there are {', '.join(sorted(found))}{silent}; "
                "name the addresses of the others, too, where these do not know them"
            )
        if replica and found[replica].role == "stopped":
            raise GroupError(f"{replica} has stopped: {found[replica].waiting_for}")

    def finalize_upgrade(self, version: int, who: str) -> int:
        """Have the leader, of that version, make it the active one; return that."""
        leader = self.leading().configuration.leader
        request = pb.FinalizeUpgradeRequest(version=version, who=who)
        reply = self._ask(leader, lambda stub, more: stub.FinalizeUpgrade(request, **more))
        return int(reply.version)

    def why_not_asked(self, address: str) -> str:
        """Return why a replica is not asked; empty: it may be."""
        return why_kept_off(address, self._credentials) if self._metadata else ""

    def end_session(self, name: str) -> list[int]:
        """Have the leader end the open sessions of a name; return their ids."""
        leader = self.leading().configuration.leader
        request = pb.EndSessionRequest(name=name)
        reply = self._ask(leader, lambda stub, more: stub.EndSession(request, **more))
        return list(reply.client_ids)

    def rotate_secret(self) -> int:
        """Have the leader make a new secret for client tokens; return its key id."""
        leader = self.leading().configuration.leader
        request = pb.RotateSecretRequest()
        reply = self._ask(leader, lambda stub, more: stub.RotateSecret(request, **more))
        return int(reply.key_id)

    def _ask(self, address: str, ask: Callable[[Any, dict[str, Any]], Any]) -> Any:
        if why := self.why_not_asked(address):
            raise GroupError(f"{address}: {why}")
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


def open_group(
    arguments: argparse.Namespace, targets: Sequence[str], *, timeout_s: float = _TIMEOUT_S
) -> OperatorClient:
    """Return the group that a command was given, with its TLS options and token.

    Ends with a usage error if the token may not go to one of the targets.
    """
    group = OperatorClient(
        targets,
        timeout_s=timeout_s,
        credentials=channel_credentials(
            arguments.tls_authorities, arguments.tls_key, arguments.tls_certificate
        ),
        group_token=read_token(arguments.group_token_file),
    )
    for target in targets:
        if why := group.why_not_asked(target):
            arguments.parser.error(why)
    return group


def _serving(statuses: Iterable[pb.GroupStatusReply]) -> pb.GroupStatusReply | None:
    return next((status for status in statuses if serves(status)), None)


def serves(status: pb.GroupStatusReply) -> bool:
    """Whether it takes calls now: it leads, and its lease runs."""
    return status.configuration.serves


def _status(stub: Any, more: dict[str, Any]) -> Any:
    return stub.Status(pb.GroupStatusRequest(), **more)
