"""Oracle: the state of a substream that the log has, from all its committed changes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from chaos.sim.consumer.database import Effect
from chaos.sim.log.series import Delivered
from sharedlog._core.consumer.state import unpacked

__all__ = ["LogState"]


class LogState:
    """What a table in memory is, once all changes are applied."""

    def __init__(self, changes: Iterable[Delivered]) -> None:
        self._table: dict[str, bytes] = {}
        for envelope, _ in changes:
            for key, value in zip(*unpacked(envelope, None, ""), strict=True):
                if value is None:
                    self._table.pop(key, None)
                else:
                    self._table[key] = value

    def effects(self) -> list[Effect]:
        """Return what handlers did, in their order."""
        keys = sorted(each for each in self._table if each.startswith("effect "))
        return [Effect(*self._value(each)) for each in keys]

    def ticks(self) -> int:
        """Return how often the timer was committed."""
        return int(self._value("ticks")) if "ticks" in self._table else 0

    def _value(self, key: str) -> Any:
        return json.loads(self._table[key])
