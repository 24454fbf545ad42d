"""The metadata that the engine keeps beside the log: the witness list, an operator's word."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from curp._core.recovery import AcceptedLoss
from curp._core.replay_notes import ReplayNote, ReplayNotes, Stretch
from curp._core.witness_list import WitnessList
from curp.log._errors import CorruptLog
from curp.v1 import curp_pb2 as pb


def witness_list_to_bytes(witnesses: WitnessList) -> bytes:
    """Serialise a witness list for the engine's metadata."""
    return pb.WitnessList(
        configuration=witnesses.configuration,
        witnesses=witnesses.witnesses,
        serving=witnesses.serving,
        wanted=witnesses.wanted,
    ).SerializeToString()


def witness_list_from_bytes(data: bytes) -> WitnessList:
    """Read a witness list; ``CorruptLog`` for bytes that are none."""
    try:
        message = pb.WitnessList.FromString(data)
    except DecodeError:
        raise CorruptLog("the engine's witness list cannot be read") from None
    return WitnessList(
        message.configuration, tuple(message.witnesses), message.serving, tuple(message.wanted)
    )


def accepted_loss_to_bytes(accepted: AcceptedLoss, time_us: int) -> bytes:
    """Serialise an operator's word for the engine's metadata."""
    return pb.AcceptedLoss(
        configuration=accepted.configuration, who=accepted.who, why=accepted.why, time_us=time_us
    ).SerializeToString()


def accepted_loss_from_bytes(data: bytes) -> AcceptedLoss:
    """Read it; ``CorruptLog`` for bytes that are none."""
    try:
        message = pb.AcceptedLoss.FromString(data)
    except DecodeError:
        raise CorruptLog("the accepted loss in the engine's metadata is damaged") from None
    return AcceptedLoss(message.configuration, message.who, message.why)


def replays_to_bytes(replays: ReplayNotes) -> bytes:
    """Serialise who replays what, for the engine's metadata."""
    message = pb.ReplayLedger(
        notes=[pb.ReplayLedger.Note(**note._asdict()) for note in replays.notes]
    )
    if replays.suspect is not None:
        message.suspect.CopyFrom(pb.ReplayLedger.Stretch(**replays.suspect._asdict()))
    return message.SerializeToString()


def replays_from_bytes(data: bytes | None) -> ReplayNotes:
    """Read it, an empty one from nothing; ``CorruptLog`` for bytes that are none."""
    try:
        message = pb.ReplayLedger.FromString(data or b"")
    except DecodeError:
        raise CorruptLog("what is replayed cannot be read in the engine's metadata") from None
    suspect = message.suspect
    return ReplayNotes(
        tuple(
            ReplayNote(note.replica, note.process, note.after, note.through)
            for note in message.notes
        ),
        Stretch(suspect.after, suspect.through, suspect.deaths)
        if message.HasField("suspect")
        else None,
    )
