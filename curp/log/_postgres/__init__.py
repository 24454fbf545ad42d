"""The log in PostgreSQL: replicas on several machines (DESIGN §7).

- ``engine``: the log, by functions of the ``schema`` (``sql/``) and ``statements`` that read.
  They are sent, and new entries heard of, by ``sharedlog._engines.postgres``.
- ``snapshots``; ``accept_loss``: an operator's word.
"""

from __future__ import annotations

from curp.log._postgres.engine import PostgresEngine

__all__ = ["PostgresEngine"]
