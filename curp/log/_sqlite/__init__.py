"""The log in a SQLite file: several processes on one machine, no server (DESIGN §7)."""

from __future__ import annotations

from curp.log._sqlite.engine import SqliteEngine

__all__ = ["SqliteEngine"]
