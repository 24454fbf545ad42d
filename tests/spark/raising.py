"""A sink whose first commit happens, and is not answered; Spark's processes import this alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sharedlog.spark._format import LogDataSource
from sharedlog.spark._sink import LogStreamWriter

__all__ = ["RaisingDataSource"]


class _RaisingWriter(LogStreamWriter):
    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        super().commit(messages, batchId)
        if not self.mark.exists():
            self.mark.touch()
            raise RuntimeError("the answer was lost")

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        super().abort(messages, batchId)
        told = sum(each is not None for each in messages)
        self.mark.write_text(f"{batchId}: {told} of {len(messages)}")


class RaisingDataSource(LogDataSource):
    """The format ``sharedlog-raising``: commits, and fails the first time, with option ``mark``."""

    def __init__(self, options: Any) -> None:
        self._mark = Path(options.pop("mark"))
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "sharedlog-raising"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        """Plan a micro-batch."""
        writer = super().streamWriter(schema, overwrite)
        writer.__class__, writer.mark = _RaisingWriter, self._mark
        return writer
