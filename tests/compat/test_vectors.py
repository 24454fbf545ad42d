"""The wire and the stored bytes stay what they were (DESIGN §3)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rifl._wire.envelope import parse_batch, parse_reply
from rifl._wire.header import parse_call
from rifl._wire.labels import parse_outcome, read_refusal
from rifl._wire.records import record_from_bytes
from rifl.core._shared.errors import BadHeader
from rifl.core._shared.reasons import error_class
from rifl.v1 import rifl_pb2
from tests.compat.batch_vectors import METHOD as BATCHED
from tests.compat.batch_vectors import REPLIES
from tests.compat.make_store import ANSWER, REFUSAL
from tests.compat.make_vectors import DIRECTORY, vectors

# Field 2000, a string: what a later release may add.
_UNKNOWN_FIELD = bytes.fromhex("827d056c61746572")


def _load(name: str) -> Any:
    return json.loads((DIRECTORY / name).read_text())


@pytest.mark.parametrize("name", sorted(vectors()))
def test_what_we_send_is_what_we_sent(name: str) -> None:
    """Today's code makes the stored vectors, byte for byte (DESIGN §3)."""
    assert _load(name) == json.loads(json.dumps(vectors()[name]))


def test_no_vector_file_is_left_over() -> None:
    """Every file there is one that is made."""
    assert {file.name for file in DIRECTORY.iterdir()} == set(vectors())


@pytest.mark.parametrize("vector", _load("headers.json")["valid"], ids=lambda v: v["name"])
@pytest.mark.parametrize("added", [b"", _UNKNOWN_FIELD], ids=["as is", "with an unknown field"])
def test_valid_headers_are_read(vector: Any, added: bytes) -> None:
    """A header of this release is understood, and what a later one adds is skipped (DESIGN §3)."""
    wire = bytes.fromhex(vector["wire"]) + added
    call = parse_call(wire, "/bank.Bank/Deposit", b"")
    header = vector["header"]
    assert call.client_id == header["client_id"]
    assert call.token.hex() == header["token"]
    assert call.seq == (int(header["seq"]) if "seq" in header else None)
    assert call.key == (bytes.fromhex(header["key"]) if "key" in header else None)
    assert call.first_incomplete == int(header.get("first_incomplete", 1))
    assert [list(pair) for pair in call.completed] == vector["completed_ranges"]
    assert call.attempt == header["attempt"]


@pytest.mark.parametrize("vector", _load("headers.json")["invalid"], ids=lambda v: v["name"])
def test_invalid_headers_are_refused(vector: Any) -> None:
    """What breaks a rule of the header is BAD_HEADER (DESIGN §3)."""
    with pytest.raises(BadHeader):
        parse_call(bytes.fromhex(vector["wire"]), "/bank.Bank/Deposit", b"")


@pytest.mark.parametrize("vector", _load("answers.json")["refusals"], ids=lambda v: v["reason"])
def test_refusals_are_read(vector: Any) -> None:
    """A refusal's trailing metadata names its reason and outcome (DESIGN §3)."""
    trailing = [
        ("grpc-status-details-bin", bytes.fromhex(vector["grpc-status-details-bin"])),
        ("rifl-outcome", vector["rifl-outcome"]),
    ]
    refusal = read_refusal(trailing)
    assert refusal is not None
    assert refusal[0] == vector["reason"]
    known = error_class(vector["reason"])
    assert known is not None
    outcome = parse_outcome(trailing)
    assert outcome is known.outcome
    assert vector["code_name"] == known.code_name


@pytest.mark.parametrize("added", [b"", _UNKNOWN_FIELD], ids=["as is", "with an unknown field"])
def test_stored_records_are_read(added: bytes) -> None:
    """A record that a store kept reads back whole, unknown fields or not (DESIGN §4)."""
    records = [
        record_from_bytes(bytes.fromhex(v["bytes"]) + added)
        for v in _load("stored.json")["records"]
    ]
    assert records == [ANSWER, REFUSAL]


def test_an_outcome_of_a_later_release_is_unknown() -> None:
    """A value nobody here knows is never taken for executed (DESIGN §3)."""
    data = rifl_pb2.CompletionRecord(code=0, outcome=99, has_response=True)  # type: ignore[arg-type]
    assert record_from_bytes(data.SerializeToString()).outcome.value == "unknown"


@pytest.mark.parametrize("vector", _load("batches.json")["batches"], ids=lambda v: v["name"])
@pytest.mark.parametrize("added", [b"", _UNKNOWN_FIELD], ids=["as is", "with an unknown field"])
def test_batches_are_read(vector: Any, added: bytes) -> None:
    """A batch of this release is understood, item by item (DESIGN §4)."""
    wire = bytes.fromhex(vector["wire"]) + added
    header = bytes.fromhex(vector["header"]) + added
    calls = parse_batch(header, BATCHED, wire, max_items=100, max_bytes=10_000)
    for call, item in zip(calls, vector["items"], strict=True):
        assert call.request.hex() == item["request"]
        assert call.seq == (int(item["seq"]) if "seq" in item else None)
        assert call.key == (bytes.fromhex(item["key"]) if "key" in item else None)
        assert (call.fingerprint or b"").hex() == item["fingerprint"]


@pytest.mark.parametrize("at", range(len(REPLIES)))
def test_answers_to_batches_are_read(at: int) -> None:
    """Each item's answer comes out as it was put in (DESIGN §4)."""
    wire = bytes.fromhex(_load("batches.json")["answers"][at]["wire"])
    found = parse_reply(wire + _UNKNOWN_FIELD, len(REPLIES[at][1])).items()
    for reply, sent in zip(found, REPLIES[at][1], strict=True):
        assert (reply.record, reply.outcome, reply.retry_after_s) == (
            sent.record,
            sent.outcome,
            sent.retry_after_s,
        )
