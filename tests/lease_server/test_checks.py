"""What a lease server that stands alone tells servers with stores of their own (DESIGN §5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lease_server import LeaseAuthority, MemoryLeaseStorage
from lease_server.checks import Checks
from lease_server.held import HeldClients
from lease_server.sweeper import Sweeper
from lease_server.v1 import lease_server_pb2 as pb
from rifl.stores import open_lease_storage

if TYPE_CHECKING:
    from pathlib import Path


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_who_was_met_survives_a_crash_and_who_was_not_does_not(tmp_path: Path) -> None:
    """A renewed client's row is durable first; others' ids are gone with the process (§5)."""
    url = f"sqlite:///{tmp_path / 'leases.db'}"
    storage = open_lease_storage(url)
    authority = LeaseAuthority(storage)
    met, stranger = authority.grant(), authority.grant()
    checks = Checks(authority, storage)  # type: ignore[arg-type]
    identity = checks.identity
    held = pb.HeldClient(client_id=met.client_id, token=met.token)
    assert checks.standing(held, renew=True).refused == ""
    storage.close()  # type: ignore[attr-defined]
    storage = open_lease_storage(url)
    try:
        authority = LeaseAuthority(storage)
        checks = Checks(authority, storage)  # type: ignore[arg-type]
        assert checks.identity == identity
        assert checks.standing(held, renew=True).refused == ""
        other = pb.HeldClient(client_id=stranger.client_id, token=stranger.token)
        standing = checks.standing(other, renew=True)
        assert (standing.refused, standing.genuine) == ("LEASE_EXPIRED", True)
    finally:
        storage.close()  # type: ignore[attr-defined]


def test_nobody_is_said_to_be_over_who_a_restart_could_bring_back(tmp_path: Path) -> None:
    """Until its row is gone an expired client is "ask again" (DESIGN §5; Checks, invariant 2)."""
    storage = open_lease_storage(f"sqlite:///{tmp_path / 'leases.db'}")
    try:
        clock = Clock()
        authority = LeaseAuthority(storage, term_s=10.0, clock=clock)
        checks = Checks(authority, storage)  # type: ignore[arg-type]
        grant = authority.grant()
        held = pb.HeldClient(client_id=grant.client_id, token=grant.token)
        assert checks.standing(held, renew=True).refused == ""
        clock.now += 11
        for renew in (True, False):
            assert checks.standing(held, renew=renew).refused == "STORE_UNAVAILABLE"
        assert Sweeper(authority, storage, checks.dropped).sweep() == 1
        for renew in (True, False):
            assert checks.standing(held, renew=renew).refused == "LEASE_EXPIRED"
        assert storage.known_clients() == []
    finally:
        storage.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("token", [b"", b"x", b"\1" * 20])
def test_a_wrong_token_is_told_nothing(token: bytes) -> None:
    """Neither alive nor renewed, and it leaves no state (DESIGN §4, step 1)."""
    storage = MemoryLeaseStorage()
    authority = LeaseAuthority(storage)
    checks = Checks(authority, storage)
    grant = authority.grant()
    standing = checks.standing(pb.HeldClient(client_id=grant.client_id, token=token), renew=True)
    assert (standing.refused, standing.genuine) == ("NOT_YOURS", False)


def test_a_bound_token_counts_for_its_peer_only() -> None:
    """The peer is the caller's, as the server that asks sees it (DESIGN §3)."""
    storage = MemoryLeaseStorage()
    authority = LeaseAuthority(storage)
    checks = Checks(authority, storage)
    grant = authority.grant(b"alice")
    for peer, refused in ((b"alice", ""), (b"bob", "NOT_YOURS"), (b"", "NOT_YOURS")):
        held = pb.HeldClient(client_id=grant.client_id, token=grant.token, peer=peer)
        assert checks.standing(held, renew=True).refused == refused


def test_who_is_asked_about_and_when() -> None:
    """Met once; told of four times a term while active; asked about when silent (DESIGN §5)."""
    held = HeldClients(8.0)
    held.recover([7], [7], 0.0)
    assert held.is_session(7)
    assert not held.verified(7, b"", b"")
    held.meet(1, b"t", b"p", session=False, now=0.0)
    assert held.verified(1, b"t", b"p")
    assert not held.verified(1, b"u", b"p")
    assert not held.verified(1, b"t", b"q")
    assert held.active(1.0) == []
    assert held.renew(1, 1.0)
    assert [doubt.client_id for doubt in held.active(2.0)] == [1]
    assert [doubt.client_id for doubt in held.silent(8.5)] == [7]
    held.meet(1, b"t", b"p", session=False, now=8.0)
    assert [doubt.client_id for doubt in held.silent(16.0)] == [7, 1]
    held.alive(1, 16.0)
    assert [doubt.client_id for doubt in held.silent(17.0)] == [7]
    held.end(1)
    assert not held.renew(1, 17.0)
    assert not held.renew(99, 17.0)
    held.distrust(7)
    held.forget(7)
    assert [doubt.client_id for doubt in held.silent(17.0)] == [1]
