"""The log in a SQLite file: several processes on one machine, no server (DESIGN §7).

- ``engine``: the log, in the ``rows`` of a ``file`` with its ``schema``.
- ``watch``: who hears of new entries; ``commit_note``: how a lost end is noticed.
- ``snapshots``; ``accept_loss``: an operator's word.
"""

from __future__ import annotations

from curp.log._sqlite.engine import SqliteEngine

__all__ = ["SqliteEngine"]
