"""Errors of the lease server, one class for each reason (DESIGN §3).

::

    LeaseError
     ├─ BadRequest       NotYours         LeaseExpired     SessionClosed
     ├─ TooManyClients   TooManySessions  TooManyRefusals  StorageUnavailable
     └─ ForkedProcess    StoreMismatch

Each class carries the ``reason`` of the wire's ErrorInfo and the gRPC status
``code`` it travels under; ``str()`` is the status message. Instances pickle.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import grpc

__all__ = [
    "BadRequest",
    "ForkedProcess",
    "LeaseError",
    "LeaseExpired",
    "NotYours",
    "SessionClosed",
    "StorageUnavailable",
    "StoreMismatch",
    "TooManyClients",
    "TooManyRefusals",
    "TooManySessions",
]


class LeaseError(Exception):
    """The root. ``retry_after_s`` is what RetryInfo says, seconds; None for no retry.

    ``info``: what else ErrorInfo says.
    """

    reason: ClassVar[str] = "LEASE"
    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL
    retry_after_s: ClassVar[float | None] = None
    info: Mapping[str, str] = MappingProxyType({})


class BadRequest(LeaseError):
    """The request breaks a rule of the wire format. No state was created."""

    reason = "BAD_HEADER"
    code = grpc.StatusCode.INVALID_ARGUMENT


class LeaseExpired(LeaseError):
    """The client id is not known here any more, for ever."""

    reason = "LEASE_EXPIRED"
    code = grpc.StatusCode.FAILED_PRECONDITION


class SessionClosed(LeaseError):
    """The named session is closed, its retention is over, or nobody opened it."""

    reason = "SESSION_CLOSED"
    code = grpc.StatusCode.FAILED_PRECONDITION


class NotYours(LeaseError):
    """The token is wrong, or the id is bound to another peer. Reveals nothing."""

    reason = "NOT_YOURS"
    code = grpc.StatusCode.PERMISSION_DENIED


class ForkedProcess(LeaseError):
    """The authority, or its storage, was made in a parent process; make it again here."""

    reason = "FORKED_PROCESS"
    code = grpc.StatusCode.FAILED_PRECONDITION


class StoreMismatch(LeaseError):
    """The id belongs to another set of records: two stores are behind one address."""

    reason = "STORE_MISMATCH"
    code = grpc.StatusCode.FAILED_PRECONDITION


class TooManyClients(LeaseError):
    """The server holds as many leases as it may; none was granted."""

    reason = "TOO_MANY"
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    retry_after_s = 5.0


class TooManySessions(LeaseError):
    """The server, or this peer on it, holds as many sessions as it may."""

    reason = "TOO_MANY"
    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class TooManyRefusals(LeaseError):
    """A heartbeat stream sent too much that was refused, or too many are open."""

    reason = "TOO_MANY"
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    retry_after_s = 5.0


class StorageUnavailable(LeaseError):
    """The storage could not be read or written; what was asked for did not happen.

    One exception: a write whose acknowledgement was lost may stand. Every
    request of the lease service can therefore be sent again safely.
    """

    reason = "STORE_UNAVAILABLE"
    code = grpc.StatusCode.UNAVAILABLE
    retry_after_s = 1.0
