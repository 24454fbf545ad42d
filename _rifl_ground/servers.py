"""Servers that keep what is ours: what their addresses say, and what their settings weaken."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

# For connecting, each reply, and a free connection.
TIMEOUT_S = 5.0


class Durability(enum.Enum):
    """What to do about settings under which a server may forget what it acknowledged."""

    REQUIRE = "require"
    WARN = "warn"


class InvalidAddress(ValueError):
    """A URL names no server that we understand; the text does not quote it."""


class Weakness(NamedTuple):
    """A setting that is weaker than the guarantees need, and what it costs."""

    setting: str
    cost: str


def told(found: Sequence[Weakness]) -> str:
    """Return weaknesses in one line, empty if there are none."""
    return "; ".join(f"{setting}: {cost}" for setting, cost in found)
