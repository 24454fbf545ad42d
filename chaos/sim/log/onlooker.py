"""Oracle: an onlooker of a log, who sees every row there ever was, and who did what when.

It knows the true time, and holds the processes against what they may do only then: what is
trimmed is old, who is retired was silent, who acts for others has the duty.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from chaos.sim.faults import Point
from chaos.sim.loop import EPOCH_S, Process
from sharedlog._core.commit import Commit
from sharedlog._core.entry import Row
from sharedlog._core.steps import Step
from sharedlog._engines.memory import MemoryLog

__all__ = ["RETENTION_S", "SILENT_S", "Asked", "Onlooker"]

# After which messages may be trimmed, and a producer counts as silent.
RETENTION_S = 2.0
SILENT_S = 3.0


class Asked(NamedTuple):
    """A step on its way: who asks for it, for what, since when."""

    process: Process
    step: Step
    point: Point
    at: float


@dataclass
class Onlooker:
    """Sees each commit that happens."""

    # All rows, and when each was asked for.
    rows: list[Row] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    # The tail at which a fence got a number, and a producer ended.
    raised: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    retired: dict[int, int] = field(default_factory=dict)
    # From which LSN on commits are whole.
    whole: int = 1
    # Who had a duty under a number, and since when a producer's seq is what it is.
    holders: dict[tuple[str, int], bytes] = field(default_factory=dict)
    changed: dict[int, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def copy(self) -> Onlooker:
        """Return what was seen until now."""
        return Onlooker(
            list(self.rows),
            list(self.asked),
            {name: list(numbers) for name, numbers in self.raised.items()},
            dict(self.retired),
            self.whole,
            dict(self.holders),
            dict(self.changed),
        )

    def look(self, asked: Asked, commit: Commit, log: MemoryLog, before: int, now: float) -> None:
        """See what a commit did; ``before``: the tail until then."""
        added = log.tail - before
        if added:
            self.rows += log.rows[-added:]
            self.asked += [asked.at] * added
        for put in commit.puts:
            kind, _, name = put.key.partition("/")
            if put.value is None:
                continue
            if kind == "fence":
                number = int.from_bytes(put.value, "big")
                numbers = self.raised.setdefault(name, [])
                if not numbers or numbers[-1][0] != number:
                    numbers.append((number, log.tail))
            elif kind == "producer" and name.endswith("/seq"):
                self.changed[int(name.partition("/")[0])] = now
            elif kind == "producer" and name.endswith("/retired"):
                producer = int(name.partition("/")[0])
                self.retired.setdefault(producer, log.tail)
                if asked.process.name.startswith("sweeper "):
                    self._acts("*sweeper", asked.process)
                    self._see_silent(producer, asked.process, now)
            elif kind == "duty":
                self._see_holder(f"*{name}", put.value[:8])
            elif put.key == "trimmed":
                self._acts("*trimmer", asked.process)
                self._see_trim(struct.unpack(">QQQ", put.value)[0], asked.process, log, now)

    def _acts(self, duty: str, process: Process) -> None:
        """Check that a process that acts was the last to take the duty."""
        number = self.raised.get(duty, [(0, 0)])[-1][0]
        if self.holders.get((duty, number)) != who_of(process.name):
            self.problems.append(f"duty: {process.name} acts for {duty}, and is not the one")

    def _see_holder(self, duty: str, who: bytes) -> None:
        number = self.raised[duty][-1][0]
        if self.holders.setdefault((duty, number), who) != who:
            self.problems.append(f"duty: two have {duty} under the number {number}")

    def _see_silent(self, producer: int, process: Process, now: float) -> None:
        silent = now - self.changed.get(producer, 0.0)
        if silent < SILENT_S:
            self.problems.append(
                f"silent: {process.name} retires {producer}, which appended {silent:.3f} s ago"
            )

    def _see_trim(self, whole: int, process: Process, log: MemoryLog, now: float) -> None:
        """What is declared gone is old, but where a writer's clock and the trimmer's are wrong."""
        first, self.whole = self.whole, max(whole, self.whole)
        ahead = process.wall_offset_s > 0
        if ahead and log.at_us > (EPOCH_S + now) * 1e6:
            return
        for lsn in range(first, self.whole):
            asked = self.asked[lsn - 1]
            behind = self.rows[lsn - 1].at_us < int((EPOCH_S + asked) * 1e6)
            if not behind and now - asked < RETENTION_S:
                self.problems.append(
                    f"young: {process.name} trims LSN {lsn} after {now - asked:.3f} s"
                )
                return


def who_of(name: str) -> bytes:
    """Return the 8 bytes that tell a process's life, by its name."""
    return name.encode()[-8:].rjust(8)
