"""A group's client by hand: records on witnesses when told to, and looks at the marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from curp.v1 import curp_pb2 as pb
from curp.v1 import curp_pb2_grpc
from examples.bank.v1 import bank_pb2
from rifl.v1 import rifl_pb2
from tests.helpers.raw import RawClient, Reply

__all__ = ["ByHand"]

DEPOSIT = "/bank.v1.Bank/Deposit"
BALANCE = "/bank.v1.Bank/Balance"
_TIMEOUT_S = 20.0


class ByHand:
    """One client id through all leaders."""

    def __init__(self, address: str, options: Sequence[tuple[str, int]] = ()) -> None:
        """``options``: of its channel to the first replica."""
        self._raw = RawClient(address, options=options)
        self._log = self.configuration().log
        self._seq = 0

    @property
    def client_id(self) -> int:
        """Its id."""
        return self._raw.client_id

    def move(self, address: str) -> None:
        """Go to another replica with the same client id."""
        moved = RawClient(address, grant=False)
        moved.client_id, moved.token = self._raw.client_id, self._raw.token
        self._raw.channel.close()
        self._raw = moved

    def configuration(self) -> pb.GroupConfiguration:
        """Ask the replica who makes up the group."""
        stub = curp_pb2_grpc.GroupStub(self._raw.channel)
        found: pb.GroupConfiguration = stub.Configuration(
            pb.ConfigurationRequest(), timeout=_TIMEOUT_S, wait_for_ready=True
        )
        return found

    def deposit(self, reference: str, account: str, seq: int, **more: Any) -> Reply:
        """Pay one cent in."""
        request = bank_pb2.DepositRequest(reference=reference, account=account, cents=1)
        return self._raw.call(DEPOSIT, request.SerializeToString(), seq, **more)

    def send(self, request: bytes, seq: int, **more: Any) -> Reply:
        """Send any bytes for a deposit."""
        return self._raw.call(DEPOSIT, request, seq, **more)

    def resolve(self, seq: int) -> str:
        """Ask what became of a call; the outcome."""
        reply = self._raw.resolve(seq)
        return rifl_pb2.Outcome.Name(reply.outcome)

    def begin_deposit(self, reference: str, account: str, seq: int, **more: Any) -> Any:
        """Begin to."""
        request = bank_pb2.DepositRequest(reference=reference, account=account, cents=1)
        return self._raw.future(DEPOSIT, request.SerializeToString(), seq, **more)

    def balance(self, account: str, seq: int, **more: Any) -> Reply:
        """Read a balance."""
        request = bank_pb2.BalanceRequest(account=account)
        return self._raw.call(BALANCE, request.SerializeToString(), seq, **more)

    def record(self, witness: str, reference: str, account: str, seq: int, **more: Any) -> str:
        """Record a deposit on a witness; its verdict, or the code of its refusal."""
        request = bank_pb2.DepositRequest(reference=reference, account=account, cents=1)
        header = self._raw.header(seq, **more)
        call = pb.WitnessedCall(header=header, method=DEPOSIT, request=request.SerializeToString())
        with grpc.insecure_channel(witness) as channel:
            try:
                reply = curp_pb2_grpc.WitnessStub(channel).Record(
                    pb.RecordRequest(
                        configuration=more.get("configuration", 0), call=call, log=self._log
                    ),
                    timeout=_TIMEOUT_S,
                    wait_for_ready=True,
                )
            except grpc.RpcError as error:
                return str(error.code().name)  # type: ignore[attr-defined]  # a grpc.Call, too
        return pb.RecordReply.Verdict.Name(reply.verdict)

    def acknowledge(self, first: int, completed: Sequence[int] = ()) -> Reply:
        """Renew the lease, and say what is no longer wanted."""
        return self._raw.acknowledge(first, completed)

    def sync(self, seq: int, configuration: int) -> str:
        """Ask the leader to sync a call; its verdict."""
        stub = curp_pb2_grpc.GroupStub(self._raw.channel)
        reply = stub.Sync(
            pb.SyncRequest(
                configuration=configuration,
                client_id=self._raw.client_id,
                seq=seq,
                token=self._raw.token,
            ),
            timeout=_TIMEOUT_S,
        )
        return pb.SyncReply.Verdict.Name(reply.verdict)

    @staticmethod
    def mark(reply: Reply) -> str:
        """What the answer says of being synced; empty if nothing."""
        return str(dict(reply.trailing).get("curp-synced", ""))
