"""A bank whose payments wait for files to be there, where they are followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from examples.bank.v1 import bank_pb2
from examples.replicated_bank.bank import MemoryBank
from tests.helpers.waiting import until

__all__ = ["GatedBank", "reached"]

_DEADLINE_S = 120.0


def reached(gate: Path) -> Path:
    """Return the file that is there when a payment waits for a gate."""
    return gate.with_suffix(".reached")


class GatedBank(MemoryBank):
    """Pays when the file is there that a payment refers to."""

    def Deposit(self, request: Any, context: Any) -> bank_pb2.Receipt:  # noqa: N802 - the proto's
        gate = Path(request.reference)
        if gate.is_absolute():
            reached(gate).touch()
            until(gate.exists, f"{gate} is there", _DEADLINE_S)
        return super().Deposit(request, context)
