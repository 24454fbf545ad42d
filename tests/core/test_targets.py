"""The choice of the next target (DESIGN §3)."""

from __future__ import annotations

import pytest

from _rifl_ground.refusals import Outcome
from rifl.core._calling.answer import AttemptAnswer
from rifl.core._calling.targets import Targets, best_connectivity, split_targets

LOST = AttemptAnswer("UNAVAILABLE")


def leads(address: str) -> AttemptAnswer:
    return AttemptAnswer("UNAVAILABLE", Outcome.NOT_EXECUTED, "NOT_LEADER", {"leader": address})


def test_what_fails_is_left_and_what_answers_is_kept() -> None:
    """Transport failures and refusals before anything ran move on, answers do not (DESIGN §3)."""
    targets = Targets(["a:1", "b:1", "c:1"])
    for answer in (
        AttemptAnswer("OK"),
        AttemptAnswer("UNAVAILABLE", Outcome.EXECUTED),
        AttemptAnswer("DEADLINE_EXCEEDED"),
        AttemptAnswer("ABORTED", Outcome.UNKNOWN, "OUTCOME_UNKNOWN"),
        AttemptAnswer("FAILED_PRECONDITION", Outcome.NOT_EXECUTED, "LEASE_EXPIRED"),
    ):
        assert not targets.answered(0, answer, 0.0)
    moves = []
    for reason in ("", "DRAINING", "STORE_UNAVAILABLE", "NOT_LEADER"):
        label = Outcome.NOT_EXECUTED if reason else None
        targets.answered(targets.current, AttemptAnswer("UNAVAILABLE", label, reason), len(moves))
        moves.append(targets.current)
    assert moves == [1, 2, 0, 1]


def test_many_failures_at_once_move_once() -> None:
    """Only an answer of the current target moves on (DESIGN §3; Targets, invariant 1)."""
    targets = Targets(["a:1", "b:1", "c:1"])
    assert [targets.answered(0, LOST, 0.0) for _ in range(16)] == [True] + [False] * 15
    assert targets.current == 1


def test_the_leader_that_is_named_is_followed_among_those_given() -> None:
    """NOT_LEADER goes to a target that was given, in whatever scheme (DESIGN §3)."""
    targets = Targets(["a:1", "b:1", "dns:///C:1"])
    targets.answered(0, leads("c:1"), 0.0)
    assert targets.current == 2


@pytest.mark.parametrize("leader", ["evil:1", "unix:/tmp/x", "dns:///evil:1", "", "a:1"])
def test_nobody_is_sent_to_where_the_user_did_not_name(leader: str) -> None:
    """An address that was not given is not followed by default (Targets, invariant 2)."""
    targets = Targets(["a:1", "b:1"])
    targets.answered(0, leads(leader), 0.0)
    assert targets.addresses == ["a:1", "b:1"]
    assert targets.current == 1


def test_with_leave_other_leaders_are_followed_up_to_a_bound() -> None:
    """Opted in, host:port is followed, other schemes are not, and at most 16 (DESIGN §9)."""
    targets = Targets(["a:1"], follow=True)
    for leader in ("unix:/tmp/x", "xds:///service", "b", "b:1/../c:1", "b:1 c:1"):
        assert not targets.answered(0, leads(leader), 0.0)
    targets.answered(0, leads("[::1]:50"), 1.0)
    assert targets.addresses[targets.current] == "[::1]:50"
    for number in range(100):
        targets.answered(targets.current, leads(f"host{number}:1"), 2.0 + 10 * number)
    assert len(targets.addresses) == 17


def test_stale_hints_do_not_keep_a_client_between_two() -> None:
    """A leader that has just failed is not gone back to: all targets get their turn (DESIGN §3)."""
    targets = Targets(["a:1", "b:1", "c:1"])
    targets.answered(0, leads("b:1"), 0.0)
    targets.answered(1, leads("a:1"), 0.1)
    assert targets.current == 2
    targets.answered(2, leads("a:1"), 5.0)
    assert targets.current == 0


def test_heartbeats_that_time_out_leave_a_server_that_hangs() -> None:
    """What no handler holds up is lost when it takes too long (DESIGN §5)."""
    targets = Targets(["a:1", "b:1"])
    late = AttemptAnswer("DEADLINE_EXCEEDED")
    assert not targets.answered(0, late, 0.0)
    assert targets.answered(0, late, 0.0, heartbeat=True)


def test_a_target_s_own_word_that_it_leads_is_followed() -> None:
    """Also where the one that calls go to has not failed yet, since it hangs (DESIGN §3, §7)."""
    targets = Targets(["a:1", "b:1", "c:1"])
    assert targets.leads(2)
    assert not targets.leads(2)
    assert targets.current == 2
    # What still comes back from the one that was left moves nobody.
    assert not targets.answered(0, LOST, 0.0)
    assert targets.current == 2


def test_hedges_go_elsewhere() -> None:
    """An attempt avoids its call's others, while there is anything else."""
    targets = Targets(["a:1", "b:1", "c:1"])
    assert targets.choose() == 0
    assert targets.choose({0}) == 1
    targets.answered(1, LOST, 0.0)
    assert targets.choose({0}) == 2
    assert targets.choose({0, 1, 2}) == 0


def test_targets_are_read_as_written() -> None:
    """Commas separate, gRPC's own lists stay whole, nonsense is refused."""
    assert split_targets("a:1, b:2") == ["a:1", "b:2"]
    assert split_targets("ipv4:1.2.3.4:1,1.2.3.5:1") == ["ipv4:1.2.3.4:1,1.2.3.5:1"]
    assert split_targets(("a:1", "b:2")) == ["a:1", "b:2"]
    nonsense: list[str | list[str]] = ["", "a:1,", []]
    for bad in nonsense:
        with pytest.raises(ValueError, match="target"):
            split_targets(bad)
    with pytest.raises(ValueError, match="twice"):
        Targets(["a:1", "dns:///a:1"])


def test_several_channels_are_as_ready_as_the_best() -> None:
    """READY if any is, TRANSIENT_FAILURE only if all are."""
    assert best_connectivity(["TRANSIENT_FAILURE", "READY"]) == "READY"
    assert best_connectivity(["TRANSIENT_FAILURE", "IDLE"]) == "IDLE"
    assert best_connectivity(["TRANSIENT_FAILURE"]) == "TRANSIENT_FAILURE"
