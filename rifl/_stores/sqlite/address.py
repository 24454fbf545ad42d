"""SQLite URLs: ``sqlite:///file``, and the one parameter they take."""

from __future__ import annotations

from pathlib import Path

from _rifl_ground.sqlite.address import keyed_file_of
from rifl._stores.errors import UnsupportedStore


def path_of(url: str) -> Path:
    """Return the file that ``sqlite:///file`` names (four slashes: from the root).

    Raises ``UnsupportedStore`` for anything else, and for a parameter that is none.
    """
    return _parts(url)[0]


def enforces_keys(url: str) -> bool:
    """Whether transactions that handlers share enforce foreign keys: ``?foreign_keys=on``."""
    return _parts(url)[1]


def _parts(url: str) -> tuple[Path, bool]:
    try:
        return keyed_file_of(url)
    except ValueError as error:
        raise UnsupportedStore(str(error)) from None
