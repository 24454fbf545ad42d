"""The ledger of calls that kill, in the engine's metadata and in replies to operators."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from curp._core.poison import Case, Ledger, ProcessDeath
from curp._wire.fields import UINT64, signed
from curp.log._errors import CorruptLog
from curp.v1 import curp_pb2 as pb
from rifl.core._shared.identity import RpcId


def ledger_to_bytes(ledger: Ledger) -> bytes:
    """Serialise what is known of calls that kill, for the engine's metadata."""
    cases = [poison_case(case) for case in ledger.cases]
    return pb.PoisonLedger(cases=cases, outlived=ledger.outlived).SerializeToString()


def ledger_from_bytes(data: bytes | None) -> Ledger:
    """Read it, an empty one from nothing; ``CorruptLog`` for bytes that are none."""
    message = _poison_ledger(data)
    cases = tuple(case_from_message(case) for case in message.cases)
    return Ledger(cases, tuple(message.outlived))


def notes_to_bytes(notes: Sequence[Case], configuration: int) -> bytes:
    """Serialise what runs under a number, for the engine's metadata."""
    cases = [poison_case(case) for case in notes]
    return pb.PoisonLedger(cases=cases, configuration=configuration).SerializeToString()


def notes_from_bytes(data: bytes | None) -> tuple[tuple[Case, ...], int]:
    """Read it, and the number (0: unknown); ``CorruptLog`` for other bytes."""
    message = _poison_ledger(data)
    return tuple(case_from_message(case) for case in message.cases), message.configuration


def poison_case(case: Case) -> pb.PoisonCase:
    """Return the message that stands for a case."""
    message = pb.PoisonCase(
        client_id=case.rpc_id.client_id & UINT64,
        method=case.method,
        how=case.how,
        deaths=case.deaths,
        since_us=case.since_us,
        last_us=case.last_us,
        who=case.who,
        why=case.why,
        closed=case.closed,
        lsn=case.lsn,
        died=[pb.PoisonCase.Death(**death._asdict()) for death in case.died],
        awaited=case.awaited,
    )
    if case.rpc_id.key is None:
        message.seq = case.rpc_id.seq or 0
    else:
        message.key = case.rpc_id.key
    return message


def case_from_message(message: pb.PoisonCase) -> Case:
    """Read a case."""
    by_key = message.WhichOneof("identity") == "key"
    return Case(
        RpcId(
            signed(message.client_id),
            None if by_key else message.seq,
            message.key if by_key else None,
        ),
        message.method,
        message.how,
        message.deaths,
        message.since_us,
        message.last_us,
        message.who,
        message.why,
        message.closed,
        message.lsn,
        tuple(ProcessDeath(death.configuration, death.time_us) for death in message.died),
        message.awaited,
    )


def _poison_ledger(data: bytes | None) -> pb.PoisonLedger:
    try:
        return pb.PoisonLedger.FromString(data or b"")
    except DecodeError:
        raise CorruptLog("the ledger of calls that kill cannot be read") from None
