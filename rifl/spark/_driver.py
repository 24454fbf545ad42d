"""The driver's questions to the server, before any row is sent and after the last."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Self

import grpc
from google.protobuf import descriptor_pool

from _rifl_ground.plaintext import why_not_sent
from lease_server.v1 import lease_server_pb2 as lease_pb
from lease_server.v1 import lease_server_pb2_grpc as lease_grpc
from rifl._client.answers import read_answer
from rifl._client.session_secret import find_session_secrets, shown
from rifl.core._calling.client_lease import MethodPatterns
from rifl.spark._connections import open_plain
from rifl.spark._descriptors import MethodShape, from_file, from_module, from_pool
from rifl.spark._errors import IdentityError, PlanError, SparkError
from rifl.spark._options import ConnectionOptions, WriteOptions
from rifl.spark._session_names import done_mark

_ATTEMPT_S = 10.0
_LONGEST_PAUSE_S = 1.0
_TRANSIENT = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}


class SessionGone(SparkError):
    """The session is closed, past its retention, or was never opened there."""


class WriteDriver:
    """The driver's side of one target. Blocks; one thread. A context manager.

    ``timeout_s`` bounds each question with its retries.
    """

    def __init__(self, connection: ConnectionOptions, timeout_s: float) -> None:
        self._target = connection.target
        self._connection = connection
        self._timeout_s = timeout_s
        self._channel = open_plain(connection)
        self._leases = lease_grpc.LeaseServerStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def shape(self, options: WriteOptions) -> MethodShape:
        """Find the method's messages where the options say; raises ``PlanError``."""
        if options.descriptor_file is not None:
            return from_file(options.method, options.descriptor_file)
        if options.module is not None:
            return from_module(options.method, options.module)
        return self._reflected(options.method)

    def store(self, method: str) -> int:
        """Check that the server deduplicates the method; return the number of its store.

        No other store has it, and a ``memory:`` store is another one after each start.
        """
        grant = self._ask(self._leases.Grant, lease_pb.GrantRequest())
        self._require_deduplicated(method, grant)
        # It ends by itself if this does not arrive.
        self._leases.Release.future(
            lease_pb.ReleaseRequest(client_id=grant.client_id, token=grant.token),
            timeout=_ATTEMPT_S,
        )
        return int(grant.store)

    def open_session(self, name: str, retention_s: float | None, method: str | None) -> int:
        """Open a session and return the number of its store; raises ``SessionGone``.

        ``method``, unless None, is one that the server must deduplicate.
        """
        request = lease_pb.OpenSessionRequest(
            name=name, retention_ms=int((retention_s or 0.0) * 1000), **shown(self._secrets())
        )
        opened = self._ask(self._leases.OpenSession, request)
        if method is not None:
            self._require_deduplicated(method, opened)
        return int(opened.store)

    def take_session(
        self, name: str, retention_s: float | None, writer: bytes, follows: bytes
    ) -> bytes:
        """Have a session take a writer's calls alone, if it takes those of ``follows`` (DESIGN §5).

        Return whose it takes then; raises ``SessionGone``.
        """
        request = lease_pb.OpenSessionRequest(
            name=name,
            retention_ms=int((retention_s or 0.0) * 1000),
            writer=writer,
            follows=follows,
            **shown(self._secrets()),
        )
        return bytes(self._ask(self._leases.OpenSession, request).writer)

    def _secrets(self) -> tuple[bytes, ...]:
        """Return the secrets that open sessions; raises ``PlanError`` if they may not go there."""
        secrets, connection = _session_secrets(), self._connection
        why = why_not_sent(
            "the sessions' secret",
            self._target,
            secure=connection.tls,
            allowed=connection.plaintext_secrets,
        )
        if secrets and why:
            raise PlanError(why.replace("plaintext_secrets", "plaintextSecrets"))
        return secrets

    def close_session(self, name: str) -> bool:
        """Close a session, for good; False if the server knows none of that name."""
        try:
            request = lease_pb.CloseSessionRequest(name=name, **shown(self._secrets()))
            self._ask(self._leases.CloseSession, request)
        except SessionGone:
            return False
        return True

    def end_session(self, name: str, store: int | None = None) -> None:
        """Close a session, also an unused one, which servers forget.

        Raises ``IdentityError`` if the server has another store than ``store`` by now.
        """
        if self.close_session(name):
            return
        with contextlib.suppress(SessionGone):
            found = self.open_session(name, None, None)
            if store not in (None, found):
                raise IdentityError(
                    f"the server at {self._target} has another store than this write was sent to "
                    "(a memory: store that was restarted?): it is not committed"
                )
            self.close_session(name)

    def set_marks(self, names: Iterable[str]) -> None:
        """Have these sessions be closed, each before the next; again is the same as once."""
        for name in names:
            with contextlib.suppress(SessionGone):
                self.open_session(name, None, None)
                self.close_session(name)

    def finish_session(self, name: str) -> None:
        """Close a session whose rows are all written, so that ``finished`` knows."""
        # First, and kept where this stops in between: what is open may be written again.
        self.end_session(done_mark(name))
        self.end_session(name)

    def finished(self, name: str) -> bool:
        """Tell whether a session that has ended was finished; False if it ran out."""
        return self.close_session(done_mark(name))

    def _require_deduplicated(self, method: str, reply: Any) -> None:
        patterns = MethodPatterns(tuple(reply.deduplicated), tuple(reply.not_deduplicated))
        if method not in patterns:
            raise PlanError(f"the server at {self._target} does not deduplicate {method}")

    def _reflected(self, method: str) -> MethodShape:
        from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
            ProtoReflectionDescriptorDatabase,
        )

        def look() -> MethodShape:
            database = ProtoReflectionDescriptorDatabase(self._channel)
            pool = descriptor_pool.DescriptorPool(database)
            return from_pool(method, pool.FindServiceByName, f"the server at {self._target}")

        try:
            found: MethodShape = self._retried(look)
        except grpc.RpcError as error:
            if _code(error) is grpc.StatusCode.UNIMPLEMENTED:
                raise PlanError(
                    f"the server at {self._target} has no reflection: name the messages by "
                    'option("descriptorFile") or option("module")'
                ) from error
            raise self._trouble(error) from error
        return found

    def _ask(self, stub: Any, request: Any) -> Any:
        try:
            return self._retried(lambda: stub(request, timeout=min(_ATTEMPT_S, self._timeout_s)))
        except grpc.RpcError as error:
            status: Any = error  # gRPC's errors of calls are statuses, too
            if read_answer(status).reason == "SESSION_CLOSED":
                raise SessionGone(_details(error)) from error
            if _code(error) is grpc.StatusCode.UNIMPLEMENTED:
                raise PlanError(
                    f"the server at {self._target} has no lease service (not wrapped "
                    f"by rifl): it answered {_details(error)!r}"
                ) from error
            raise self._trouble(error) from error

    def _retried(self, attempt: Callable[[], Any]) -> Any:
        end = time.monotonic() + self._timeout_s
        pause = threading.Event()
        tries = 0
        while True:
            try:
                return attempt()
            except grpc.RpcError as error:
                tries += 1
                wait_s = min(_LONGEST_PAUSE_S, 0.05 * 2**tries) * (0.5 + random.random() / 2)  # noqa: S311 - jitter
                if _code(error) not in _TRANSIENT or time.monotonic() + wait_s >= end:
                    raise
            pause.wait(wait_s)

    def _trouble(self, error: grpc.RpcError) -> PlanError:
        return PlanError(
            f"the server at {self._target} could not be asked within {self._timeout_s:g} s: "
            f"{_code(error).name}: {_details(error)}"
        )


# Spark's planner, commit and worker processes serve many micro-batches: a connection
# each. Keyed by process, since gRPC does not survive a fork.
_drivers: dict[tuple[int, ConnectionOptions], WriteDriver] = {}


def process_driver(connection: ConnectionOptions, timeout_s: float) -> WriteDriver:
    """Return a driver that lives as long as this process; for processes of Spark's."""
    wanted = (os.getpid(), connection)
    found = _drivers.get(wanted)
    if found is None:
        _drivers.clear()
        found = _drivers[wanted] = WriteDriver(connection, timeout_s)
    return found


def _session_secrets() -> tuple[bytes, ...]:
    # The environment's, here as on executors: never an option, which the plan would show.
    try:
        return find_session_secrets()
    except ValueError as error:
        raise PlanError(str(error)) from error


def _code(error: grpc.RpcError) -> grpc.StatusCode:
    code: grpc.StatusCode = error.code()
    return code


def _details(error: grpc.RpcError) -> str:
    return str(error.details())
