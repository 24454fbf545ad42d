"""The costs of steps in the shared stores (benchmarks.steps)."""

from __future__ import annotations

from benchmarks.steps import measure


def test_every_step_is_charged_here_and_in_the_server():
    """Each step of a call is measured as often as calls were made, after the warm-up."""
    found = measure(10, 0.0)
    assert {name: set(costs) for name, costs in found.items()} == {
        "Redis": {"SET NX", "SET", "empty script", "claim", "finish"},
        "PostgreSQL": {
            *("empty statement", "commit", "claim", "lock, insert and commit"),
            *("record of a first attempt and commit", "record of a claimed call and commit"),
        },
        "MariaDB": {"commit", "claim", "finish", "begin", "record and commit"},
        "PostgreSQL, generic": {"claim", "finish"},
    }
    for costs in found.values():
        for some in costs.values():
            assert len(some) == 8
            # What is spent is counted in steps of the scheduler's clock.
            assert all(took > 0 and here >= 0 and server >= 0 for took, here, server in some)
        assert sum(server for _, _, server in costs["claim"]) > 0
