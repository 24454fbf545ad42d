"""Reports that the commands print, as tables or as one JSON object."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from _rifl_ground.texts import print_table
from rifl._cli.identity import shown
from rifl._grpc.codes import code_name
from rifl._stores.inspection import CallRow, ClientRow, Summary
from rifl.core._shared.record import CompletionRecord

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_CALL_COLUMNS = ("call", "method", "state", "bytes#", "age#")


class Report:
    """How to print: for people or for programs, with ages counted from now."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.now = time.time()

    def json(self, value: dict[str, Any]) -> None:
        """Print the one object."""
        sys.stdout.write(json.dumps(value) + "\n")

    def age(self, at_unix_s: int | None) -> str:
        """Return how long ago that was, roughly."""
        if at_unix_s is None:
            return "unknown"
        seconds = max(0, int(self.now - at_unix_s))
        for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
            if seconds >= 2 * size:
                return f"{seconds // size}{unit}"
        return f"{seconds}s"

    def seconds(self, at_unix_s: int | None) -> float | None:
        """Return the same for programs."""
        return None if at_unix_s is None else max(0.0, round(self.now - at_unix_s, 3))


def print_store(
    report: Report, summary: Summary, clients: Sequence[ClientRow], intents: Sequence[CallRow]
) -> None:
    """Print the store at a glance, its clients, and its calls in progress."""
    if report.as_json:
        report.json(
            {
                "summary": {**summary._asdict(), "oldest_s": report.seconds(summary.oldest_unix_s)},
                "clients": [_client_object(report, client) for client in clients],
                "intents": [_call_object(report, call) for call in intents],
            }
        )
        return
    owner = summary.owner or "no process"
    print_table(
        "",
        ("store", summary.url),
        [
            ("served by" if summary.incarnation is None else "owned by", owner),
            _schema(summary),
            *([("stopped", "it has lost what it acknowledged")] if summary.stopped else []),
            ("size", _size(summary.size_bytes)),
            *([("open to", summary.open_to)] if summary.open_to else []),
            ("clients, open sessions", f"{summary.clients}, {summary.open_sessions}"),
            ("recorded, unacknowledged", f"{summary.records} ({_size(summary.record_bytes)})"),
            ("intents", str(summary.intents)),
            ("oldest call", report.age(summary.oldest_unix_s) if summary.oldest_unix_s else "none"),
        ],
    )
    if clients:
        total = summary.clients
        title = "clients" if len(clients) >= total else f"clients, {len(clients)} of {total}"
        columns = ("client", "session", "lease#", "first incomplete#", "recorded#", "intents#",
                   "bytes#", "age#", "last change#")  # fmt: skip
        print_table(title, columns, [_client_cells(report, client) for client in clients])
    if intents:
        running = "in progress" if summary.owner else "begun, and their server has ended"
        print_table(f"calls {running}", _CALL_COLUMNS, [_call_cells(report, c) for c in intents])


def print_client(report: Report, client: ClientRow, calls: Sequence[CallRow]) -> None:
    """Print one client and its calls."""
    if report.as_json:
        report.json(
            {
                "client": _client_object(report, client),
                "calls": [_call_object(report, call) for call in calls],
            }
        )
        return
    ranges = " ".join(f"{first}-{last}" for first, last in client.completed) or "none"
    rows = [
        ("acknowledged", f"below {client.first_incomplete}, and {ranges} above"),
        ("recorded", f"{client.records} ({_size(client.record_bytes)})"),
        ("intents", str(client.intents)),
        ("registered", report.age(client.registered_at_unix_s)),
        ("lease left", _lease(client) or "its server knows"),
    ]
    if (session := client.session) is not None:
        rows += [
            ("session", session.name),
            ("state", f"{session.state}, retention {session.retention_s:g} s"),
            ("peer", session.peer.decode(errors="replace") or "unauthenticated"),
        ]
    print_table("", ("client", str(client.client_id)), rows)
    if calls:
        print_table("calls", _CALL_COLUMNS, [_call_cells(report, call) for call in calls])


def print_call(
    report: Report, call: CallRow, record: CompletionRecord | None, *, with_response: bool
) -> None:
    """Print one call and its record; the response itself only if asked for."""
    entry = _call_object(report, call)
    if record is not None:
        entry["record"] = {
            "code": code_name(record.code),
            "details": record.details,
            "outcome": record.outcome.value,
            "reason": record.reason,
            "response_bytes": None if record.response is None else len(record.response),
            "initial_metadata": _metadata(record.initial_metadata),
            "trailing_metadata": _metadata(record.trailing_metadata),
        }
        if with_response:
            response = record.response
            entry["record"]["response_hex"] = None if response is None else response.hex()
    if report.as_json:
        report.json(entry)
        return
    rows = [(name, _text(value)) for name, value in entry.items() if name != "record"]
    rows += [(name, _text(value)) for name, value in entry.get("record", {}).items()]
    print_table("", ("call", entry.pop("rpc_id")), rows[1:])


def print_value(report: Report, name: str, value: int | str) -> None:
    """Print what a command did."""
    if report.as_json:
        report.json({name: value})
    else:
        sys.stdout.write(f"{name.replace('_', ' ')}: {value}\n")


def _schema(summary: Summary) -> tuple[str, str]:
    if summary.incarnation is None:
        return "schema", str(summary.schema_version)
    return "schema, incarnation", f"{summary.schema_version}, {summary.incarnation}"


def _lease(client: ClientRow) -> str:
    left_s = client.lease_left_s
    return "" if left_s is None else f"{int(left_s)}s" if left_s > 0 else "over"


def _client_object(report: Report, client: ClientRow) -> dict[str, Any]:
    session = client.session
    return {
        **client._asdict(),
        "age_s": report.seconds(client.registered_at_unix_s),
        "session": None if session is None else {**session._asdict(), "peer": session.peer.hex()},
    }


def _call_object(report: Report, call: CallRow) -> dict[str, Any]:
    rpc_id = call.rpc_id
    return {
        "rpc_id": str(rpc_id),
        "client_id": rpc_id.client_id,
        "seq": rpc_id.seq,
        "key": None if rpc_id.key is None else rpc_id.key.hex(),
        "method": call.method,
        "state": "intent" if call.record_bytes is None else "recorded",
        "record_bytes": call.record_bytes,
        "owner": call.owner,
        "age_s": report.seconds(call.changed_at_unix_s),
        "fingerprint": None if call.fingerprint is None else call.fingerprint.hex(),
    }


def _client_cells(report: Report, client: ClientRow) -> tuple[str, ...]:
    return (
        str(client.client_id),
        "" if client.session is None else f"{client.session.name} ({client.session.state})",
        _lease(client),
        str(client.first_incomplete),
        str(client.records),
        str(client.intents),
        _size(client.record_bytes),
        report.age(client.registered_at_unix_s),
        report.age(client.changed_at_unix_s) if client.records + client.intents else "",
    )


def _call_cells(report: Report, call: CallRow) -> tuple[str, ...]:
    size = call.record_bytes
    return (
        shown(call.rpc_id),
        call.method,
        "recorded" if size is not None else f"intent of {call.owner}" if call.owner else "intent",
        "" if size is None else _size(size),
        report.age(call.changed_at_unix_s),
    )


def _metadata(metadata: tuple[tuple[str, str | bytes], ...]) -> list[list[str]]:
    return [[key, value.hex() if isinstance(value, bytes) else value] for key, value in metadata]


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _size(count: float) -> str:
    for unit in _UNITS:
        if count < 1024 or unit == _UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return str(count)
