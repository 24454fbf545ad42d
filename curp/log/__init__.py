"""Log engines: existing stores whose one primitive of ours is the conditional append.

What all engines have alike:

- ``_engine``: the interface; ``_errors``: what it raises
- ``_checks``: bounds, and what a write is conditional on
- ``_entries``: entries and chunks as stores keep them, and how damage and gaps are noticed
- ``_owner``: as whose errors a server's failures are told, where ``sharedlog._engines`` asks it
- ``_lease_clocks``: leases by the clocks of ``sharedlog._engines.terms``

The engines:

- ``_commits``: over any engine of the shared log: format 2, of which new logs are
- ``_memory``: nowhere; for tests and the simulator
- ``_sqlite``, ``_redis``, ``_postgres``, ``_etcd``: format 1, of logs that earlier releases made.
  Each has ``engine``, ``snapshots`` and what it needs of its store, and all but Redis
  ``accept_loss``, for a log that stopped since it lost something

Around a log:

- ``_opening``: engines by URL (``_addresses``), of the ``_newest`` format or an ``_older`` one
- ``_creation``: a new group's log, and its id
- ``_states``: what a log that was moved, or half copied, says of itself
- ``_copying``: a log moved to another engine; ``_verification``: a log read whole
- ``_commands``: ``python -m curp.log``; ``_ending``: a signal lets go of what one of them holds
"""

from __future__ import annotations

from curp.log._creation import create_log
from curp.log._opening import open_engine

__all__ = ["create_log", "open_engine"]
