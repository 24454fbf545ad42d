"""What a group keeps in its log engine beside the log."""

from __future__ import annotations

from curp.core.recovery import WitnessList
from curp.log.engine import LogEngine
from curp.wire import witness_list_from_bytes

__all__ = ["LIST_KEY", "TRANSFER_KEY", "read_asked_for", "read_witness_list"]

# The witness list, and the replica that a transfer asked for.
LIST_KEY = "curp-witnesses"
TRANSFER_KEY = "curp-transfer"


def read_witness_list(engine: LogEngine) -> WitnessList | None:
    """Return the newest witness list; None if the group never had one. Raises ``LogError``."""
    data = engine.metadata(LIST_KEY)
    return None if data is None else witness_list_from_bytes(data)


def read_asked_for(engine: LogEngine) -> str:
    """Return whom a transfer named, empty for nobody. Raises ``LogError``."""
    return (engine.metadata(TRANSFER_KEY) or b"").decode()
