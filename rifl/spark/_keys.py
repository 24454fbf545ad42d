"""The identity of a row: a key made of the columns the user names (DESIGN §8). Pure.

A key depends on values only: not on the order of rows, the partition, the
integer's width or the decimal's scale, so a job that reads the same rows from
elsewhere names them alike. Up to 64 bytes it is the encoded values themselves,
which ``rifl`` shows; a longer one is their SHA-256.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import pyarrow

from rifl.spark._errors import PlanError, RowError
from rifl.spark._key_format import (
    encode_boolean,
    encode_bytes,
    encode_date,
    encode_decimal,
    encode_instant,
    encode_local_time,
    encode_packed_integers,
    encode_text,
    key_of,
    whole_row_key,
    with_size,
)

WHOLE_ROW = "*"
_SHOWN_COLUMNS, _SHOWN_CHARS = 5, 40


class KeyPlan:
    """Makes keys in bulk. Immutable, picklable by its columns and types.

    ``columns`` are names of ``schema``, or ``*`` alone: then the key is the hash
    of the whole request and of the columns ``ignored`` there. Raises ``PlanError`` for no
    columns, an unknown one, and types that cannot identify: floating point (a value may be
    recomputed a bit differently, and NaN equals nothing), lists, maps, structs.
    """

    def __init__(
        self, columns: Sequence[str], schema: pyarrow.Schema, ignored: Sequence[str] = ()
    ) -> None:
        self.columns = tuple(columns)
        self.whole_row = self.columns == (WHOLE_ROW,)
        if not self.columns:
            raise PlanError(
                'no key columns: name what identifies a row, such as option("key", "txn_id"), '
                'or "*" for the whole row'
            )
        if len(set(self.columns)) < len(self.columns):
            raise PlanError(f"a key column is named twice: {', '.join(self.columns)}")
        # What is not sent still belongs to the row.
        self._beside = tuple(ignored) if self.whole_row else ()
        for name in self._beside or (() if self.whole_row else self.columns):
            _check(name, schema)

    def keys(self, batch: pyarrow.RecordBatch) -> list[bytes | RowError]:
        """Return the key of each row; a ``RowError`` where a key column is null.

        Not for ``*``: see ``of_requests``.
        """
        encoded = [_encoded(batch.column(name)) for name in self.columns]
        made: list[bytes | RowError] = []
        for parts in zip(*encoded, strict=True):
            if None in parts:
                missing = self.columns[parts.index(None)]
                where = _shown_row(batch, len(made))
                made.append(RowError("NULL_KEY", f"the key column {missing!r} is null in {where}"))
            else:
                made.append(key_of(parts[0] if len(parts) == 1 else b"".join(parts)))
        return made

    def of_requests(
        self, batch: pyarrow.RecordBatch, requests: Sequence[bytes | RowError]
    ) -> list[bytes | None]:
        """Return the key of each row that is identified by all it says.

        None where there is no request.
        """
        beside = [_encoded(batch.column(name)) for name in self._beside]
        made: list[bytes | None] = []
        for at, request in enumerate(requests):
            if isinstance(request, RowError):
                made.append(None)
                continue
            hashed = hashlib.sha256(request)
            for column in beside:
                value = column[at]
                # Behind a length, so that no request ends as these do.
                hashed.update(b"\x00" if value is None else b"\x01" + with_size(b"", value))
            if beside:
                hashed.update(len(request).to_bytes(8, "big"))
            made.append(whole_row_key(hashed.digest()))
        return made


def _shown_row(batch: pyarrow.RecordBatch, at: int) -> str:
    """Return some values of a row that has no key, to find it by."""
    shown: list[str] = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if len(shown) == _SHOWN_COLUMNS:
            shown.append("...")
            break
        if column[at].is_valid:
            try:
                value = repr(column[at].as_py())
            except (ValueError, OverflowError, pyarrow.ArrowException):
                continue
            shown.append(f"{name}={value[:_SHOWN_CHARS]}")
    return f"the row {', '.join(shown)}" if shown else "a row of nulls"


def _check(name: str, schema: pyarrow.Schema) -> None:
    if name == WHOLE_ROW:
        raise PlanError('the key "*" stands alone')
    indices = schema.get_all_field_indices(name)
    if len(indices) != 1:
        known = ", ".join(schema.names)
        what = "is not a column" if not indices else "is the name of several columns"
        raise PlanError(f"the key column {name!r} {what}; there are: {known}")
    kind = schema.field(indices[0]).type
    if not pyarrow.types.is_integer(kind) and _encoder(kind) is None:
        raise PlanError(
            f"the key column {name!r} has the type {kind}, which cannot identify a row; "
            "use an integer, string, binary, boolean, decimal, date or timestamp"
        )


def _encoded(column: Any) -> list[bytes | None]:
    kind = column.type
    if pyarrow.types.is_integer(kind):
        return _encoded_integers(column)
    encode = _encoder(kind)
    if encode is None:  # the batch is not of the schema that was planned
        raise PlanError(f"a key column has the type {kind}, which cannot identify a row")
    types = pyarrow.types
    # As bytes and numbers: Python has no dates past 9999, and no text that is not UTF-8.
    if types.is_timestamp(kind):
        column = column.cast(pyarrow.timestamp("us", kind.tz)).cast(pyarrow.int64())
        values = column.to_pylist()
    elif types.is_date32(kind):
        values = column.cast(pyarrow.int32()).to_pylist()
    elif types.is_string(kind) or types.is_large_string(kind):
        values = column.cast(
            pyarrow.binary() if types.is_string(kind) else pyarrow.large_binary()
        ).to_numpy(zero_copy_only=False)
    elif types.is_binary(kind):
        values = column.to_numpy(zero_copy_only=False)
    else:
        values = column.to_pylist()
    return [None if value is None else encode(value) for value in values]


def _encoded_integers(column: Any) -> list[bytes | None]:
    # In one stretch of memory: most keys are integers, and there are many.
    filled = column.cast(pyarrow.int64()).fill_null(0)
    data = numpy.ascontiguousarray(filled.to_numpy(zero_copy_only=False), dtype=">i8").tobytes()
    made: list[bytes | None] = [*encode_packed_integers(data)]
    if column.null_count:
        for at, valid in enumerate(column.is_valid().to_pylist()):
            if not valid:
                made[at] = None
    return made


def _encoder(kind: Any) -> Callable[[Any], bytes] | None:
    """Return what encodes a value of a type but integers; None: it cannot identify a row."""
    types = pyarrow.types
    if types.is_string(kind) or types.is_large_string(kind):
        return encode_text
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return encode_bytes
    if types.is_boolean(kind):
        return encode_boolean
    if types.is_decimal(kind):
        return encode_decimal
    if types.is_date32(kind):
        return encode_date
    if types.is_timestamp(kind):
        return encode_local_time if kind.tz is None else encode_instant
    return None
