"""``spark.read.format("rifl-records")``: what a store keeps, for SQL.

Reads beside the server that owns the store, in one task, a page at a time. The
store's URL may hold a password: name a variable or file that has it instead.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from rifl._grpc.codes import code_name
from rifl._stores.errors import StoreError
from rifl._stores.inspection import CallRow, ClientRow, Inspection
from rifl._stores.opening import open_inspection
from rifl.spark._errors import PlanError

_ROWS = 1000
_MICROS = 1_000_000
_TIME = pyarrow.timestamp("us", "UTC")
_CALLS = pyarrow.schema(
    [
        ("client_id", pyarrow.int64()),
        ("session", pyarrow.string()),
        ("seq", pyarrow.int64()),
        ("key", pyarrow.binary()),
        ("method", pyarrow.string()),
        ("state", pyarrow.string()),
        ("changed_at", _TIME),
        ("fingerprint", pyarrow.binary()),
        ("record_bytes", pyarrow.int64()),
        ("code", pyarrow.string()),
        ("details", pyarrow.string()),
        ("outcome", pyarrow.string()),
        ("reason", pyarrow.string()),
        ("response_bytes", pyarrow.int64()),
    ]
)
_CLIENTS = pyarrow.schema(
    [
        ("client_id", pyarrow.int64()),
        ("session", pyarrow.string()),
        ("session_state", pyarrow.string()),
        ("retention_s", pyarrow.float64()),
        ("first_incomplete", pyarrow.int64()),
        ("intents", pyarrow.int64()),
        ("records", pyarrow.int64()),
        ("record_bytes", pyarrow.int64()),
        ("registered_at", _TIME),
        ("changed_at", _TIME),
    ]
)
_SCHEMAS = {"calls": _CALLS, "clients": _CLIENTS}


class RecordsDataSource(DataSource):
    """``option("store", url)``, ``storeEnv`` or ``storeFile``; ``option("table", ...)``.

    ``calls`` (the default): one row for each call kept, with its outcome and
    sizes. ``clients``: one for each client and session, with its leases' state.
    """

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "rifl-records"

    def schema(self) -> StructType:
        """Return the table's columns; a store that cannot be read is an error here."""
        options = dict(self.options)
        made: StructType = from_arrow_schema(_table(options))
        _opened(options).close()
        return made

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the table."""
        return _Reader(dict(self.options))


class _Reader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        schema = _table(self._options)
        rows_of: Callable[[Inspection], Iterator[dict[str, Any]]] = (
            _calls if schema is _CALLS else _clients
        )
        store = _opened(self._options)
        try:
            rows = rows_of(store)
            while taken := list(itertools.islice(rows, _ROWS)):
                yield pyarrow.RecordBatch.from_pylist(taken, schema=schema)
        finally:
            store.close()


def _table(options: Mapping[str, str]) -> pyarrow.Schema:
    options = {name.lower(): value for name, value in options.items()}
    table = options.get("table", "calls")
    if table not in _SCHEMAS:
        raise PlanError(f"the table {table!r} is none of: {', '.join(_SCHEMAS)}")
    return _SCHEMAS[table]


def _opened(options: Mapping[str, str]) -> Inspection:
    try:
        return open_inspection(_url({name.lower(): value for name, value in options.items()}))
    except StoreError as error:
        raise PlanError(f"the store cannot be read: {error}") from error


def _url(options: Mapping[str, str]) -> str:
    named = [name for name in ("store", "storeenv", "storefile", "path") if name in options]
    if len(named) != 1:
        raise PlanError("name the store once: load(url), or option store, storeEnv or storeFile")
    value = options[named[0]]
    if named[0] == "storeenv":
        found = os.environ.get(value)
        if found is None:
            raise PlanError(f"storeEnv: the environment variable {value} is not set here")
        return found
    if named[0] == "storefile":
        try:
            return Path(value).read_text().strip()
        except OSError as error:
            raise PlanError(f"storeFile: {error}") from error
    # What load() is given; Spark leaves it alone.
    return value


def _calls(store: Inspection) -> Iterator[dict[str, Any]]:
    sessions = {
        client.client_id: client.session.name
        for client in store.clients()
        if client.session is not None
    }
    for call in store.calls():
        yield {**_call(store, call), "session": sessions.get(call.rpc_id.client_id)}


def _call(store: Inspection, call: CallRow) -> dict[str, Any]:
    record = None if call.record_bytes is None else store.record(call.rpc_id)
    row: dict[str, Any] = {
        "client_id": call.rpc_id.client_id,
        "seq": call.rpc_id.seq,
        "key": call.rpc_id.key,
        "method": call.method,
        "state": "intent" if call.record_bytes is None else "recorded",
        "changed_at": _micros(call.changed_at_unix_s),
        "fingerprint": call.fingerprint,
        "record_bytes": call.record_bytes,
    }
    if record is not None:
        row |= {
            "code": code_name(record.code),
            "details": record.details,
            "outcome": record.outcome.value,
            "reason": record.reason,
            "response_bytes": None if record.response is None else len(record.response),
        }
    return row


def _clients(store: Inspection) -> Iterator[dict[str, Any]]:
    for client in store.clients():
        yield _client(client)


def _client(client: ClientRow) -> dict[str, Any]:
    session = client.session
    return {
        "client_id": client.client_id,
        "session": None if session is None else session.name,
        "session_state": None if session is None else session.state,
        "retention_s": None if session is None else session.retention_s,
        "first_incomplete": client.first_incomplete,
        "intents": client.intents,
        "records": client.records,
        "record_bytes": client.record_bytes,
        "registered_at": _micros(client.registered_at_unix_s),
        "changed_at": _micros(client.changed_at_unix_s),
    }


def _micros(unix_s: int | None) -> int | None:
    return None if unix_s is None else unix_s * _MICROS
