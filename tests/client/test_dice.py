"""A client's random draws: stamps' seeds, and pauses (DESIGN §3)."""

from __future__ import annotations

import random
import subprocess
import sys

from rifl._client.state import ClientState

_FORKS = """
import os
from rifl._client.state import ClientState
child = os.fork()
if child:
    os.waitpid(child, 0)
print(ClientState.stamp()[1], flush=True)
"""


def test_an_application_that_seeds_random_has_other_seeds_in_its_stamps() -> None:
    """Two processes that do the same are told apart by a restored store (DESIGN §3)."""
    before = random.getstate()
    try:
        drawn = []
        for _ in range(2):
            random.seed(1)
            seeded = random.getstate()
            drawn += [ClientState.stamp()[1], ClientState.jitter()]
            assert random.getstate() == seeded
        assert len(set(drawn)) == 4
    finally:
        random.setstate(before)


def test_a_forked_child_draws_what_its_parent_does_not() -> None:
    """A channel that it opens sends seeds of its own (DESIGN §3)."""
    # In a process of its own: other tests' threads of gRPC must not be there at the fork.
    drawn = subprocess.run([sys.executable, "-c", _FORKS], check=True, capture_output=True).stdout
    first, second = drawn.split()
    assert first != second
