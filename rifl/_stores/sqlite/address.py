"""SQLite URLs: ``sqlite:///file``, and the one parameter they take."""

from __future__ import annotations

from pathlib import Path

from rifl._stores.errors import UnsupportedStore

_PREFIX = "sqlite:///"
_KEYS = {"": False, "foreign_keys=off": False, "foreign_keys=on": True}


def path_of(url: str) -> Path:
    """Return the file that ``sqlite:///file`` names (four slashes: from the root).

    Raises ``UnsupportedStore`` for anything else: a parameter that is none, or a database
    in memory, which one connection sees, where the store has several.
    """
    return Path(_parts(url)[0])


def enforces_keys(url: str) -> bool:
    """Whether transactions that handlers share enforce foreign keys: ``?foreign_keys=on``."""
    return _parts(url)[1]


def _parts(url: str) -> tuple[str, bool]:
    name, _, query = url.removeprefix(_PREFIX).partition("?")
    if not url.startswith(_PREFIX) or not name:
        raise UnsupportedStore(f"{url!r} is not sqlite:///file")
    if name.startswith(":memory:"):
        raise UnsupportedStore("a store in memory is memory:, not sqlite:///:memory:")
    if query not in _KEYS:
        raise UnsupportedStore(f"a SQLite store's URL has no parameter but foreign_keys: {query!r}")
    return name, _KEYS[query]
