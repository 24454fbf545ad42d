"""The sink with points at which its driver can be killed, by files that arm them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from rifl.spark.sink import RiflDataSource, StreamWriter

__all__ = ["SIGNALS", "SignalledDataSource"]

# The directory: ``driver.pid`` names the victim, a file of a point's name arms it.
SIGNALS = "RIFL_TEST_SIGNALS"


def _reached(point: str) -> None:
    directory = Path(os.environ[SIGNALS])
    armed = directory / point
    if armed.exists():
        armed.unlink()  # once
        os.kill(int((directory / "driver.pid").read_text()), signal.SIGKILL)
        os._exit(1)


class SignalledWriter(StreamWriter):
    """Reaches a point after the sink's commit, before Spark notes its own."""

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit, and be killed if that was asked for."""
        super().commit(messages, batchId)
        _reached("committed")


class SignalledDataSource(RiflDataSource):
    """The format ``rifl-signalled``."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "rifl-signalled"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        """Plan, and be killed if that was asked for."""
        if not self._travelled:
            _reached("planning")
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = SignalledWriter
        return writer
