"""Capability tokens."""

import hmac
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lease_server import Secret, make_token, peer_bound, verify
from lease_server._tokens import MAX_CLIENT_ID, TOKEN_BYTES

OLD = Secret(1, b"o" * 32)
NEW = Secret(2, b"n" * 32)
IDS = st.integers(1, MAX_CLIENT_ID)


@given(IDS, st.binary(max_size=100))
def test_a_token_opens_its_own_id_only(client_id, peer):
    """A token verifies for its id and peer, under any listed secret, and no other (§3)."""
    token = make_token(OLD, client_id, peer)
    assert len(token) == TOKEN_BYTES
    assert peer_bound(token) is bool(peer)
    assert verify([NEW, OLD], client_id, token, peer)
    assert not verify([NEW], client_id, token, peer)
    assert not verify([Secret(1, b"x" * 32)], client_id, token, peer)
    assert not verify([OLD], client_id ^ 1, token, peer)
    if peer:
        assert not verify([OLD], client_id, token, peer + b"x")
        assert not verify([OLD], client_id, token, b"")
    else:
        assert verify([OLD], client_id, token, b"anyone")


@given(st.binary(min_size=16, max_size=130), IDS, st.binary(max_size=100))
def test_the_mac_is_standard(value, client_id, peer):
    """The MAC is HMAC-SHA256 cut to 16 bytes, as any language computes it (RFC 2104)."""
    token = make_token(Secret(258, value), client_id, peer)
    head = bytes([1, 1 if peer else 0, 1, 2])
    message = b"rifl client id v1\0" + head + client_id.to_bytes(8, "big") + peer
    assert token == head + hmac.digest(value, message, "sha256")[:16]


@given(IDS, st.binary(max_size=8), st.integers(0, TOKEN_BYTES - 1), st.integers(1, 255))
def test_every_byte_counts(client_id, peer, position, flip):
    """Changing any byte of a token makes it worthless, flags and version included (§3)."""
    token = bytearray(make_token(OLD, client_id, peer))
    token[position] ^= flip
    assert not verify([OLD, NEW], client_id, bytes(token), peer)


@given(st.integers(-(2**70), 2**70), st.binary(max_size=64), st.binary(max_size=8))
def test_garbage_is_false_never_an_error(client_id, token, peer):
    """Garbage ids and tokens are refused without raising (§3)."""
    assert not verify([OLD, NEW], client_id, token, peer)
    assert peer_bound(token) in (True, False)


def test_ids_outside_the_range_get_no_token():
    """Ids are 1 to 2^63 - 1, what stores can keep."""
    for client_id in (0, -1, 2**63):
        with pytest.raises(ValueError, match="client ids"):
            make_token(OLD, client_id)


def test_a_secret_hides_its_value():
    """A secret's value does not reach logs; short ones and bad key ids are refused."""
    assert "ooo" not in repr(OLD)
    assert pickle.loads(pickle.dumps(OLD)) == OLD  # noqa: S301 - made right here
    with pytest.raises(ValueError, match="16 bytes"):
        Secret(1, b"short")
    with pytest.raises(ValueError, match="key_id"):
        Secret(2**16, b"x" * 16)
