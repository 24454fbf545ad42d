"""The refusal of leases that a forked child inherits (DESIGN §5)."""

from __future__ import annotations

from _rifl_ground.forks import REMEDY
from _rifl_ground.refusals import ForkedProcess


def leases_forked() -> ForkedProcess:
    """Build what a forked child's use of its parent's leases raises."""
    return ForkedProcess(f"these leases belong to the parent process: {REMEDY}")
