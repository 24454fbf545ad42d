"""The options of the sinks and of ``call``, checked; no secret is among them.

Options end up in plans, event logs and checkpoints, so what is secret is named by
a file or an environment variable that each process reads for itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rifl.spark._checkpoints import plain_location
from rifl.spark._errors import PlanError
from rifl.spark._session_names import batch_session

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# Batched calls of a task in flight, at most.
MOST_CALLS = 16
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20}
# Spark's own, which reach every sink.
_SPARKS = {"checkpointlocation", "queryname"}
_PREFIXES = ("metadataenv.", "metadatafile.")
_NAMES = (
    *("target", "method", "key", "session", "name", "batchId", "retention", "closeSession"),
    *(
        "adopt",
        "descriptorFile",
        "module",
        "ignoreColumns",
        "batchRows",
        "batchBytes",
        "batchTime",
        "inFlight",
    ),
    *("fields", "rowsPerSecond", "timeout", "progress", "deadLetter", "report", "metrics"),
    *("tls", "tlsRootsFile", "tlsCertFile", "tlsKeyFile", "tlsTargetName"),
    "plaintextSecrets",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """How a process reaches the service.

    ``metadata`` names each header with ``env:NAME`` or ``file:PATH``. Files are
    read where the connection is made, on the driver and on each worker.
    """

    target: str
    tls: bool = False
    roots_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    target_name: str | None = None
    plaintext_secrets: bool = False
    metadata: tuple[tuple[str, str], ...] = ()


def column_of(name: str, columns: Sequence[str], what: str = "columns") -> str:
    """Return the column that is meant: of this name, else the only one of it in any case.

    The name itself where there is none. Raises ``PlanError`` for several. ``what``: what they are.
    """
    found = [each for each in columns if each.lower() == name.lower()]
    if name in found or not found:
        return name
    if len(found) > 1:
        raise PlanError(f"{name!r} may be each of these {what}: {', '.join(found)}")
    return found[0]


def case_counts(df: Any) -> bool:
    """Whether a frame's session takes names that differ in case for others."""
    return str(df.sparkSession.conf.get("spark.sql.caseSensitive")).lower() == "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """One write, as asked for. Picklable; ``repr`` holds nothing secret.

    ``timeout_s`` bounds a row's call with all its retries, and each batched call that
    carries it; ``batch_rows`` and ``batch_bytes`` bound a batched call's size, which grows
    and shrinks so that one takes ``batch_time_s``. ``in_flight`` is how many of them a task
    sends at once, None for as many as make it quicker: together they bound what a worker holds
    beside Spark's own Arrow batch. ``rows_per_second`` is each task's. ``checkpoint`` and ``query``
    are of a query, as far as its options say.
    """

    connection: ConnectionOptions
    method: str
    key: tuple[str, ...]
    session: str | None = None
    name: str | None = None
    batch_id: int | None = None
    retention_s: float | None = None
    close_session: bool = False
    adopt: bool = False
    checkpoint: str = ""
    query: str = ""
    descriptor_file: str | None = None
    module: str | None = None
    ignored: tuple[str, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    batch_rows: int = 500
    batch_bytes: int = 1 << 20
    batch_time_s: float = 1.0
    in_flight: int | None = None
    rows_per_second: float | None = None
    timeout_s: float = 60.0
    progress_s: float = 10.0
    dead_letter: str | None = None
    report: str | None = None
    metrics: str | None = None

    def __post_init__(self) -> None:
        """Check numbers and names against each other; raises ``PlanError``."""
        calls = MOST_CALLS if self.in_flight is None else self.in_flight
        if min(self.batch_rows, self.batch_bytes, calls) < 1 or self.timeout_s <= 0:
            raise PlanError("batchRows, batchBytes, inFlight and timeout must be positive")
        if calls > MOST_CALLS:
            raise PlanError(f"inFlight is at most {MOST_CALLS}")
        if self.descriptor_file and self.module:
            raise PlanError("descriptorFile and module: name one of them")
        if self.session is not None:
            try:
                batch_session(self.session)
            except ValueError as error:
                raise PlanError(str(error)) from error
        if self.name is not None:
            if len(self.name) > 64 or "#" in self.name:
                raise PlanError(f"the name {self.name!r} has more than 64 characters, or '#'")
            if self.session is not None:
                raise PlanError("name and session: one of them says what the keys belong to")
        elif self.batch_id is not None:
            raise PlanError(NO_NAME)
        if self.close_session and self.session is None:
            raise PlanError("closeSession goes with a session of your own name")

    def fitted(self, columns: Sequence[str], *, exact: bool = False) -> WriteOptions:
        """Return them with the names of columns as these have them; raises ``PlanError``.

        ``exact``: names that differ in case are others.
        """

        def fit(name: str) -> str:
            return name if exact else column_of(name, columns)

        return replace(
            self,
            key=tuple(map(fit, self.key)),
            ignored=tuple(map(fit, self.ignored)),
            fields=tuple((fit(name), field) for name, field in self.fields),
        )

    @classmethod
    def of(
        cls, target: str, method: str, key: str | Sequence[str], options: Mapping[str, Any]
    ) -> WriteOptions:
        """Read Python arguments; names with underscores or in their own spelling.

        Lists and flags may be Python's. Raises ``PlanError``.
        """
        given = {
            name if "." in name else name.replace("_", ""): _text_of(value)
            for name, value in options.items()
            if value is not None
        }
        keys = [key] if isinstance(key, str) else list(key)
        return cls.read({**given, "target": target, "method": method, "key": json.dumps(keys)})

    @classmethod
    def read(cls, given: Mapping[str, str]) -> WriteOptions:
        """Read a sink's options; names in any case. Raises ``PlanError``."""
        options = {name.lower(): value for name, value in given.items()}
        if of_a_table(options):
            raise PlanError(NO_TABLE.format("rifl"))
        _check_names(options)
        target, method = options.get("target"), options.get("method")
        if not target:
            raise PlanError('no target: option("target", "host:port")')
        if not method:
            raise PlanError('no method: option("method", "/package.Service/Method")')
        return cls(
            connection=_connection(target, options),
            method=method,
            key=_names("key", options),
            session=options.get("session") or None,
            name=options.get("name") or None,
            batch_id=_batch_id(options),
            retention_s=_optional_seconds("retention", options),
            close_session=_flag("closesession", options),
            adopt=_flag("adopt", options),
            checkpoint=plain_location(options.get("checkpointlocation", ""), links=True),
            query=options.get("queryname", ""),
            descriptor_file=options.get("descriptorfile"),
            module=options.get("module"),
            ignored=_names("ignorecolumns", options),
            fields=_pairs("fields", options),
            batch_rows=_size("batchrows", options, 500),
            batch_bytes=_size("batchbytes", options, 1 << 20),
            batch_time_s=_optional_seconds("batchtime", options) or 1.0,
            in_flight=_size("inflight", options, 0) if "inflight" in options else None,
            rows_per_second=_rate("rowspersecond", options),
            timeout_s=_optional_seconds("timeout", options) or 60.0,
            progress_s=_optional_seconds("progress", options) or 10.0,
            dead_letter=options.get("deadletter"),
            report=options.get("report"),
            metrics=options.get("metrics"),
        )


# Spark 4.3 has a table's options as ``option.NAME`` while it makes it, and later not at all.
NO_TABLE = (
    "no options, of which Spark gives Python none of a CREATE TABLE's: CREATE TEMPORARY VIEW v "
    "(columns) USING {0} OPTIONS (...) keeps them, and INSERT INTO t WITH ('name' = 'value', ...) "
    "gives them"
)


def of_a_table(options: Mapping[str, str]) -> bool:
    """Tell whether options, in small letters, are what Spark gives of a SQL table's."""
    return not options or any(name.startswith("option.") for name in options)


NO_NAME = "batchId goes with a name: by both the log and services know the write of a micro-batch"


def read_batch_id(options: Mapping[str, str]) -> int | None:
    """Read the number of a micro-batch, None if it is not given; raises ``ValueError``."""
    text = options.get("batchid")
    if text is None:
        return None
    if not re.fullmatch("[0-9]{1,18}", text):
        raise ValueError(f"batchId is the number that foreachBatch gives, not {text!r}")
    return int(text)


def _batch_id(options: Mapping[str, str]) -> int | None:
    try:
        return read_batch_id(options)
    except ValueError as error:
        raise PlanError(str(error)) from error


def _connection(target: str, options: Mapping[str, str]) -> ConnectionOptions:
    metadata: list[tuple[str, str]] = []
    for name, value in sorted(options.items()):
        if name.startswith(_PREFIXES):
            prefix, _, header = name.partition(".")
            metadata.append((header, f"{prefix.removeprefix('metadata')}:{value}"))
    files = [options.get(f"tls{part}file") for part in ("roots", "cert", "key")]
    if (files[1] is None) != (files[2] is None):
        raise PlanError("tlsCertFile and tlsKeyFile go together")
    asked = _flag("tls", options)
    if any(files) and "tls" in options and not asked:
        raise PlanError("tls is false and TLS files are named")
    return ConnectionOptions(
        target=target,
        tls=asked or any(files),
        roots_file=files[0],
        cert_file=files[1],
        key_file=files[2],
        target_name=options.get("tlstargetname"),
        plaintext_secrets=_flag("plaintextsecrets", options),
        metadata=tuple(metadata),
    )


def _check_names(options: Iterable[str]) -> None:
    known = {name.lower() for name in _NAMES}
    for name in options:
        if name in known or name in _SPARKS or name.startswith(_PREFIXES):
            continue
        if name == "path":
            raise PlanError("save() and start() take no path: rows go to the target")
        if name.startswith("metadata."):
            raise PlanError(
                "metadata given as an option would be written into plans and logs: name an "
                "environment variable, metadataEnv.HEADER, or a file, metadataFile.HEADER"
            )
        raise PlanError(f"unknown option {name!r}; there are: {', '.join(_NAMES)}")


def _text_of(value: Any) -> str:
    """Return a Python argument as the text of an option."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else json.dumps(value)


def seconds(text: str) -> float:
    """Read a time such as ``90``, ``250ms``, ``12h`` or ``7d``; raises ``ValueError``."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if found is None or found[2] not in _UNITS or float(found[1]) == 0:
        raise ValueError(f"{text!r} is not a time such as 90s, 12h or 7d")
    return float(found[1]) * _UNITS[found[2]]


def _names(option: str, options: Mapping[str, str]) -> tuple[str, ...]:
    """Read a list of names, with commas or as JSON."""
    text = options.get(option, "").strip()
    if text.startswith("["):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise PlanError(f"{option}: {text!r} is no list of names") from error
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise PlanError(f"{option}: {text!r} is no list of names")
        return tuple(found)
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _pairs(option: str, options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Read names and what each stands for: ``a=b,c=d``, or a JSON object."""
    text = options.get(option, "").strip()
    wanted = f'{option}: {text!r} is no list such as txn=reference, or {{"txn": "reference"}}'
    if text.startswith("{"):
        try:
            given = json.loads(text)
        except ValueError as error:
            raise PlanError(wanted) from error
    else:
        parts = [part.split("=") for part in text.split(",") if part.strip()]
        if not all(len(part) == 2 for part in parts):
            raise PlanError(wanted)
        given = {column.strip(): field.strip() for column, field in parts}
        if len(given) < len(parts):
            raise PlanError(f"{option}: a column is named twice")
    if not all(isinstance(name, str) and name for pair in given.items() for name in pair):
        raise PlanError(wanted)
    return tuple(given.items())


def _flag(option: str, options: Mapping[str, str]) -> bool:
    """Read ``true`` or ``false``; false where it is not given."""
    text = options.get(option, "false").lower()
    if text not in ("true", "false"):
        raise PlanError(f"{option} is true or false, not {text!r}")
    return text == "true"


def _optional_seconds(option: str, options: Mapping[str, str]) -> float | None:
    """Read a time, None where it is not given."""
    text = options.get(option)
    try:
        return None if text is None else seconds(text)
    except ValueError as error:
        raise PlanError(f"{option}: {error}") from error


def _rate(option: str, options: Mapping[str, str]) -> float | None:
    """Read a positive number, None where it is not given."""
    text = options.get(option)
    if text is None:
        return None
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise PlanError(f"{option}: {text!r} is no number of rows a second")
    return found


def _size(option: str, options: Mapping[str, str], default: int) -> int:
    """Read a number, with k or m after it."""
    text = options.get(option)
    if text is None:
        return default
    found = re.fullmatch(r"\s*(\d+)\s*([km]?)b?\s*", text.lower())
    if found is None:
        raise PlanError(f"{option}: {text!r} is no number")
    return int(found[1]) * _SIZES[found[2]]
