"""A witness: holds the calls that a leader answered before they were logged (DESIGN §7).

``python -m curp.witness --listen HOST:PORT`` runs one. When it may accept says
``curp._core.witness_table``.

- ``_service``: the gRPC service; ``_record_streams``: records that share messages.
- ``_handlers``: who asks, and for which conflict keys; then the table decides. ``_refusal``: how
  it refuses without that.
- ``_journal``: what it knows after a restart.
- ``_client``: what replicas ask a witness, from their side.
"""

from curp.witness._client import WitnessClient
from curp.witness._handlers import WitnessHandlers
from curp.witness._journal import CorruptJournal, JournalHeld, WitnessJournal
from curp.witness._service import SERVICE_NAME, add_witness_service

__all__ = [
    "SERVICE_NAME",
    "CorruptJournal",
    "JournalHeld",
    "WitnessClient",
    "WitnessHandlers",
    "WitnessJournal",
    "add_witness_service",
]
