"""SQLite's URLs: ``sqlite:///file`` (four slashes: from the root)."""

from __future__ import annotations

from pathlib import Path

from _rifl_ground.system import refusal

PREFIX = "sqlite:///"
_KEYS = {"": False, "foreign_keys=off": False, "foreign_keys=on": True}


def file_of(url: str) -> tuple[Path, str]:
    """Return the file that a URL names, and what follows its ``?``; names are as they are written.

    Raises ``ValueError`` for anything else: a database in memory, which one connection sees: each
    store needs several; and on Windows.
    """
    name, _, query = url.removeprefix(PREFIX).partition("?")
    if not url.startswith(PREFIX) or not name:
        raise ValueError(f"{url!r} is not sqlite:///FILE (four slashes: from the root)")
    if refused := refusal("what is kept in SQLite"):
        raise ValueError(refused)
    if name.startswith(":memory:"):
        raise ValueError("what is kept in memory is memory:, not sqlite:///:memory:")
    return Path(name), query


def lone_file_of(url: str) -> Path:
    """The same of a URL that takes no parameter."""
    file, query = file_of(url)
    if query:
        raise ValueError(f"{url!r} is not sqlite:///FILE, without parameters")
    return file


def keyed_file_of(url: str) -> tuple[Path, bool]:
    """The same of a URL that takes ``?foreign_keys=on``: whether foreign keys are enforced."""
    file, query = file_of(url)
    if query not in _KEYS:
        raise ValueError(f"{url!r}: a SQLite store's URL has no parameter but foreign_keys=on")
    return file, _KEYS[query]
