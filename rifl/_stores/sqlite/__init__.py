"""``sqlite:///file``: the embedded default; durable, with group commit."""

from rifl._stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
