"""A witness: holds the calls that a leader answered before they were logged (DESIGN §7).

``python -m curp.witness --listen HOST:PORT`` runs one.
"""

from curp.witness._client import WitnessClient
from curp.witness._handlers import WitnessDesk
from curp.witness._journal import CorruptJournal, JournalHeld, WitnessJournal
from curp.witness._service import SERVICE_NAME, add_witness_service

__all__ = [
    "SERVICE_NAME",
    "CorruptJournal",
    "JournalHeld",
    "WitnessClient",
    "WitnessDesk",
    "WitnessJournal",
    "add_witness_service",
]
