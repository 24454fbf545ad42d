"""Where logs of tests live: one name for each engine, and a URL of a log that is not there yet."""

from __future__ import annotations

import secrets
from pathlib import Path

ENGINES = ("memory", "sqlite")
# Those that another process can open.
SHARED = ("sqlite",)


def url_of(engine: str, directory: Path) -> str:
    """A URL of this engine, of a log that nobody has created."""
    if engine == "memory":
        return f"memory:{secrets.token_hex(8)}"
    return f"sqlite:///{directory / 'log.db'}"
