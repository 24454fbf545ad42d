"""A witness's handlers, given bytes from anywhere (DESIGN §7, invariant 2; §9, bounds)."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from curp._core.conflict_keys import FieldType, KeyField, canonical, conflict_key
from curp._core.witness_table import WitnessLimits, WitnessTable, group_of_log
from curp._key_declarations import fields_to_wire
from curp.v1 import curp_pb2 as pb
from curp.witness import WitnessHandlers, WitnessJournal
from lease_server._tokens import Secret, make_token
from rifl.core._shared.errors import BadHeader, NotYours, RiflError
from rifl.v1 import rifl_pb2

SECRET = Secret(1, b"s" * 32)
SECRETS = pb.SecretsPut(secrets=[pb.SecretsPut.Secret(key_id=1, secret=SECRET.value)])
PUT = pb.MethodConflicts(
    method="/s/Put", keys=fields_to_wire([KeyField((1,), FieldType.INT64, "", canonical(0))])
)
V = pb.RecordReply
LOG = 0xA
GROUP = group_of_log("g", LOG)


def start_bytes(configuration: int = 1, **fields: Any) -> bytes:
    fields = {"group": GROUP, "secrets": SECRETS, **fields}
    return pb.StartRequest(configuration=configuration, **fields).SerializeToString()


def record_bytes(
    seq: int = 1,
    request: bytes = b"",
    *keys: int,
    configuration: int = 1,
    method: str = "/s/Put",
    token: bytes | None = None,
    client_id: int = 5,
    peer: bytes = b"",
    said: tuple[int, ...] = (),
) -> bytes:
    header = rifl_pb2.CallHeader(
        client_id=client_id,
        token=make_token(SECRET, client_id) if token is None else token,
        seq=seq,
        configuration=configuration,
        conflict_keys=said,
    )
    call = pb.WitnessedCall(
        header=header.SerializeToString(),
        method=method,
        request=request,
        conflict_keys=keys,
        peer=peer,
    )
    return pb.RecordRequest(configuration=configuration, call=call, log=LOG).SerializeToString()


def witness_handlers(*methods: pb.MethodConflicts, **limits: int) -> WitnessHandlers:
    made = WitnessHandlers(WitnessTable(WitnessLimits(**limits) if limits else None))
    assert verdict(made.start(start_bytes(methods=methods))) == V.ACCEPTED
    return made


def verdict(raw: bytes) -> int:
    return pb.RecordReply.FromString(raw).verdict


def record(to: WitnessHandlers, *arguments: Any, peer_is: bytes = b"", **fields: Any) -> int:
    return verdict(to.record(record_bytes(*arguments, **fields), lambda: peer_is))


def frozen(of: WitnessHandlers, configuration: int = 1) -> list[pb.WitnessedCall]:
    raw = pb.FreezeRequest(group=GROUP, configuration=configuration).SerializeToString()
    return [call for part in of.freeze(raw) for call in pb.FreezeReply.FromString(part).calls]


def test_what_was_accepted_is_given_back_whole() -> None:
    """A new leader gets header, method, request and keys as they were sent (CURP §3.3)."""
    witness = witness_handlers()
    assert record(witness, 1, b"one", 7) == V.ACCEPTED
    assert record(witness, 2, b"two", 8, 9) == V.ACCEPTED
    sent = pb.RecordRequest.FromString(record_bytes(1, b"one", 7)).call
    assert frozen(witness)[0] == sent
    assert [call.request for call in frozen(witness)] == [b"one", b"two"]
    assert record(witness, 3, b"", 1) == V.FROZEN


def test_a_long_table_comes_in_parts() -> None:
    """A freeze's messages stay far below what gRPC takes (DESIGN §9)."""
    witness = witness_handlers()
    for seq in range(1, 81):
        assert record(witness, seq, bytes(60_000), seq) == V.ACCEPTED
    raw = pb.FreezeRequest(group=GROUP, configuration=1).SerializeToString()
    parts = list(witness.freeze(raw))
    assert max(map(len, parts)) < 2 << 20
    assert len(frozen(witness)) == 80


def test_callers_are_authorised_as_by_the_leader() -> None:
    """Invariant 2: the token, and the peer it is bound to; nothing is kept of others."""
    witness = witness_handlers()
    for wrong in (b"", b"x", make_token(SECRET, 6), make_token(Secret(1, b"t" * 32), 5)):
        with pytest.raises(NotYours):
            record(witness, 1, b"", 7, token=wrong)
    bound = make_token(SECRET, 5, b"alice")
    with pytest.raises(NotYours):
        record(witness, 1, b"", 7, token=bound, peer_is=b"bob", peer=b"alice")
    assert record(witness, 1, b"", 7, token=bound, peer_is=b"alice") == V.ACCEPTED
    # What a caller says its peer is does not reach the new leader.
    assert record(witness, 2, b"", 8, peer=b"root") == V.ACCEPTED
    assert [call.peer for call in frozen(witness)] == [b"alice", b""]


def test_no_caller_is_authorised_before_a_start() -> None:
    """A witness without secrets knows nobody (invariant 2)."""
    with pytest.raises(NotYours):
        record(WitnessHandlers(WitnessTable()), 1, b"", 7)


def test_rotated_secrets_come_with_a_refresh() -> None:
    """New tokens are good, old ones gone, and no held call is lost (DESIGN §5)."""
    witness = witness_handlers()
    assert record(witness, 1, b"", 7) == V.ACCEPTED
    fresh = Secret(2, b"n" * 32)
    renewed = pb.SecretsPut(secrets=[pb.SecretsPut.Secret(key_id=2, secret=fresh.value)])
    assert verdict(witness.start(start_bytes(refresh=True, secrets=renewed))) == V.ACCEPTED
    with pytest.raises(NotYours):
        record(witness, 2, b"", 8)
    assert record(witness, 2, b"", 8, token=make_token(fresh, 5)) == V.ACCEPTED
    assert len(frozen(witness)) == 2
    late = start_bytes(2, refresh=True)
    assert verdict(witness.start(late)) == V.OTHER_CONFIGURATION


def test_a_caller_cannot_lie_about_its_keys() -> None:
    """Where the leader said how, the witness finds the keys itself (invariant 2)."""
    by_callable = pb.MethodConflicts(method="/s/Any", by_callable=True)
    keyless = pb.MethodConflicts(method="/s/All")
    witness = witness_handlers(PUT, by_callable, keyless)
    five = conflict_key("", canonical(5))
    assert record(witness, 1, b"\x08\x05", 111) == V.ACCEPTED
    assert record(witness, 2, b"\x08\x05", 222) == V.CONFLICT
    # Of a callable's keys the header's count, which the leader holds against its own.
    assert record(witness, 2, b"", 333, method="/s/Any", said=(five,)) == V.CONFLICT
    assert record(witness, 2, b"", five, method="/s/Any", said=(333,)) == V.ACCEPTED
    assert record(witness, 3, b"", 444, method="/s/All") == V.CONFLICT
    assert record(witness, 3, b"", 444, method="/s/Unheard") == V.CONFLICT
    assert record(witness, 3, b"\x08\x06") == V.ACCEPTED


def test_long_requests_and_many_keys_have_bounds() -> None:
    """TOO_LARGE, before anything is parsed, and no keys instead of too many (DESIGN §9)."""
    witness = witness_handlers(max_request_bytes=100, max_bytes=1000)
    assert record(witness, 1, bytes(100), 7) == V.ACCEPTED
    assert record(witness, 2, bytes(101), 8) == V.TOO_LARGE
    assert verdict(witness.record(b"\xff" * 100_000, lambda: b"")) == V.TOO_LARGE
    assert record(witness, 3, b"", *range(100, 165)) == V.CONFLICT
    assert record(witness, 3, b"", *range(100, 164)) == V.ACCEPTED


def test_collected_calls_go_and_stuck_ones_are_told() -> None:
    """Invariant 12, through the wire: by seq and by key."""
    witness = witness_handlers()
    record(witness, 1, b"one", 7)
    record(witness, 2, b"two", 8)
    synced = [pb.Collected(client_id=5, seq=1), pb.Collected(client_id=5, key=b"none")]
    raw = pb.CollectRequest(group=GROUP, configuration=1, synced=synced).SerializeToString()
    replies = [pb.CollectReply.FromString(witness.collect(raw)) for _ in range(3)]
    assert [[call.request for call in reply.stuck] for reply in replies] == [[], [], [b"two"]]
    assert [call.request for call in frozen(witness)] == [b"two"]


@pytest.mark.parametrize(
    "start",
    [
        b"\xff",
        start_bytes(group=""),
        start_bytes(group="g"),
        start_bytes(group=group_of_log("g", 0)),
        start_bytes(0),
        start_bytes(secrets=pb.SecretsPut()),
        start_bytes(secrets=pb.SecretsPut(secrets=[pb.SecretsPut.Secret(secret=b"short")])),
        start_bytes(methods=[pb.MethodConflicts(keys=[pb.KeyField(path=[1], type=1)])]),
        start_bytes(methods=[pb.MethodConflicts(keys=[pb.KeyField(type=3)])]),
    ],
)
def test_a_start_that_makes_no_sense_changes_nothing(start: bytes) -> None:
    """BAD_HEADER, and the witness serves on as it did (DESIGN §3)."""
    witness = witness_handlers()
    record(witness, 1, b"one", 7)
    with pytest.raises(BadHeader):
        witness.start(start)
    assert record(witness, 2, b"two", 8) == V.ACCEPTED


@given(st.binary(max_size=200), st.integers(0, 4), st.integers(0, 300), st.binary(max_size=4))
@example(record_bytes(3, b"x", 9), 0, 2, b"\x00")
def test_any_bytes_are_answered_or_refused(raw: bytes, which: int, at: int, patch: bytes) -> None:
    """Nothing a peer sends raises anything but a refusal, or loses a held call (DESIGN §9)."""
    witness = witness_handlers(PUT)
    record(witness, 1, b"\x08\x05")
    whole = record_bytes(2, b"\x08\x06")
    patched = whole[:at] + patch + whole[at + len(patch) :]
    for content in (raw, patched):
        with contextlib.suppress(RiflError):
            if which < 3:
                witness.record(content, lambda: b"")
            elif which == 3:
                witness.start(content)
            else:
                list(witness.freeze(content))
    assert b"\x08\x05" in [call.request for call in frozen(witness)]


def test_numbers_are_durable_before_they_count(tmp_path: Path) -> None:
    """A start whose number cannot be written did not happen (invariant 2)."""

    class FullDisk(WitnessJournal):
        full = False

        def write(self, group: str, configuration: int) -> None:
            if self.full:
                raise OSError("no space left")
            super().write(group, configuration)

    journal = FullDisk(tmp_path)
    witness = WitnessHandlers(WitnessTable(), journal)
    assert verdict(witness.start(start_bytes(3))) == V.ACCEPTED
    assert journal.highest == 3
    record(witness, 1, b"one", 7, configuration=3)
    FullDisk.full = True
    with pytest.raises(OSError, match="no space"):
        witness.start(start_bytes(4))
    assert [call.request for call in frozen(witness, 3)] == [b"one"]
    journal.close()
