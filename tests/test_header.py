"""Headers read without protobuf: what parse_call reads, or nothing (DESIGN §3)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rifl._wire.header import parse_call
from rifl._wire.packed_header import KnownClients, encode_header
from rifl.core import BadHeader
from rifl.core._calling.client_lease import ClientLease, LeaseGrant
from rifl.core._calling.issued_call import IssuedCall
from rifl.core._shared.call import Call
from rifl.v1 import rifl_pb2

METHOD, REQUEST = "/p.S/M", b"request"
SECRETS = object()
TOKEN = b"\x01\x00" + bytes(range(18))
_FIELDS = ("client_id", "token", "seq", "key", "identity", "first_incomplete", "completed")
_MORE = ("attempt", "fingerprint", "method", "stamp", "max_response_bytes", "peer", "try_ms")


def lease(client_id: int = 7, token: bytes = TOKEN) -> ClientLease:
    grant = LeaseGrant(client_id=client_id, token=token, term_s=30.0, deduplicated=("*",))
    return ClientLease(grant, 512, 0.0)


def issued(held: ClientLease, seq: int, first: int = 1, **given_: object) -> IssuedCall:
    call = IssuedCall(held, seq, first, (), (11, 22))
    for name, value in given_.items():
        setattr(call, name, value)
    return call


def known(held: ClientLease, max_response_bytes: int = 0) -> KnownClients:
    clients = KnownClients()
    value = encode_header(issued(held, 1), max_response_bytes)
    clients.note(parse_call(value, METHOD, REQUEST), value, SECRETS)
    return clients


def content(call: Call) -> list[object]:
    return [getattr(call, name) for name in _FIELDS + _MORE]


def agree(clients: KnownClients, value: bytes) -> bool:
    """Whether it was read; if so, as parse_call reads it, errors included."""
    try:
        call = clients.read(value, METHOD, REQUEST, SECRETS)
    except BadHeader:
        with pytest.raises(BadHeader):
            parse_call(value, METHOD, REQUEST)
        return True
    if call is None:
        return False
    assert content(call) == content(parse_call(value, METHOD, REQUEST))
    return True


_SEQ = st.one_of(st.integers(1, 300), st.integers(1, 2**63 - 1))


@settings(deadline=None)
@given(
    client_id=st.one_of(st.integers(1, 300), st.integers(1, 2**63 - 1)),
    seqs=st.tuples(_SEQ, _SEQ),
    gaps=st.one_of(st.just([]), st.lists(st.integers(1, 100), max_size=70)),
    attempt=st.one_of(st.just(1), st.integers(1, 300)),
    limit=st.sampled_from([0, 1, 4096, 2**32 - 1]),
    try_ms=st.sampled_from([0, 1, 2**32 - 1]),
)
def test_what_our_clients_send_is_read(
    client_id: int, seqs: tuple[int, int], gaps: list[int], attempt: int, limit: int, try_ms: int
) -> None:
    """A first attempt of a known client is read without protobuf, to the same call (DESIGN §3)."""
    held = lease(client_id)
    first, seq = min(seqs), max(seqs)
    completed, at = [], first
    for gap in gaps[:60]:
        if at + gap + 1 < seq:
            completed.append((at + gap, at + gap))
            at += gap + 1
    call = issued(held, seq, first, completed=completed, attempt=attempt, try_ms=try_ms)
    value = encode_header(call, limit)
    usual = attempt == 1 and not completed and seq < 2**28
    assert agree(known(held, limit), value) == usual
    read = parse_call(value, METHOD, REQUEST)
    assert (read.seq, read.first_incomplete, read.attempt) == (seq, first, attempt)
    assert read.try_ms == try_ms
    assert (list(read.completed), read.stamp) == (completed, (11, 22))


@settings(deadline=None, max_examples=400)
@given(
    seq=st.integers(1, 2**16),
    cut=st.integers(0, 80),
    added=st.binary(max_size=40),
    at=st.integers(30, 80),
    byte=st.integers(0, 255),
)
def test_whatever_follows_the_known_beginning_is_read_the_same(
    seq: int, cut: int, added: bytes, at: int, byte: int
) -> None:
    """Truncated, altered and lengthened headers are read as parse_call does, or left to it."""
    held = lease()
    clients = known(held)
    value = encode_header(issued(held, seq, 1, completed=((3, 4),) if seq > 4 else ()))
    agree(clients, value[:cut])
    agree(clients, value + added)
    agree(clients, value[:cut] + added)
    if at < len(value):
        agree(clients, value[:at] + bytes((byte,)) + value[at + 1 :])


def test_a_field_of_protobufs_more_is_left_to_protobuf() -> None:
    """Another order, a content hash, a key, and unknown fields are parse_call's (DESIGN §3)."""
    held = lease()
    clients = known(held)
    value = encode_header(issued(held, 5))
    assert agree(clients, value)
    assert not agree(clients, rifl_pb2.CallHeader.FromString(value).SerializeToString())
    assert not agree(clients, value + rifl_pb2.CallHeader(content_hash=b"h").SerializeToString())
    longer = value + b"\x85\x01" + bytes(4)
    assert agree(clients, longer)
    assert not agree(clients, encode_header(issued(held, 0, key=b"k")))
    assert not agree(clients, encode_header(issued(held, 5, attempt=2)))
    assert not agree(clients, encode_header(issued(held, 5, completed=((3, 4),))))


def test_a_token_counts_for_its_own_id_and_while_its_secret_is_valid() -> None:
    """Another id, another token, other secrets: to be verified again (DESIGN §5)."""
    held = lease()
    clients = known(held)
    assert agree(clients, encode_header(issued(held, 1)))
    assert not agree(clients, encode_header(issued(lease(8), 1)))
    assert not agree(clients, encode_header(issued(lease(token=TOKEN[::-1]), 1)))
    assert clients.read(encode_header(issued(held, 1)), METHOD, REQUEST, object()) is None


def test_a_verified_token_is_verified_for_its_id_alone() -> None:
    """What has to be read by protobuf is not checked again, unless it names another (DESIGN §5)."""
    held = lease()
    clients = known(held)
    later = encode_header(issued(held, 5, attempt=2))
    assert clients.knows(parse_call(later, METHOD, REQUEST), SECRETS)
    assert not clients.knows(parse_call(later, METHOD, REQUEST), object())
    # The last of a field counts: what begins as one client's header can be another's.
    for forged in (rifl_pb2.CallHeader(client_id=8), rifl_pb2.CallHeader(token=TOKEN[::-1])):
        assert not clients.knows(
            parse_call(later + forged.SerializeToString(), METHOD, REQUEST), SECRETS
        )


def test_a_bound_token_is_never_taken_as_verified() -> None:
    """It counts for one peer only, who is looked at on every call (DESIGN §5)."""
    held = lease(token=b"\x01\x01" + bytes(18))
    assert not agree(known(held), encode_header(issued(held, 1)))


def test_known_clients_are_bounded() -> None:
    """Tens of thousands of clients do not stay; the latest are known (DESIGN §9, bounds)."""
    clients = KnownClients()
    for number in range(20_000):
        held = lease(number + 1, b"\x01\x00" + number.to_bytes(18, "big"))
        value = encode_header(issued(held, 1))
        clients.note(parse_call(value, METHOD, REQUEST), value, SECRETS)
    assert len(clients) <= 8192
    assert agree(clients, encode_header(issued(held, 2)))
