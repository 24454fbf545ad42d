"""Requests of a client for its lease: which one is due, and what its answer means (DESIGN §5).

The threads' keeper, the event loop's and the simulator's send what ``next_request`` gives, one
at a time, and tell ``replied`` or ``failed`` of it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lease_server.v1 import lease_server_pb2 as pb
from rifl._client.errors import Status
from rifl._client.state import ClientState
from rifl._grpc.codes import NO_STREAM
from rifl.core._calling.client_lease import ClientLease
from rifl.core._calling.client_session import LeaseStep

# One request of the lease server's; a failed one is repeated.
LEASE_TIMEOUT_S = 5.0
REPLIES: dict[str, Any] = {
    "Grant": pb.GrantReply,
    "OpenSession": pb.OpenSessionReply,
    "Renew": pb.RenewReply,
}


class LeaseRequest(NamedTuple):
    """One request: the lease service's method, the message, and how long it may take.

    ``lease`` is the one that is renewed, None where one is asked for. ``streamed``: by a
    message on the heartbeat stream, where there is one.
    """

    method: str
    message: Any
    timeout_s: float
    sent_at: float
    lease: ClientLease | None = None
    streamed: bool = False


def next_request(state: ClientState) -> LeaseRequest | float | None:
    """Return the request that is due, else when to look again, None: when woken."""
    step, at = state.lease_step()
    lease = state.session.lease
    if step is LeaseStep.WAIT:
        return at
    now = state.now()
    if step is LeaseStep.RENEW and lease is not None:
        message: Any = pb.RenewRequest(
            client_id=lease.client_id, token=lease.token, store=lease.store
        )
        timeout_s = min(LEASE_TIMEOUT_S, lease.term_s / 3)
        return LeaseRequest("Renew", message, timeout_s, now, lease, lease.streams)
    if step is LeaseStep.RENEW:
        # Lost in between.
        return now
    settings = state.settings
    if settings.session_name is None:
        return LeaseRequest("Grant", pb.GrantRequest(), LEASE_TIMEOUT_S, now)
    message = pb.OpenSessionRequest(
        name=settings.session_name,
        retention_ms=int((settings.session_retention_s or 0.0) * 1000),
        secret=settings.session_secret,
    )
    return LeaseRequest("OpenSession", message, LEASE_TIMEOUT_S, now)


def replied(state: ClientState, request: LeaseRequest, reply: Any) -> None:
    """Take the answer to a request."""
    if request.lease is None:
        state.granted(reply, request.sent_at)
    else:
        state.renewed(request.lease, reply, request.sent_at)


def failed(state: ClientState, request: LeaseRequest, status: Status) -> None:
    """Take the error of a request."""
    lease = request.lease
    if lease is None:
        state.grant_failed(status)
        return
    if request.streamed and status.code() in NO_STREAM:
        # There is no heartbeat stream for us: unary calls renew as well.
        lease.streams = False
    state.renewal_failed(lease, status)
