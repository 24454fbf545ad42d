"""The benchmark in virtual time, simulated small: what it says of the product holds there, too."""

from __future__ import annotations

import pytest

from benchmarks.simulated.parts import TRIGGERS, Size, calls, renewals, start


def test_clients_of_a_lost_zone_keep_their_leases() -> None:
    """Each is renewed at another server within the term (DESIGN §5)."""
    found = renewals(2, Size(clients=60, servers=4))
    assert found["clients"] == 120
    assert found["clients_moved"] == 60
    assert found["leases_lost"] == 0
    assert found["back_s"] < 60
    assert 1 < found["requests_a_renewal_after"] < 2


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_calls_are_answered_in_time_again(trigger: str) -> None:
    """After each trouble, by clients that take servers in turn; none ran twice (DESIGN §1, §5)."""
    found = calls(trigger, Size(clients=20, servers=3, calls_s=10.0))
    assert found["clients_in_turn"] == 20
    assert found["doubled"] == 0
    assert found["calls"] > 300
    assert found["goodput_s_before"] > 8
    assert found["back_s"] is not None
    assert found["attempts_a_call"] >= 1


def test_a_start_of_all_clients_makes_no_storm_of_lease_requests() -> None:
    """Each tries its lease at one target, at others as calls are made (DESIGN §5)."""
    found = start(Size(clients=60, servers=8, calls_s=12.0))
    assert found["clients_in_turn"] == 60
    assert found["lease_requests_s_most"] < 75
    assert found["largest_share"] < 1.5 / 8, "though all began at the first"


def test_a_restart_makes_no_storm_of_lease_requests() -> None:
    """Targets that failed are tried one at a time, as calls are made (DESIGN §5)."""
    found = calls("the shard restarts", Size(clients=60, servers=8, calls_s=12.0))
    assert found["clients_in_turn"] == 60
    assert found["lease_requests_s_most"] < 12
