"""The functions by which a log in PostgreSQL knows the server that it is written on."""

from __future__ import annotations

from importlib.resources import files

HISTORY = files("sharedlog._engines.postgres") / "sql" / "history.sql"
