"""The options of the sinks and of ``call``, checked; no secret is among them.

Options end up in plans, event logs and checkpoints, so what is secret is named by
a file or an environment variable that each process reads for itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rifl.spark._errors import PlanError
from rifl.spark._naming import batch_session
from rifl.spark._parsing import flag, names, optional_seconds, pairs, rate, size, text_of

# Spark's own, which reach every sink.
_SPARKS = {"checkpointlocation", "queryname"}
_PREFIXES = ("metadataenv.", "metadatafile.")
_NAMES = (
    *("target", "method", "key", "session", "name", "retention", "closeSession", "adopt"),
    *(
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
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """One write, as asked for. Picklable; ``repr`` holds nothing secret.

    ``timeout_s`` bounds a row's call with all its retries, and each batched call that
    carries it; ``batch_rows`` and ``batch_bytes`` bound a batched call's size, which grows
    and shrinks so that one takes ``batch_time_s``; ``in_flight`` is how many a task has under
    way: together they bound what a worker holds beside Spark's own Arrow batch.
    ``rows_per_second`` is each task's.
    """

    connection: ConnectionOptions
    method: str
    key: tuple[str, ...]
    session: str | None = None
    name: str | None = None
    retention_s: float | None = None
    close_session: bool = False
    adopt: bool = False
    descriptor_file: str | None = None
    module: str | None = None
    ignored: tuple[str, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    batch_rows: int = 500
    batch_bytes: int = 1 << 20
    batch_time_s: float = 1.0
    in_flight: int = 4
    rows_per_second: float | None = None
    timeout_s: float = 60.0
    progress_s: float = 10.0
    dead_letter: str | None = None
    report: str | None = None
    metrics: str | None = None

    def __post_init__(self) -> None:
        """Check numbers and names against each other; raises ``PlanError``."""
        if min(self.batch_rows, self.batch_bytes, self.in_flight) < 1 or self.timeout_s <= 0:
            raise PlanError("batchRows, batchBytes, inFlight and timeout must be positive")
        if self.in_flight > 16:
            raise PlanError("inFlight is at most 16")
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
        if self.close_session and self.session is None:
            raise PlanError("closeSession goes with a session of your own name")

    @classmethod
    def of(
        cls, target: str, method: str, key: str | Sequence[str], options: Mapping[str, Any]
    ) -> WriteOptions:
        """Read Python arguments; names with underscores or in their own spelling.

        Lists and flags may be Python's. Raises ``PlanError``.
        """
        given = {
            name if "." in name else name.replace("_", ""): text_of(value)
            for name, value in options.items()
            if value is not None
        }
        keys = [key] if isinstance(key, str) else list(key)
        return cls.read({**given, "target": target, "method": method, "key": json.dumps(keys)})

    @classmethod
    def read(cls, given: Mapping[str, str]) -> WriteOptions:
        """Read a sink's options; names in any case. Raises ``PlanError``."""
        options = {name.lower(): value for name, value in given.items()}
        _check_names(options)
        target, method = options.get("target"), options.get("method")
        if not target:
            raise PlanError('no target: option("target", "host:port")')
        if not method:
            raise PlanError('no method: option("method", "/package.Service/Method")')
        return cls(
            connection=_connection(target, options),
            method=method,
            key=names("key", options),
            session=options.get("session") or None,
            name=options.get("name") or None,
            retention_s=optional_seconds("retention", options),
            close_session=flag("closesession", options),
            adopt=flag("adopt", options),
            descriptor_file=options.get("descriptorfile"),
            module=options.get("module"),
            ignored=names("ignorecolumns", options),
            fields=pairs("fields", options),
            batch_rows=size("batchrows", options, 500),
            batch_bytes=size("batchbytes", options, 1 << 20),
            batch_time_s=optional_seconds("batchtime", options) or 1.0,
            in_flight=size("inflight", options, 4),
            rows_per_second=rate("rowspersecond", options),
            timeout_s=optional_seconds("timeout", options) or 60.0,
            progress_s=optional_seconds("progress", options) or 10.0,
            dead_letter=options.get("deadletter"),
            report=options.get("report"),
            metrics=options.get("metrics"),
        )


def _connection(target: str, options: Mapping[str, str]) -> ConnectionOptions:
    metadata: list[tuple[str, str]] = []
    for name, value in sorted(options.items()):
        if name.startswith(_PREFIXES):
            prefix, _, header = name.partition(".")
            metadata.append((header, f"{prefix.removeprefix('metadata')}:{value}"))
    files = [options.get(f"tls{part}file") for part in ("roots", "cert", "key")]
    if (files[1] is None) != (files[2] is None):
        raise PlanError("tlsCertFile and tlsKeyFile go together")
    asked = flag("tls", options)
    if any(files) and "tls" in options and not asked:
        raise PlanError("tls is false and TLS files are named")
    return ConnectionOptions(
        target=target,
        tls=asked or any(files),
        roots_file=files[0],
        cert_file=files[1],
        key_file=files[2],
        target_name=options.get("tlstargetname"),
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
