"""Rotation of secrets."""

import pytest

from lease_server._keyring import KeyRing
from lease_server._tokens import Secret

A, B, C = (Secret(number, bytes([number]) * 32) for number in range(3))


def test_a_new_secret_is_valid_before_it_signs():
    """Servers accept a new secret before any of them signs with it (§5, rotation)."""
    ring = KeyRing(term_s=60.0, refresh_s=15.0)
    ring.update([A], 0.0)
    assert ring.signing == A
    ring.update([B, A], 100.0)
    assert ring.valid == (B, A)
    ring.tick(129.9)
    assert ring.signing == A
    ring.tick(130.0)
    assert ring.signing == B


def test_the_old_secret_outlives_its_last_token_by_a_term():
    """Two secrets are valid for at least a term after the change, then one (§5)."""
    ring = KeyRing(term_s=60.0, refresh_s=15.0)
    ring.update([A], 0.0)
    ring.update([B, A], 100.0)
    ring.tick(130.0)
    ring.tick(130.0 + 60.0)
    assert A in ring.valid
    ring.tick(100.0 + 60.0 + 60.0)
    assert ring.valid == (B,)
    ring.update([B, A], 300.0)
    assert ring.valid == (B,)


def test_a_restart_signs_with_the_newest_and_accepts_both():
    """After a restart both stored secrets count, the newest signs (§5)."""
    ring = KeyRing(term_s=60.0, refresh_s=15.0)
    ring.update([B, A], 0.0)
    assert ring.signing == B
    assert ring.valid == (B, A)
    ring.tick(120.0)
    assert ring.valid == (B,)


def test_a_secret_the_storage_forgot_stays_for_its_time():
    """A third secret pushes the first out of the storage, not out of use at once (§5)."""
    ring = KeyRing(term_s=60.0, refresh_s=15.0)
    ring.update([A], 0.0)
    ring.update([B, A], 1.0)
    ring.update([C, B], 2.0)
    assert set(ring.valid) == {A, B, C}
    assert ring.signing == A
    ring.tick(32.0)
    assert ring.signing == C


def test_an_empty_ring_refuses():
    """A ring without secrets signs nothing; a storage always has one."""
    ring = KeyRing(term_s=60.0, refresh_s=15.0)
    with pytest.raises(RuntimeError):
        _ = ring.signing
    with pytest.raises(ValueError, match="at least one"):
        ring.update([], 0.0)
