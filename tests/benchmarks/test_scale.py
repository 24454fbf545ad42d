"""A server's cost for each idle client, measured small: the full size is ``make bench-scale``'s."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def measured(module: str, *arguments: str) -> Any:
    command = [sys.executable, "-m", f"benchmarks.scale.{module}", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_an_idle_client_costs_a_few_hundred_bytes() -> None:
    """Idle clients rest: their leases and what they could still ask for, nothing more."""
    found = measured("clients", "--clients", "60000")
    assert found["clients"] == found["unacknowledged"] == 60_000
    # With what the last burst of ten thousand took before it came to rest.
    assert found["bytes_a_client"] < 800


def test_keys_are_measured() -> None:
    """Filled in bulk, a store has what calls would have left, and its retentions end."""
    found = measured("keys", "--keys", "104000", "--more", "1500")
    assert found["ended_keys"] == 100_000
    assert found["opened_s"] > 0
