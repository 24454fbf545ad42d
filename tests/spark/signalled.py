"""The sink with points at which its driver is killed, by files that arm them.

The point ``planning`` is before the second micro-batch, ``writing`` inside it,
``committed`` between its commit and Spark's own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rifl.spark._sink import RiflDataSource, ServiceStreamWriter
from rifl.spark._tasks import this_micro_batch
from tests.helpers.waiting import until

__all__ = ["SIGNALS", "SignalledDataSource", "armed", "reached"]

# The directory: ``driver.pid`` names the victim, ``effects`` leads to the bank's file.
SIGNALS = "RIFL_TEST_SIGNALS"
_BATCH = 1
_WAIT_S = 120.0


def armed(point: str) -> bool:
    """Whether the driver is to be killed there."""
    return Path(os.environ[SIGNALS], point).exists()


def reached(point: str) -> None:
    """Kill the driver, once, and end this process."""
    directory = Path(os.environ[SIGNALS])
    (directory / point).unlink()  # once
    os.kill(int((directory / "driver.pid").read_text()), signal.SIGKILL)
    os._exit(1)


def _killed_midway(rows: Iterator[Any]) -> Iterator[Any]:
    """Kill the driver when a row of the task's first Arrow batch was booked."""
    effects = Path(os.environ[SIGNALS], "effects")
    for batch in rows:
        yield batch
        ours = set(batch.column("reference").to_pylist())
        until(
            lambda ours=ours: ours & set(effects.read_text().split("\n")),
            "an effect before the kill",
            _WAIT_S,
        )
        reached("writing")


class SignalledWriter(ServiceStreamWriter):
    """Reaches points within a micro-batch, and after its commit."""

    def write(self, iterator: Iterator[Any]) -> Any:
        """Send a task's rows, and be killed meanwhile if that was asked for."""
        if armed("writing") and this_micro_batch(self._options).batch == _BATCH:
            iterator = _killed_midway(iterator)
        return super().write(iterator)

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit, and be killed if that was asked for."""
        super().commit(messages, batchId)
        if armed("committed") and batchId == _BATCH:
            reached("committed")


class SignalledDataSource(RiflDataSource):
    """The format ``rifl-signalled``."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "rifl-signalled"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        """Plan, and be killed if that was asked for."""
        if not self._travelled and armed("planning"):
            commits = Path(self.options["checkpointlocation"], "commits")
            if (commits / str(_BATCH - 1)).exists():
                reached("planning")
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = SignalledWriter
        return writer
