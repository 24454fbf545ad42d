"""A client with no SDK: raw bytes, headers made by hand, answers taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import grpc

from lease_server.v1 import lease_server_pb2
from rifl._grpc.status import read_error_info
from rifl.v1 import rifl_pb2

__all__ = ["SESSION_SECRET", "RawClient", "Reply", "header", "read"]

# What sessions of channels without certificates open by.
SESSION_SECRET = b"the secret of every test's sessions"

_LEASES = "/lease_server.v1.LeaseServer"
_RESOLVE = "/rifl.v1.Outcomes/Resolve"
_TIMEOUT_S = 20.0
_OPTIONS = (("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1))


@dataclass(frozen=True, slots=True)
class Reply:
    """All of an answer. ``outcome`` and ``reason`` are empty where nothing was said."""

    code: grpc.StatusCode
    details: str
    response: bytes | None
    initial: tuple[tuple[str, str | bytes], ...]
    trailing: tuple[tuple[str, str | bytes], ...]
    outcome: str
    reason: str
    info: dict[str, str]

    @property
    def ok(self) -> bool:
        """Whether the status is OK."""
        return self.code is grpc.StatusCode.OK

    @property
    def refusal(self) -> tuple[str, str, str]:
        """Code, reason and outcome: a row of the table in DESIGN §3."""
        return self.code.name, self.reason, self.outcome


def header(
    client_id: int,
    token: bytes,
    seq: int | None = None,
    *,
    key: bytes | None = None,
    first: int = 0,
    completed: tuple[int, ...] = (),
    attempt: int = 1,
    **more: Any,
) -> bytes:
    """Return a ``rifl-bin`` value, right or wrong."""
    message = rifl_pb2.CallHeader(
        client_id=client_id,
        token=token,
        first_incomplete=first,
        completed=completed,
        attempt=attempt,
        **more,
    )
    if seq is not None:
        message.seq = seq
    if key is not None:
        message.key = key
    return message.SerializeToString()


def read(call: Any) -> Reply:
    """Take a finished sync call, or the error it raised, apart."""
    try:
        response = call.result()
    except grpc.RpcError:
        response = None
    trailing = _pairs(call.trailing_metadata())
    info = read_error_info(trailing)
    return Reply(
        call.code(),
        call.details() or "",
        response,
        _pairs(call.initial_metadata()),
        trailing,
        str(dict(trailing).get("rifl-outcome", "")),
        info.reason if info else "",
        info.metadata if info else {},
    )


def _pairs(metadata: Any) -> tuple[tuple[str, str | bytes], ...]:
    return tuple((key, value) for key, value in metadata or ())


class RawClient:
    """One channel, and one client id once it has asked for it."""

    def __init__(
        self, address: str, *, grant: bool = True, options: Sequence[tuple[str, int]] = ()
    ) -> None:
        self.channel = grpc.insecure_channel(address, options=[*_OPTIONS, *options])
        self.client_id = 0
        self.token = b""
        self.term_ms = 0
        self.store = 0
        if grant:
            self.grant()

    def grant(self) -> None:
        """Ask for a client id."""
        raw = self.channel.unary_unary(f"{_LEASES}/Grant")(
            b"", timeout=_TIMEOUT_S, wait_for_ready=True
        )
        reply = lease_server_pb2.GrantReply.FromString(raw)
        self.client_id, self.token, self.term_ms = reply.client_id, reply.token, reply.term_ms
        self.store = reply.store

    def header(self, seq: int | None = None, **more: Any) -> bytes:
        """Return a header of this client's."""
        return header(
            more.pop("client_id", self.client_id), more.pop("token", self.token), seq, **more
        )

    def future(
        self,
        method: str,
        request: bytes,
        seq: int | None = None,
        *,
        raw: bytes | None = None,
        bare: bool = False,
        timeout: float = _TIMEOUT_S,
        metadata: tuple[tuple[str, str | bytes], ...] = (),
        **more: Any,
    ) -> Any:
        """Begin a call; ``raw`` is a header as it stands, ``bare`` means none."""
        if not bare:
            value = self.header(seq, **more) if raw is None else raw
            metadata = (*metadata, ("rifl-bin", value))
        return self.channel.unary_unary(method).future(
            request, timeout=timeout, metadata=metadata, wait_for_ready=True
        )

    def call(self, method: str, request: bytes, seq: int | None = None, **more: Any) -> Reply:
        """Make a call and take its answer apart."""
        return read(self.future(method, request, seq, **more))

    def resolve(self, seq: int | None = None, key: bytes | None = None, **more: Any) -> Any:
        """Ask what became of a call: a ``ResolveReply``, or a ``Reply`` for a refusal."""
        request = rifl_pb2.ResolveRequest(
            client_id=more.get("client_id", self.client_id),
            token=more.get("token", self.token),
            method=more.get("method", ""),
        )
        if seq is not None:
            request.seq = seq
        if key is not None:
            request.key = key
        reply = self.call(_RESOLVE, request.SerializeToString(), bare=True)
        if reply.response is None:
            return reply
        return rifl_pb2.ResolveReply.FromString(reply.response)

    def renew(self, client_id: int, token: bytes, store: int) -> Reply:
        """Send a heartbeat."""
        request = lease_server_pb2.RenewRequest(client_id=client_id, token=token, store=store)
        return self.call(f"{_LEASES}/Renew", request.SerializeToString(), bare=True)

    def acknowledge(self, first: int, completed: Sequence[int] = ()) -> Reply:
        """Send a heartbeat that says what this client no longer wants."""
        request = lease_server_pb2.RenewRequest(
            client_id=self.client_id, token=self.token, first_incomplete=first, completed=completed
        )
        return self.call(f"{_LEASES}/Renew", request.SerializeToString(), bare=True)

    def release(self) -> Reply:
        """Give the client id back."""
        request = lease_server_pb2.ReleaseRequest(client_id=self.client_id, token=self.token)
        return self.call(f"{_LEASES}/Release", request.SerializeToString(), bare=True)

    def open_session(self, name: str, secret: bytes = SESSION_SECRET) -> None:
        """Take the id of a named session for this client's own."""
        request = lease_server_pb2.OpenSessionRequest(name=name, secret=secret)
        raw = self.channel.unary_unary(f"{_LEASES}/OpenSession")(
            request.SerializeToString(), timeout=_TIMEOUT_S
        )
        reply = lease_server_pb2.OpenSessionReply.FromString(raw)
        self.client_id, self.token = reply.client_id, reply.token

    def try_session(self, name: str, secret: bytes = SESSION_SECRET) -> Reply:
        """Ask for a named session, which may be refused."""
        request = lease_server_pb2.OpenSessionRequest(name=name, secret=secret)
        return self.call(f"{_LEASES}/OpenSession", request.SerializeToString(), bare=True)

    def close_session(self, name: str, secret: bytes = SESSION_SECRET) -> Reply:
        """Close a named session."""
        request = lease_server_pb2.CloseSessionRequest(name=name, secret=secret)
        return self.call(f"{_LEASES}/CloseSession", request.SerializeToString(), bare=True)

    def close(self) -> None:
        """Close the channel."""
        self.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
