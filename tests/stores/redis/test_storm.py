"""The client SDK over replicas that are suspended, killed and replaced (DESIGN §1, §5, §6)."""

from __future__ import annotations

import random
import signal

import pytest

import rifl
from tests.helpers.ports import free_port
from tests.helpers.storm import judge, storm
from tests.stores.redis import test_processes as shared

__all__ = ["CASES", "disturbed"]

# Seed, kind of server, rounds of trouble.
CASES = [
    (1, "sync", 6),
    *(
        pytest.param(seed, kind, 60, marks=[pytest.mark.long, pytest.mark.timeout(600)])
        for seed in (2, 3)
        for kind in ("sync", "aio")
    ),
]


def disturbed(url, effects, seed, kind, rounds, name):
    """Run a storm over three replicas, and return what the callers were told.

    In every round one is suspended for longer or shorter than its calls are left to it;
    in every fourth one is killed instead, and another takes its place and port.
    """
    dice = random.Random(seed)
    ports = [free_port() for _ in range(3)]
    processes = [shared.Process(url, effects, kind, port=port) for port in ports]
    for process in processes:
        process.connect()

    def disturb(hurry):
        for round_ in range(1, rounds + 1):
            at = dice.randrange(3)
            if round_ % 4 == 0:
                processes[at].close()
                hurry.wait(dice.uniform(0.0, 1.0))
                processes[at] = shared.Process(url, effects, kind, port=ports[at])
                processes[at].connect()
            else:
                processes[at].signal(signal.SIGSTOP)
                hurry.wait(dice.uniform(0.1, 1.2))
                processes[at].signal(signal.SIGCONT)
            hurry.wait(dice.uniform(0.05, 0.3))

    try:
        with rifl.connect([process.address for process in processes]) as channel:
            return storm([channel], "/s/Atomic", name, disturb)
    finally:
        for process in processes:
            process.close()


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "kind", "rounds"), CASES)
def test_a_storm_over_three_replicas(shared_server, seed, kind, rounds):
    """Answered calls have one effect, those of unknown outcome one at most; few of them (§1)."""
    url = shared_server.url(namespace=f"storm{seed}{kind}", beat_s=0.05, dead_after_s=0.6)
    results = disturbed(url, shared_server.url(), seed, kind, rounds, f"storm-{seed}-{kind}")
    with shared_server.client() as client:
        counts = {request: int(client.get(b"effects:" + request) or 0) for request, _ in results}
    judge(results, counts, rounds)
