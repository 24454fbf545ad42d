"""All calls of a store as a file of rows: CSV, or Parquet through pyarrow."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _rifl_ground.files import replacing
from rifl._grpc.codes import code_name
from rifl._stores.errors import MissingExtra, UnsupportedStore
from rifl._stores.inspection import CallRow, Inspection

# Name and Arrow type of each column; CSV has them as text, bytes in hexadecimal.
COLUMNS = (
    ("client_id", "int64"),
    ("session", "string"),
    ("seq", "int64"),
    ("key", "binary"),
    ("method", "string"),
    ("state", "string"),
    ("changed_at_unix_s", "int64"),
    ("fingerprint", "binary"),
    ("record_bytes", "int64"),
    ("code", "string"),
    ("details", "string"),
    ("outcome", "string"),
    ("reason", "string"),
    ("response_bytes", "int64"),
)
_RESPONSE = ("response", "binary")
_BATCH = 1000
_Row = dict[str, Any]


def export(store: Inspection, out: Path, *, with_responses: bool) -> int:
    """Write one row for every call, and return how many; the file appears when whole.

    It is private, or has the mode of the file that it replaces.

    Rows are read a page at a time: calls recorded or acknowledged meanwhile may
    be in it or not. Raises ``MissingExtra``, ``OSError``, a ``StoreError``.
    """
    columns = (*COLUMNS, _RESPONSE) if with_responses else COLUMNS
    rows = _rows(store, with_responses=with_responses)
    write = _WRITERS.get(out.suffix)
    if write is None:
        raise UnsupportedStore(f"{out} is neither .csv nor .parquet")
    with replacing(out) as part:
        return write(part, columns, rows)


def _rows(store: Inspection, *, with_responses: bool) -> Iterator[_Row]:
    sessions = {
        client.client_id: client.session.name
        for client in store.clients()
        if client.session is not None
    }
    for call in store.calls():
        row = _row(store, call, with_responses=with_responses)
        row["session"] = sessions.get(call.rpc_id.client_id)
        yield row


def _row(store: Inspection, call: CallRow, *, with_responses: bool) -> _Row:
    rpc_id = call.rpc_id
    recorded = call.record_bytes is not None
    row: _Row = {
        "client_id": rpc_id.client_id,
        "seq": rpc_id.seq,
        "key": rpc_id.key,
        "method": call.method,
        "state": "recorded" if recorded else "intent",
        "changed_at_unix_s": call.changed_at_unix_s,
        "fingerprint": call.fingerprint,
        "record_bytes": call.record_bytes,
    }
    record = store.record(rpc_id) if recorded else None
    if record is not None:
        row |= {
            "code": code_name(record.code),
            "details": record.details,
            "outcome": record.outcome.value,
            "reason": record.reason,
            "response_bytes": None if record.response is None else len(record.response),
        }
        if with_responses:
            row["response"] = record.response
    return row


def _write_csv(path: Path, columns: tuple[tuple[str, str], ...], rows: Iterator[_Row]) -> int:
    names = [name for name, _ in columns]
    count = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for row in rows:
            values = (row.get(name) for name in names)
            writer.writerow(
                [value.hex() if isinstance(value, bytes) else value for value in values]
            )
            count += 1
    return count


def _write_parquet(path: Path, columns: tuple[tuple[str, str], ...], rows: Iterator[_Row]) -> int:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra(
            "Parquet needs the extra: pip install 'rifl-grpc[export]', or write a .csv"
        ) from error
    schema = pyarrow.schema(
        [(name, pyarrow.type_for_alias(arrow_type)) for name, arrow_type in columns]
    )
    count = 0
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        while batch := list(itertools.islice(rows, _BATCH)):
            writer.write_table(pyarrow.Table.from_pylist(batch, schema))
            count += len(batch)
    return count


_WRITERS = {".csv": _write_csv, ".parquet": _write_parquet}
