"""The commands about messages: publish, read, tail, export."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from _rifl_ground.exits import CommandRefused, ExitCode
from sharedlog._cli.shown import coloured, print_message, print_value, progress
from sharedlog._core.following import From, append_at
from sharedlog._core.message import Message
from sharedlog._core.steps import Ends, Lsns, Rule
from sharedlog._core.whole import read_trimmed
from sharedlog._engines.elsewhere import Elsewhere
from sharedlog._log.following import Following
from sharedlog._log.log import Log

_EXPORT_ROWS = 10_000
# Rows that are looked into for the last messages, at first.
_LOOKED_AT = 256


def publish(log: Log, arguments: argparse.Namespace) -> int:
    """One message from the arguments, or one of each line of standard input."""
    headers = dict(arguments.header) or None
    if arguments.value is not None:
        position = log.publish(arguments.stream, arguments.value, arguments.key, headers)
        print_value(arguments.json, {"position": str(position)})
        return ExitCode.DONE
    count = 0
    try:
        for line in sys.stdin:
            log.publish(arguments.stream, line.rstrip("\n"), arguments.key, headers)
            count += 1
    except UnicodeDecodeError as error:
        raise CommandRefused(
            f"standard input is not UTF-8; {count} lines before that are published", ExitCode.USAGE
        ) from error
    print_value(arguments.json, {"published": count})
    return ExitCode.DONE


def read(log: Log, arguments: argparse.Namespace) -> int:
    """What is there behind a place."""
    with _following(log, arguments, arguments.after) as following:
        left = arguments.limit
        while left > 0 and (found := following.poll()):
            for message in found[:left]:
                _print(message, arguments)
            left -= len(found)
    return ExitCode.DONE


def tail(log: Log, arguments: argparse.Namespace) -> int:
    """The last messages, and with ``--follow`` what comes behind them."""
    first, last = _ends(log)
    back = max(_LOOKED_AT, 2 * arguments.lines)
    while True:
        start = max(first, last + 1 - back)
        place = From(_append_at(log, start)) if arguments.lines else "end"
        with _following(log, arguments, place) as following:
            found: list[Message] = []
            while arguments.lines and (batch := following.poll()):
                found = (found + batch)[-arguments.lines :]
            if len(found) < arguments.lines and start > first:
                back *= 8
                continue
            for message in found:
                _print(message, arguments)
            sys.stdout.flush()
            if arguments.follow:
                # Until a signal says that it is enough.
                with suppress(KeyboardInterrupt):
                    for message in following:
                        _print(message, arguments)
                        sys.stdout.flush()
        return ExitCode.DONE


def export(log: Log, arguments: argparse.Namespace) -> int:
    """All committed messages of a stream, as a file of rows that appears when it is whole."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise CommandRefused(
            "Parquet needs the extra: pip install 'rifl-grpc[export]'", ExitCode.MISSING_EXTRA
        ) from error
    schema = pyarrow.schema(
        [
            ("position", pyarrow.string()),
            ("lsn", pyarrow.int64()),
            ("ordinal", pyarrow.int64()),
            ("substream", pyarrow.int32()),
            ("key", pyarrow.binary()),
            ("value", pyarrow.binary()),
            ("headers", pyarrow.map_(pyarrow.string(), pyarrow.binary())),
            ("content_type", pyarrow.string()),
            ("schema_name", pyarrow.string()),
            ("causation_id", pyarrow.string()),
            ("trace_parent", pyarrow.string()),
            ("trace_state", pyarrow.string()),
            ("method", pyarrow.string()),
            ("event_time", pyarrow.timestamp("us", "UTC")),
            ("append_time", pyarrow.timestamp("us", "UTC")),
            ("sealed", pyarrow.bool_()),
        ]
    )
    out: Path = arguments.out
    part = out.with_name(out.name + ".part")
    try:
        with pyarrow.parquet.ParquetWriter(part, schema) as writer:
            count = _write(
                log,
                arguments,
                lambda rows: writer.write_table(pyarrow.Table.from_pylist(rows, schema)),
            )
        os.replace(part, out)
    finally:
        part.unlink(missing_ok=True)
    print_value(arguments.json, {"messages_exported": count})
    return ExitCode.DONE


def _write(
    log: Log, arguments: argparse.Namespace, write: Callable[[list[dict[str, Any]]], None]
) -> int:
    """Write rows through where the log ended when it began; return how many."""
    _, last = _ends(log)
    rows: list[dict[str, Any]] = []
    count = 0
    with (
        progress(f"export {arguments.stream}", last) as told,
        log.follow(arguments.stream, arguments.substream or None, arguments.after) as following,
    ):
        while found := following.poll():
            rows += [_row(each) for each in found if each.position.lsn <= last]
            told(found[-1].position.lsn)
            if len(rows) >= _EXPORT_ROWS:
                write(rows)
                count += len(rows)
                rows = []
            if found[-1].position.lsn > last:
                break
    write(rows)
    return count + len(rows)


def _row(message: Message) -> dict[str, Any]:
    place = {
        "position": str(message.position),
        "lsn": message.position.lsn,
        "ordinal": message.position.ordinal,
        "substream": message.substream,
        "append_time": message.append_time,
        "sealed": message.sealed,
    }
    if message.sealed:
        return place
    return place | {
        "key": message.key,
        "value": message.value,
        "headers": list(message.headers.items()),
        "content_type": message.content_type,
        "schema_name": message.schema_name,
        "causation_id": message.causation_id,
        "trace_parent": message.trace_parent,
        "trace_state": message.trace_state,
        "method": message.method,
        "event_time": message.event_time,
    }


def _following(log: Log, arguments: argparse.Namespace, after: Any) -> Following:
    return log.follow(
        arguments.stream,
        arguments.substream or None,
        after,
        committed=not arguments.uncommitted,
    )


def _print(message: Message, arguments: argparse.Namespace) -> None:
    print_message(message, as_json=arguments.json, colours=coloured(arguments.color))


def _ends(log: Log) -> tuple[int, int]:
    """Return from which LSN on commits are whole, and the newest one."""
    engine = log._engine
    if isinstance(engine, Elsewhere):
        return engine.first(), engine.tail()
    return log._run(_whole_and_last())


def _whole_and_last() -> Rule[tuple[int, int]]:
    trimmed = yield from read_trimmed()
    ends: Lsns = yield Ends()
    return trimmed.whole, ends.last


def _append_at(log: Log, lsn: int) -> int:
    """Return the first LSN of the append that this one is in; of a served log its server does."""
    return lsn if isinstance(log._engine, Elsewhere) else log._run(append_at(lsn))
