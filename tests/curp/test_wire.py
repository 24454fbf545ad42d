"""Log entries and snapshots as bytes: DESIGN §7."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _rifl_ground.refusals import Outcome
from curp._core.entries import (
    ApplicationVersion,
    CallsAcknowledged,
    ClientRegistered,
    ClientRemoved,
    IdsReserved,
    LeaderStarted,
    SecretsPut,
    SessionForgotten,
    SessionPut,
    SessionsRekeyed,
    SetAside,
)
from curp._core.poison import HELD, LOGGED, Case, Ledger, ProcessDeath
from curp._core.replay_notes import ReplayNote, ReplayNotes, Stretch
from curp._core.state import GroupState
from curp._core.witness_list import WitnessList
from curp._wire.entries import entry_from_bytes, entry_to_bytes
from curp._wire.metadata import (
    replays_from_bytes,
    replays_to_bytes,
    witness_list_from_bytes,
    witness_list_to_bytes,
)
from curp._wire.poison import ledger_from_bytes, ledger_to_bytes, notes_from_bytes, notes_to_bytes
from curp._wire.snapshots import snapshot_from_chunks, snapshot_to_chunks
from curp._wire.witnessed_calls import witnessed_call
from curp.log._errors import CorruptLog
from curp.v1 import curp_pb2 as pb
from rifl.core._shared.identity import RpcId
from rifl.core._shared.record import CompletionRecord
from rifl.v1 import rifl_pb2
from tests.curp.core.groups import committed, operation

_ENTRIES: list[Any] = [
    operation(1, 4, first_incomplete=2, completed=((3, 3), (6, 9)), stamp=(5, 2**64 - 1)),
    operation(2**63 - 1, None, key=b"\x00key", keys=frozenset({0, 2**64 - 1}), peer=b"p"),
    operation(-(2**63), None, key=b"plain", keys=frozenset(), fingerprint=None),
    operation(
        1,
        5,
        refusal=True,
        answer=CompletionRecord(
            10, "no", None, (("a", "b"),), (("c-bin", b"\xff"),), Outcome.NOT_EXECUTED, "REASON"
        ),
    ),
    ClientRegistered(7),
    ClientRegistered(8, b"10.0.0.7"),
    ClientRemoved(7),
    CallsAcknowledged(7, 1),
    CallsAcknowledged(2**63 - 1, 5, ((7, 9), (11, 2**63 - 1))),
    SessionPut(9, "nightly", b"", "expired", 60.5, 1.25, b"verifier", "10.0.0.7", b"w" * 32),
    SessionForgotten(9),
    SessionsRekeyed((9, 2**63 - 1), b"verifier"),
    IdsReserved(1024),
    SecretsPut(((1, b"s" * 32), (0, b"t" * 32))),
    LeaderStarted(4, "r1", 3),
    LeaderStarted(5, "r2", 0, "alice: both burnt"),
]


@pytest.mark.parametrize(
    "entry",
    [
        *_ENTRIES,
        operation(1, 7, refusal=True, set_aside=SetAside(3, "alice", "it kills", 2**60)),
        ApplicationVersion(2, "alice"),
        operation(1, 6, application_version=2**63 - 1),
    ],
    ids=lambda entry: type(entry).__name__,
)
def test_entries_come_back_as_they_were(entry: Any) -> None:
    """Whatever replay needs is in the bytes."""
    assert entry_from_bytes(1, entry_to_bytes(entry)) == entry


def test_a_newer_programs_entry_stops_the_reader() -> None:
    """It is named, and never skipped (DESIGN §7)."""
    newer = pb.LogEntry(version=2, client_registered=pb.ClientRegistered(client_id=1))
    with pytest.raises(CorruptLog, match="newer"):
        entry_from_bytes(3, newer.SerializeToString())


@pytest.mark.parametrize(
    "message",
    [
        pb.LogEntry(version=1),
        pb.LogEntry(version=1, operation=pb.Operation(client_id=1)),
        pb.LogEntry(version=1, session_put=pb.SessionPut(state=99)),
        pb.LogEntry(version=1, operation=pb.Operation(client_id=1, seq=1, completed=[1])),
    ],
)
def test_entries_without_sense_are_corrupt(message: pb.LogEntry) -> None:
    """Nothing is guessed."""
    with pytest.raises(CorruptLog):
        entry_from_bytes(3, message.SerializeToString())


@given(st.binary(max_size=60))
def test_garbage_is_corrupt_and_nothing_else(body: bytes) -> None:
    """Any bytes are an entry or CorruptLog."""
    with contextlib.suppress(CorruptLog):
        entry_from_bytes(1, body)


def _snapshot() -> tuple[GroupState, list[bytes]]:
    state = committed(*_ENTRIES[:4], *_ENTRIES[6:10:3], operation(3, 1), ApplicationVersion(4))
    return state, list(snapshot_to_chunks(state.dump(), b"x" * 2_000_000))


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 2_000_000))
def test_a_snapshot_comes_back_in_whatever_pieces(size: int) -> None:
    """Engines need not keep the chunks apart (invariant 8)."""
    state, chunks = _snapshot()
    data = b"".join(chunks)
    size = max(size, len(data) // 50)
    items, services = snapshot_from_chunks(data[at : at + size] for at in range(0, len(data), size))
    assert items == list(state.dump())
    assert services == b"x" * 2_000_000


def test_a_damaged_snapshot_is_refused() -> None:
    """Cut short at any item, out of order, or newer: never taken (invariant 8)."""
    _, chunks = _snapshot()
    for cut in (0, 1, len(chunks) // 2, len(chunks) - 1):
        with pytest.raises(CorruptLog):
            snapshot_from_chunks(chunks[:cut])
    for damaged in (chunks[1:], [chunks[0], *chunks], [*chunks, chunks[0]], [chunks[0][:-1]]):
        with pytest.raises(CorruptLog):
            snapshot_from_chunks(damaged)
    newer = pb.SnapshotItem(head=pb.SnapshotHead(version=2)).SerializeToString()
    with pytest.raises(CorruptLog, match="newer"):
        snapshot_from_chunks([len(newer).to_bytes(4, "big") + newer])


def test_a_witness_list_comes_back_as_it_was() -> None:
    """It is engine metadata."""
    witnesses = WitnessList(4, ("a:1",), True, ("a:1", "b:2"))
    assert witness_list_from_bytes(witness_list_to_bytes(witnesses)) == witnesses
    with pytest.raises(CorruptLog):
        witness_list_from_bytes(b"\xff")


def test_a_witnessed_request_comes_without_its_acknowledgements() -> None:
    """They are ignored during replay; its stamp is not (invariant 6)."""
    header = rifl_pb2.CallHeader(
        client_id=3, seq=9, first_incomplete=5, completed=[1, 1], time_us=7, seed=8
    )
    found = witnessed_call(
        pb.WitnessedCall(
            header=header.SerializeToString(), method="/a/B", request=b"r", conflict_keys=[4]
        )
    )
    assert found is not None
    assert (found.call.client_id, found.call.seq, found.call.stamp) == (3, 9, (7, 8))
    assert (found.call.first_incomplete, found.call.completed) == (1, ())
    assert (found.request, found.keys) == (b"r", frozenset({4}))
    assert witnessed_call(pb.WitnessedCall(header=b"\xff")) is None


def test_what_is_known_of_calls_that_kill_comes_back() -> None:
    """The engine's metadata says as much as it was told (DESIGN §7, invariant 12)."""
    ledger = Ledger(
        (
            Case(
                RpcId(1, 2),
                "/m",
                HELD,
                3,
                4,
                5,
                "alice",
                "why",
                closed=True,
                died=(ProcessDeath(6, 4), ProcessDeath(8, 5)),
            ),
            Case(RpcId(-(2**63), None, b"key"), "/n", LOGGED, lsn=9),
        ),
        (6, 7),
    )
    assert ledger_from_bytes(ledger_to_bytes(ledger)) == ledger
    assert ledger_from_bytes(None) == Ledger()
    assert notes_from_bytes(notes_to_bytes(ledger.cases, 5)) == (ledger.cases, 5)
    # As an earlier program wrote them: under a number that nobody knows.
    earlier = pb.PoisonLedger(cases=[pb.PoisonCase(client_id=1, seq=2, deaths=1)])
    assert ledger_from_bytes(earlier.SerializeToString()).cases[0].died == ()
    assert notes_from_bytes(earlier.SerializeToString())[1] == 0
    assert notes_from_bytes(None) == ((), 0)
    for suspect in (None, Stretch(1, 2, 3)):
        replays = ReplayNotes((ReplayNote("r1", "r1/a", 5, 6),), suspect)
        assert replays_from_bytes(replays_to_bytes(replays)) == replays
    assert replays_from_bytes(None) == ReplayNotes()
    for read in (ledger_from_bytes, notes_from_bytes, replays_from_bytes):
        with pytest.raises(CorruptLog):
            read(b"\xff")
