"""Channels of the driver and of workers; each process reads TLS files and metadata itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from rifl._client import Channel, RetryPolicy
from rifl._client.grpc_channels import open_sync
from rifl._client.settings import DEFAULT_GROUP_PATH
from rifl._client.sync_channel import open_channel
from rifl.core._shared.observer import EndedCall, Observer
from rifl.spark._errors import PlanError
from rifl.spark._options import ConnectionOptions

# Of a reply, a batched call's included.
MAX_MESSAGE_BYTES = 64 << 20


class WorkerChannel:
    """A worker's channel in one session; ``retries`` counts attempts after the first."""

    def __init__(
        self,
        connection: ConnectionOptions,
        session: str,
        retention_s: float | None,
        writer: bytes = b"",
    ) -> None:
        self._retries = _Retries()
        self.channel: Channel = open_channel(
            connection.target,
            _credentials(connection),
            {
                "options": _options(connection),
                "interceptors": _interceptors(connection),
                "retry": RetryPolicy(max_elapsed_s=None),
                "session": session,
                "session_retention": retention_s,
                "plaintext_secrets": connection.plaintext_secrets,
                "observer": self._retries,
                # A witness would keep what a leader refuses to a writer that was followed.
                "group_path": "synced" if writer else DEFAULT_GROUP_PATH,
            },
            writer,
        )

    @property
    def store(self) -> int:
        """The number of the store that the session's client id is of."""
        return self.channel.session._client.session.store

    @property
    def retries(self) -> int:
        """How often calls of this channel were sent once more."""
        return self._retries.count


class _Retries(Observer):
    def __init__(self) -> None:
        self.count = 0

    def call_ended(self, ended: EndedCall, begun: Any) -> None:
        self.count += max(0, ended.attempts - 1)

    def batch_ended(self, ended: Sequence[EndedCall], begun: Any) -> None:
        self.count += sum(each.attempts for each in ended) - len(ended)


# One for each process and session. Worker processes are forked from a daemon that
# never used gRPC, and gRPC must not be used before a fork: so made on first use.
_channels: dict[tuple[int, ConnectionOptions, str, bytes], WorkerChannel] = {}


def worker_channel(
    connection: ConnectionOptions,
    session: str,
    retention_s: float | None,
    timeout_s: float,
    writer: bytes = b"",
) -> WorkerChannel:
    """Return this process's channel in the session, opened on first use.

    ``writer``: whose calls the session takes (DESIGN §5), empty if all.

    A worker runs one task at a time, so a channel of another session, which an
    earlier task used, is closed. Raises ``CallError`` if there is no session within
    ``timeout_s``.
    """
    wanted = (os.getpid(), connection, session, writer)
    found = _channels.get(wanted)
    if found is None:
        found = WorkerChannel(connection, session, retention_s, writer)
        try:
            found.channel.session.open(timeout_s)
        except BaseException:
            found.channel.close()
            raise
        # Only now, so that the new one shares the connection.
        for key in [key for key in _channels if key[1] == connection]:
            _channels.pop(key).channel.close()
        _channels[wanted] = found
    return found


def drop_channel(connection: ConnectionOptions, session: str, writer: bytes = b"") -> None:
    """Close this process's channel in the session, if there is one: the next is fresh."""
    found = _channels.pop((os.getpid(), connection, session, writer), None)
    if found is not None:
        found.channel.close()


def open_plain(connection: ConnectionOptions) -> grpc.Channel:
    """Open a channel for the driver's own questions."""
    options = _options(connection)
    credentials = _credentials(connection)
    channel = open_sync(connection.target, credentials, options, None)
    interceptors = _interceptors(connection)
    return grpc.intercept_channel(channel, *interceptors) if interceptors else channel


def _options(connection: ConnectionOptions) -> list[tuple[str, Any]]:
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
    ]
    if connection.target_name is not None:
        options.append(("grpc.ssl_target_name_override", connection.target_name))
    return options


def _credentials(connection: ConnectionOptions) -> grpc.ChannelCredentials | None:
    if not connection.tls:
        return None
    return grpc.ssl_channel_credentials(
        _read(connection.roots_file), _read(connection.key_file), _read(connection.cert_file)
    )


def _read(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise PlanError(f"a file of the TLS options cannot be read: {error}") from error


def _interceptors(connection: ConnectionOptions) -> list[Any]:
    if not connection.metadata:
        return []
    for _, source in connection.metadata:
        _secret(source)
    return [_Metadata(connection.metadata)]


def _secret(source: str) -> str:
    kind, _, where = source.partition(":")
    if kind == "env":
        value = os.environ.get(where)
        if value is None:
            raise PlanError(f"metadataEnv: the environment variable {where} is not set here")
        return value
    try:
        return Path(where).read_text().strip()
    except OSError as error:
        raise PlanError(f"metadataFile: {error}") from error


class _Details(NamedTuple):
    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class _Metadata(
    grpc.UnaryUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds entries to every call, the lease server's included.

    Their values are read each time: tokens are exchanged while a worker lives.
    """

    def __init__(self, sources: tuple[tuple[str, str], ...]) -> None:
        self._sources = sources

    def intercept_unary_unary(
        self, continuation: Callable[..., Any], details: Any, request: Any
    ) -> Any:
        return continuation(self._added(details), request)

    def intercept_stream_stream(
        self, continuation: Callable[..., Any], details: Any, requests: Any
    ) -> Any:
        return continuation(self._added(details), requests)

    def _added(self, details: Any) -> _Details:
        return _Details(
            details.method,
            details.timeout,
            (*(details.metadata or ()), *((name, _secret(at)) for name, at in self._sources)),
            details.credentials,
            getattr(details, "wait_for_ready", None),
            getattr(details, "compression", None),
        )
