"""A task whose first attempt becomes a zombie: Spark gives it up, and it goes on sending.

One partition's first attempt takes all of its rows, sends some, and waits until the
test lets it send the rest: by then its copy on another host is done, and the write is
committed. Files of a directory named by ``RIFL_TEST_SIGNALS`` tell how far it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from rifl.spark._sink import RiflDataSource, ServiceBatchWriter, ServiceStreamWriter
from tests.helpers.waiting import until
from tests.spark.signalled import SIGNALS

__all__ = ["LateDataSource", "late"]

_LATE_PARTITION = 1
_WAIT_S = 300.0


def late(rows: Iterable[Any], name: str, effects: Path) -> Iterator[Any]:
    """Pass a task's rows on: as the zombie half of them late, as its copy not too early.

    The zombie first waits until an effect of this write is there, and tells by the
    file ``NAME.half``; ``NAME.go`` lets it go on.
    """
    context = TaskContext.get()
    assert context is not None
    signals = Path(os.environ[SIGNALS])
    half, go = signals / f"{name}.half", signals / f"{name}.go"
    if context.partitionId() != _LATE_PARTITION:
        yield from rows
    elif context.attemptNumber() > 0:
        # Two attempts at once: this one only starts when the other has effects.
        until(half.exists, f"{half}", _WAIT_S)
        yield from rows
    elif half.exists():
        # A later micro-batch of the same query.
        yield from rows
    else:
        # All of them now: Spark will take its end of the pipe away.
        taken = list(rows)
        middle = len(taken) // 2
        before = effects.stat().st_size
        yield from taken[:middle]
        until(lambda: effects.stat().st_size > before, "an effect of the zombie's", _WAIT_S)
        half.write_text(str(middle))
        until(go.exists, f"{go}", _WAIT_S)
        yield from taken[middle:]


def told(name: str, what: str) -> None:
    """Note how the zombie ended, if this is it."""
    context = TaskContext.get()
    assert context is not None
    signals = Path(os.environ[SIGNALS])
    first = context.partitionId() == _LATE_PARTITION and context.attemptNumber() == 0
    if first and (signals / f"{name}.go").exists() and not (signals / f"{name}.end").exists():
        pending = signals / f"{name}.pending"
        pending.write_text(what)
        pending.rename(signals / f"{name}.end")


def _sent(write: Any, rows: Iterable[Any], name: str, effects: str) -> Any:
    try:
        message = write(late(rows, name, Path(effects)))
    except Exception as error:
        told(name, str(error))
        raise
    told(name, f"replayed={message.result.counts.replayed}")
    return message


class _LateBatchWriter(ServiceBatchWriter):
    def write(self, iterator: Iterator[Any]) -> Any:
        return _sent(super().write, iterator, *self.trap)  # type: ignore[attr-defined]


class _LateStreamWriter(ServiceStreamWriter):
    def write(self, iterator: Iterator[Any]) -> Any:
        return _sent(super().write, iterator, *self.trap)


class LateDataSource(RiflDataSource):
    """The format ``rifl-late``, with the options ``name`` and ``effects`` beside rifl's."""

    def __init__(self, options: Any) -> None:
        self._trap = (options.pop("name"), options.pop("effects"))
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "rifl-late"

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """Plan a batch write."""
        writer: Any = super().writer(schema, overwrite)
        writer.__class__, writer.trap = _LateBatchWriter, self._trap
        return writer

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        """Plan a micro-batch."""
        writer = super().streamWriter(schema, overwrite)
        writer.__class__, writer.trap = _LateStreamWriter, self._trap
        return writer
