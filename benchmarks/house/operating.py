"""The reference pages of operation: events, a runbook, errors, exit codes, metrics."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry

import curp._events
import lease_server._events
import rifl._events
import sharedlog._events
from _rifl_ground.events import Event, Until
from _rifl_ground.exits import EXIT_CODES, ExitCode
from _rifl_ground.refusals import RiflError
from benchmarks.house.prose import linked, paragraphs, prose
from curp._core.witness_table import WitnessTable
from curp.metrics import PrometheusGroupObserver, WitnessCollector
from rifl.core._shared.reasons import REASONS
from rifl.metrics import PrometheusObserver
from rifl.spark import QueryListener
from sharedlog.metrics import (
    PrometheusConsumerObserver,
    PrometheusLogObserver,
    PrometheusPlayerObserver,
)

__all__ = ["ERRORS", "LOOK", "REFUSALS", "URGENCY", "events", "metrics", "pages", "symptoms"]

_OBSERVERS: dict[str, tuple[type, Callable[[CollectorRegistry], object]]] = {
    "Servers and clients": (PrometheusObserver, PrometheusObserver),
    "Groups": (PrometheusGroupObserver, PrometheusGroupObserver),
    "Witnesses": (WitnessCollector, functools.partial(WitnessCollector, WitnessTable())),
    "Logs": (PrometheusLogObserver, PrometheusLogObserver),
    "Consumers": (PrometheusConsumerObserver, PrometheusConsumerObserver),
    "Players": (PrometheusPlayerObserver, PrometheusPlayerObserver),
    "Queries of Spark": (QueryListener, lambda registry: QueryListener(registry=registry)),
}
# Of calls, by their reasons. A docstring says what happened, and in its last paragraph what to do.
REFUSALS: list[type[RiflError]] = [
    *(each.error for each in REASONS.values() if each.error is not RiflError),
    *(lease_server.TooManyClients, lease_server.TooManySessions, lease_server.TooManyRefusals),
]
# Of what is not a call.
ERRORS: dict[str, list[type[Exception]]] = {
    title: [
        found
        for found in (getattr(module, each) for each in sorted(module.__all__))
        if isinstance(found, type) and issubclass(found, Exception) and found not in roots
    ]
    for title, module, roots in (
        ("A server is not started", rifl, (rifl.CallError, rifl.StoreError)),
        ("Logs", sharedlog, (sharedlog.LogError,)),
        ("Groups", curp, (curp.ReplicaStopped,)),
    )
}
_TABLES = (rifl._events, lease_server._events, sharedlog._events, curp._events)
# Until when an error can wait, by its class's name.
URGENCY: dict[str, Until] = {
    name: until for tables in _TABLES for name, until in tables.ERRORS.items()
}
# What shows more of an event, by how its logger and name begin, or of an error, by its class.
LOOK: dict[str, str] = {
    name: command for tables in _TABLES for name, command in tables.LOOK.items()
}
_WRITTEN = "The code writes it: `make reference`."


def pages() -> dict[str, list[str]]:
    """Return each page's lines by its file's name."""
    return {
        "errors.md": list(_errors()),
        "events.md": list(_events()),
        "exit-codes.md": list(_exit_codes()),
        "metrics.md": list(_metrics()),
        "runbook.md": list(_runbook()),
    }


def events() -> dict[str, tuple[Event, ...]]:
    """Return the tables of all packages, by the logger."""
    return {logger: rows for tables in _TABLES for logger, rows in tables.EVENTS.items()}


def table(head: str, rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Return the lines of a table: its columns' names, apart by bars, and its rows."""
    yield f"| {head} |"
    yield "|" + "---|" * (head.count("|") + 1)
    for row in rows:
        cells = (linked(" ".join(cell.split())).replace("|", "\\|") for cell in row)
        yield f"| {' | '.join(cells)} |"
    yield ""


def _events() -> Iterator[str]:
    yield from (
        "# Events",
        "",
        f"On this page you can look up what each event in the log means. {_WRITTEN}",
        "",
        "```python",
        "logging.basicConfig(level=logging.WARNING)  # or configure structlog",
        "```",
        "",
        "Events go through [structlog](https://www.structlog.org) if the application configured",
        "it, else to the `logging` logger that the heading names. Alert on errors and critical",
        "events: the [runbook](runbook.md) has those that need an action, **now** or **today**.",
        "Above the debug level a call writes no event, unless something went wrong with it.",
        "`rifl.spark` and `sharedlog.spark` log sentences, too.",
        "",
        '"Shared stores" are Redis, PostgreSQL, and MariaDB or MySQL. `shard` and `substream` are',
        "partitions. What engines of logs write under `curp.log` for a group's log, they write",
        'under `sharedlog` for a shared one. "Report it" marks a defect of this software.',
        "",
    )
    for logger, found in events().items():
        yield from (f"## `{logger}`", "")
        yield from table(
            "event | level | fields | what it means, and what to do",
            (
                (
                    f"`{each.name}`",
                    each.level,
                    ", ".join(f"`{field}`" for field in each.fields.split()),
                    f"{each.means} {_action(each)}",
                )
                for each in found
            ),
        )


def _action(event: Event) -> str:
    if event.until == "no need":
        return "No need to act."
    return f"**{event.until.capitalize()}:** {event.do}" if event.do else ""


def _exit_codes() -> Iterator[str]:
    yield from (
        "# Exit codes",
        "",
        f"On this page you can look up what a command's exit code means. {_WRITTEN}",
        "",
        "[Commands](../commands.md#signals) says what a signal does to `sharedlog`.",
        "",
    )
    yield from table(
        f"code | {' | '.join(f'`{each}`' for each in EXIT_CODES)}",
        (
            (str(int(code)), *(told.get(code, "") for told in EXIT_CODES.values()))
            for code in ExitCode
        ),
    )


class Symptom(NamedTuple):
    """A row of the runbook: an event or an error that wants an operator."""

    name: str
    page: str
    means: str
    do: str
    until: Until
    command: str


def symptoms() -> list[Symptom]:
    """Return all events and errors that an operator has to act on."""
    found = [
        Symptom(
            row.name,
            f"events.md#{logger.replace('.', '')}",
            row.means,
            row.do,
            row.until,
            _command(f"{logger}.{row.name}"),
        )
        for logger, rows in events().items()
        for row in rows
    ]
    told: dict[str, Sequence[type[Exception]]] = {"Reasons": REFUSALS, **ERRORS}
    for title, errors in told.items():
        for error in errors:
            means, do = _told(error)
            name = getattr(error, "reason", error.__name__)
            page = f"errors.md#{title.lower().replace(' ', '-')}"
            command = LOOK.get(error.__name__, "")
            found.append(Symptom(name, page, means, do, URGENCY[error.__name__], command))
    return [each for each in found if each.until in ("now", "today")]


def _command(name: str) -> str:
    fitting = [each for each in LOOK if name.startswith(each)]
    return LOOK[max(fitting, key=len)] if fitting else ""


def _runbook() -> Iterator[str]:
    yield from (
        "# Runbook",
        "",
        "On this page you can look up what to do about an event or an error, and until when. "
        f"{_WRITTEN}",
        "",
        "Events are in the log, errors where a program starts, publishes or calls. The pages that",
        "they link to have all of them, also those that need no action. The command shows more and",
        "changes nothing; URL is that of the store or the log. If a server or a log does not",
        "start, `rifl doctor URL` or `sharedlog doctor URL` [says all](../commands.md#doctor) that",
        "is in its way.",
        "",
    )
    for until, severity, why in (
        (
            "now",
            "page",
            "Calls or messages are refused or wait, or acknowledged data is in danger.",
        ),
        (
            "today",
            "ticket",
            "The rest goes on; this call, message or process does not, or soon will not.",
        ),
    ):
        yield from (f"## {until.capitalize()}", "", f"Severity: {severity}. {why}", "")
        yield from table(
            "symptom | what it means | what to do | command",
            (
                (
                    f"[`{each.name}`]({each.page})",
                    each.means,
                    each.do,
                    f"`{each.command}`" if each.command else "",
                )
                for each in symptoms()
                if each.until == until
            ),
        )


def _errors() -> Iterator[str]:
    yield from (
        "# Errors, one by one",
        "",
        f"On this page you can look up what happened, and what you do. {_WRITTEN}",
        "",
        "[Errors](../errors.md) says which of them a call raises.",
        "",
        "## Reasons",
        "",
        "The outcome is that of the refused attempt.",
        "",
    )
    yield from table(
        "reason | gRPC status | outcome | what happened | what you do",
        ((each.reason, each.code_name, each.outcome.value, *_told(each)) for each in REFUSALS),
    )
    for title, found in ERRORS.items():
        yield from (f"## {title}", "")
        if title == "Logs":
            yield from ("`appended`: whether the message or request is in the log.", "")
            yield from table(
                "error | appended | what happened | what you do",
                ((f"`{each.__name__}`", _appended(each), *_told(each)) for each in found),
            )
        else:
            yield from table(
                "error | what happened | what you do",
                ((f"`{each.__name__}`", *_told(each)) for each in found),
            )


def _told(error: type[Exception]) -> tuple[str, str]:
    *happened, do = paragraphs(error)
    return " ".join(happened), do


def _appended(error: type[Exception]) -> str:
    return {None: "not known", True: "yes", False: "no"}[getattr(error, "appended", False)]


def metrics(
    make: Callable[[CollectorRegistry], object],
) -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    """Return name, kind, labels and meaning of each metric of an observer."""
    registry = CollectorRegistry()
    made = make(registry)  # Kept until it is read.
    for collector in registry._collector_to_names:
        for found in getattr(collector, "describe", collector.collect)():
            # Of what is looked at when scraped the family has them, else the collector.
            labels = getattr(found, "_labelnames", getattr(collector, "_labelnames", ()))
            name = f"{found.name}_total" if found.type == "counter" else found.name
            yield name, found.type, labels, found.documentation
    del made


def _metrics() -> Iterator[str]:
    yield from (
        "# Metrics",
        "",
        f"On this page you can look up each Prometheus metric. {_WRITTEN}",
        "",
        "[Metrics and traces](../metrics.md) says how to switch them on, and what to alert on.",
        "",
    )
    known: set[str] = set()
    for title, (observer, make) in _OBSERVERS.items():
        name = f"{observer.__module__.split('._')[0]}.{observer.__name__}"
        yield from (f"## {title}", "", f"Of `{name}`.", "", *prose(observer))
        rows = [each for each in metrics(make) if each[0] not in known]
        known.update(each[0] for each in rows)
        yield from table(
            "metric | kind | labels | what it is",
            (
                (f"`{name}`", kind, ", ".join(f"`{each}`" for each in labels), text)
                for name, kind, labels, text in rows
            ),
        )
