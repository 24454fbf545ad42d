"""The log in a SQLite file: several processes on one machine, no server (DESIGN §7).

- ``engine``: the log, in the ``rows`` of a file (``sharedlog._engines.sqlite``) with its
  ``schema``; ``counting``: how a lost end is noticed.
- ``watch``: who hears of new entries.
- ``snapshots``; ``accept_loss``: an operator's word.
"""

from __future__ import annotations

from curp.log._sqlite.engine import SqliteEngine

__all__ = ["SqliteEngine"]
