"""Engines that scenarios of groups run over, for the fixture ``log`` (DESIGN §7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

__all__ = ["over"]

_ENGINES = ("sqlite", "redis", "postgres", "etcd")


def over(*engines: str) -> Sequence[Any]:
    """Return all engines as parameters: those named, and the others for ``make test-long``."""
    return [
        pytest.param(engine, marks=() if engine in engines else pytest.mark.long)
        for engine in _ENGINES
    ]
