"""The refusal of leases that a forked child inherits (DESIGN §5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _rifl_ground.forks import REMEDY

if TYPE_CHECKING:
    from lease_server._errors import ForkedProcess


def leases_forked() -> ForkedProcess:
    """Build what a forked child's use of its parent's leases raises."""
    # It has its code of gRPC's, which whoever uses leases has imported.
    from lease_server._errors import ForkedProcess

    return ForkedProcess(f"these leases belong to the parent process: {REMEDY}")
