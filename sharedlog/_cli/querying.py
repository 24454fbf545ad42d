"""Queries of Spark's as the command shows them: what they committed, and how far they have read."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from _rifl_ground.exits import CommandRefused, ExitCode
from _rifl_ground.texts import print_table
from sharedlog._cli.operating import really
from sharedlog._cli.shown import print_json, print_value
from sharedlog._core.holds import Hold, all_holds
from sharedlog._core.names import NameKind, owner_of
from sharedlog._core.query.closing import abandon, forget
from sharedlog._core.query.state import Query, all_queries
from sharedlog._core.query.tasks import members
from sharedlog._core.steps import Ends, Lsns, Rule
from sharedlog._core.stream_schema import forget_schema
from sharedlog._core.streams import stream_of
from sharedlog._log.log import Log


def queries(log: Log, arguments: argparse.Namespace) -> int:
    """List queries, abandon what one has pending, forget it, or forget a stream's columns."""
    if arguments.forget_schema is not None:
        stream = arguments.forget_schema
        really(arguments, f"queries that read older messages fail; to forget those of {stream!r}")
        if not log._run(forget_schema(stream)):
            raise CommandRefused(f"the columns of {stream!r} are not declared", ExitCode.NOT_FOUND)
        print_value(arguments.json, {"stream": stream})
        return ExitCode.DONE
    if arguments.forget is not None:
        name = arguments.forget
        really(arguments, f"what its checkpoint commits again is there twice; to forget {name!r}")
        found = log._run(forget(name))
        if found is None:
            raise _nobody(name)
        print_value(arguments.json, {"name": name, "batch": found.closed})
        return ExitCode.DONE
    if arguments.abandon is not None:
        name = arguments.abandon
        really(arguments, f"a running batch fails; to abandon that of {name!r}")
        there = [each for each in log._run(all_queries()) if each.name == name]
        if not there:
            raise _nobody(name)
        log._run(abandon(name, there[0].plan))
    _listed(log, arguments)
    return ExitCode.DONE


def _listed(log: Log, arguments: argparse.Namespace) -> None:
    found = {each.name: each for each in log._run(all_queries())}
    tasks: dict[str, int] = {}
    for member in log._run(members()):
        tasks[member.name] = tasks.get(member.name, 0) + 1
    held: dict[str, list[Hold]] = {}
    for hold in log._run(all_holds()):
        kind, name = owner_of(hold.name)
        if kind is NameKind.QUERY and not hold.dropped:
            held.setdefault(name, []).append(hold)
    end = log._run(_end())
    objects = [
        _object(found.get(name) or Query(name), tasks.get(name, 0), held.get(name, []), end)
        for name in sorted(found.keys() | held.keys())
    ]
    if arguments.json:
        print_json(objects)
        return
    shown = (
        *("query", "state", "batch#", "run", "plan#", "rows#", "all rows#", "entries#", "undone#"),
        *("lsn#", "tasks#", "read#", "lag#", "reads", "limit", "writes"),
    )
    rows = [tuple("" if each is None else str(each) for each in row.values()) for row in objects]
    print_table("", shown, rows)


def _object(query: Query, tasks: int, held: Sequence[Hold], end: int) -> dict[str, Any]:
    """Return a query for programs; None if it has never written, or has no hold."""
    writes = query.plan > 0
    read = min((hold.place[0] for hold in held), default=None)
    streams = sorted({stream_of(hold.tag) for hold in held})
    limits = sorted({hold.note for hold in held if hold.note})
    return {
        "name": query.name,
        "state": query.state.value if writes else None,
        "batch": query.closed if query.closed >= 0 else None,
        "run": query.run or None,
        "plan": query.plan or None,
        "rows": query.rows if writes else None,
        "all_rows": query.all_rows if writes else None,
        "entries": query.entries if writes else None,
        "undone": query.undone if writes else None,
        "lsn": query.lsn or None,
        "tasks": tasks,
        "read": read,
        "lag": None if read is None else max(0, end - read),
        "reads": ",".join(streams) or None,
        "limit": ",".join(limits) or None,
        "writes": query.stream or None,
    }


def _end() -> Rule[int]:
    ends: Lsns = yield Ends()
    return ends.last


def _nobody(name: str) -> CommandRefused:
    return CommandRefused(f"there is no query {name!r}", ExitCode.NOT_FOUND)
