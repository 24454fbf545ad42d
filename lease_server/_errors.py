"""The refusals of the lease service alone, and of a storage that is away (DESIGN §3).

::

    RiflError
     ├─ TooManyClients   TooManySessions   TooManyRefusals
     └─ StoreUnavailable
         └─ StorageUnavailable

What it refuses as calls are refused, too, is in ``_rifl_ground.refusals``.
"""

from __future__ import annotations

from _rifl_ground.refusals import Outcome, RiflError, StoreUnavailable

__all__ = ["StorageUnavailable", "TooManyClients", "TooManyRefusals", "TooManySessions"]


class TooManyClients(RiflError):
    """The server, or this caller on it, holds as many leases as it may; none was granted.

    Close clients that are not needed: docs/how-to/operations.md#what-one-caller-may-take.
    """

    reason = "TOO_MANY"
    code_name = "RESOURCE_EXHAUSTED"
    outcome = Outcome.NOT_EXECUTED


class TooManySessions(RiflError):
    """The server, or this peer on it, holds as many sessions as it may.

    Close sessions: docs/how-to/operations.md#what-one-caller-may-take.
    """

    reason = "TOO_MANY"
    code_name = "RESOURCE_EXHAUSTED"
    outcome = Outcome.NOT_EXECUTED


class TooManyRefusals(RiflError):
    """A heartbeat stream sent too much that was refused, or too many are open.

    Nothing: the SDK renews by unary calls.
    """

    reason = "TOO_MANY"
    code_name = "RESOURCE_EXHAUSTED"
    outcome = Outcome.NOT_EXECUTED


class StorageUnavailable(StoreUnavailable):
    """The storage could not be read or written; what was asked for did not happen.

    One exception: a write whose acknowledgement was lost may stand. Every
    request of the lease service can therefore be sent again safely.
    """
