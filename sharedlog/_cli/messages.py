"""The commands about messages: publish, read, tail, export."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sharedlog._cli.exits import ExitCode, Refused
from sharedlog._cli.shown import coloured, print_message, print_value, progress
from sharedlog._core.following import From, append_at
from sharedlog._core.message import Message
from sharedlog._core.steps import Ends, Lsns, Rule
from sharedlog._core.whole import read_trimmed
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
        raise Refused(
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
    first, ends = log._run(_ends())
    back = max(_LOOKED_AT, 2 * arguments.lines)
    found: list[Message] = []
    following = _following(log, arguments, "end")
    while arguments.lines:
        start = max(first, ends.last + 1 - back)
        following = _following(log, arguments, From(log._run(append_at(start))))
        found = []
        while batch := following.poll():
            found = (found + batch)[-arguments.lines :]
        if len(found) >= arguments.lines or start == first:
            break
        back *= 8
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
        raise Refused(
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
    _, ends = log._run(_ends())
    rows: list[dict[str, Any]] = []
    count = 0
    with (
        progress(f"export {arguments.stream}", ends.last) as told,
        log.follow(arguments.stream, arguments.substream or None, arguments.after) as following,
    ):
        while found := following.poll():
            rows += [_row(each) for each in found if each.position.lsn <= ends.last]
            told(found[-1].position.lsn)
            if len(rows) >= _EXPORT_ROWS:
                write(rows)
                count += len(rows)
                rows = []
            if found[-1].position.lsn > ends.last:
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


def _ends() -> Rule[tuple[int, Lsns]]:
    trimmed = yield from read_trimmed()
    return trimmed.whole, (yield Ends())
