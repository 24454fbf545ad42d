"""What became of a write's rows, counted per task and summed by the driver. Pure."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

# Bounds of neighbouring buckets differ by a twentieth: p99 is that exact.
_BASE = 1.05
_LEAST_S = 1e-5


@dataclass(slots=True)
class Latencies:
    """How long rows took from being sent until they were answered, in seconds.

    In buckets of 5 % width, so that those of tasks can be summed.
    """

    buckets: Counter[int] = field(default_factory=Counter)

    def add(self, seconds: float, rows: int = 1) -> None:
        """Note that so many rows took so long."""
        at = math.ceil(math.log(max(seconds, _LEAST_S) / _LEAST_S, _BASE))
        self.buckets[at] += rows

    def quantile(self, share: float) -> float | None:
        """Return a time that at least this share of the rows did not exceed."""
        total = self.buckets.total()
        if not total:
            return None
        passed = 0
        for at in sorted(self.buckets):
            passed += self.buckets[at]
            if passed >= share * total:
                break
        return float(_LEAST_S * _BASE**at)


@dataclass(slots=True, kw_only=True)
class Counts:
    """One task's, or one write's, rows.

    ``rows`` came from Spark; ``sent`` of them reached the wire at least once and
    were answered; ``executed`` had their effect through this very task;
    ``replayed`` had it before (an earlier attempt, a twin with the same key and
    content) and got the first answer; ``failed`` for good, of which
    ``dead_lettered`` were put aside and the rest failed the task. ``retries``
    counts rows sent once more. Attempts that Spark threw away are not in a
    write's counts: what they did shows as ``replayed``.

    Invariant: ``sent == executed + replayed + (failed - unsent)``; each row is
    counted once.
    """

    rows: int = 0
    sent: int = 0
    executed: int = 0
    replayed: int = 0
    failed: int = 0
    dead_lettered: int = 0
    retries: int = 0
    latencies: Latencies = field(default_factory=Latencies)

    @classmethod
    def total(cls, parts: Iterable[Counts]) -> Counts:
        """Sum what tasks counted."""
        whole = cls()
        for part in parts:
            whole.rows += part.rows
            whole.sent += part.sent
            whole.executed += part.executed
            whole.replayed += part.replayed
            whole.failed += part.failed
            whole.dead_lettered += part.dead_lettered
            whole.retries += part.retries
            whole.latencies.buckets.update(part.latencies.buckets)
        return whole

    def to_json(self) -> str:
        """Return all of it as text; ``from_json`` reads it."""
        told = {each.name: getattr(self, each.name) for each in fields(self)}
        return json.dumps({**told, "latencies": self.latencies.buckets})

    @classmethod
    def from_json(cls, text: str) -> Counts:
        """Read what ``to_json`` gave."""
        told = json.loads(text)
        buckets = {int(at): count for at, count in told.pop("latencies").items()}
        return cls(**told, latencies=Latencies(Counter(buckets)))

    def summary(self) -> dict[str, Any]:
        """Return the numbers by name; times in seconds, None where nothing was sent."""
        return {
            "rows": self.rows,
            "sent": self.sent,
            "executed": self.executed,
            "replayed": self.replayed,
            "failed": self.failed,
            "dead_lettered": self.dead_lettered,
            "retries": self.retries,
            "p50_s": self.latencies.quantile(0.5),
            "p99_s": self.latencies.quantile(0.99),
        }
