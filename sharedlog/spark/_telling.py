"""Events of planners in the driver's log: scans and writes.

A Python source adds no text to what Spark explains.
"""

from __future__ import annotations

from _rifl_ground.log import get_logger
from rifl.spark._driver_log import first_here, heard
from sharedlog._core.names import owner_of
from sharedlog.spark._offsets import Offset
from sharedlog.spark._options import SinkOptions, SourceOptions

_log = get_logger("sharedlog.spark")


def tell_scan(options: SourceOptions, log: str, start: Offset, end: Offset, tasks: int) -> None:
    """Say what a batch query reads, or a run of a streaming one with its first micro-batch."""
    heard("sharedlog.spark")
    _log.info(
        "scan_planned",
        log=log,
        stream=options.stream,
        name=None if options.hold is None else owner_of(options.hold)[1],
        after=start.begun or start.lsn,
        through=end.lsn,
        limit=options.limit or None,
        values=options.values.format,
        tasks=tasks,
    )


def tell_write(options: SinkOptions, log: str, *, stream: bool, compared: bool) -> None:
    """Say what a write does; of a stream once in each process that plans its micro-batches.

    ``compared``: its rows are, if it is run again.
    """
    if stream and not first_here(options):
        return
    heard("sharedlog.spark")
    _log.info(
        "write_planned",
        log=log,
        stream=options.stream,
        name=options.name,
        values=options.values.format,
        key=options.key,
        adopt=options.adopt,
        compared=compared,
    )
