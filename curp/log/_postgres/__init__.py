"""The log in PostgreSQL: replicas on several machines (DESIGN §7)."""

from __future__ import annotations

from curp.log._postgres.engine import PostgresEngine

__all__ = ["PostgresEngine"]
