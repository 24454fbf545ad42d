"""The metadata of a group: what it keeps in its log engine beside the log."""

from __future__ import annotations

from curp._core.recovery import AcceptedLoss
from curp._core.witness_list import WitnessList
from curp._wire.metadata import accepted_loss_from_bytes, witness_list_from_bytes
from curp.log._commits import GroupLog

# The witness list, the replica that a transfer asked for, the loss that was accepted last.
LIST_KEY = "curp-witnesses"
TRANSFER_KEY = "curp-transfer"
LOSS_KEY = "curp-accepted-loss"
# Why the log is taken for an older copy, by the leader that found out.
BACK_KEY = "curp-went-back"


def read_witness_list(engine: GroupLog) -> WitnessList | None:
    """Return the newest witness list; None if the group never had one. Raises ``LogError``."""
    data = engine.metadata(LIST_KEY)
    return None if data is None else witness_list_from_bytes(data)


def read_asked_for(engine: GroupLog) -> str:
    """Return the replica that a transfer named, empty for none. Raises ``LogError``."""
    return (engine.metadata(TRANSFER_KEY) or b"").decode()


def read_accepted_loss(engine: GroupLog) -> AcceptedLoss | None:
    """Return what an operator accepted last; None if none ever did. Raises ``LogError``."""
    data = engine.metadata(LOSS_KEY)
    return None if data is None else accepted_loss_from_bytes(data)


def read_went_back(engine: GroupLog) -> str:
    """Return why a leader took the log for an older copy, empty if none. Raises ``LogError``.

    It is kept, since each leader that finds out has taken a number: sooner or later one
    is above what any witness served.
    """
    return (engine.metadata(BACK_KEY) or b"").decode()
