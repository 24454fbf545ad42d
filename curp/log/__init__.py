"""Groups' logs: a conditional append, metadata and leadership, over existing stores.

A log:

- ``_commits``: ``GroupLog``, over the engines of ``sharedlog._engines``
- ``_values``: what its methods take and return; ``_errors``: the errors that they raise
- ``_checks``: bounds, and the conditions of a write
- ``_owner``: the owner as whom ``sharedlog._engines`` tells failures of a group's store

Around a log:

- ``_opening``: engines by URL (``_addresses``), and the acceptance of a loss
- ``_creation``: a new group's log, and its id
- ``_states``: what a log that was moved, or half copied, says of itself
- ``_copying``: a log moved to another engine; ``_verification``: a log read whole
- ``_commands``: ``python -m curp.log``, and the signals that end it in order
"""

from __future__ import annotations

from curp.log._creation import create_log
from curp.log._opening import open_engine

__all__ = ["create_log", "open_engine"]
