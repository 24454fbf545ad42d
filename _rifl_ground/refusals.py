"""The refusals that more than one package raises, and their root (DESIGN §3).

``RiflError`` is the root of the one tree of refusals: what the lease service and the calls
refuse alike is here, what only calls are refused for is in ``rifl.core``, and what only the
lease service refuses is in ``lease_server``.

Each class carries the ``reason`` of the wire's ErrorInfo, the ``code_name`` of its gRPC status
and the ``outcome``: whether the call can have run. Instances pickle.
"""

from __future__ import annotations

import enum
from typing import Any, ClassVar, NamedTuple


class Outcome(enum.Enum):
    """The label on an answer or an error; its value is the wire's word.

    Only what is known not to have run is ``NOT_EXECUTED``; a call that may have
    run is ``UNKNOWN``.
    """

    EXECUTED = "executed"
    REPLAYED = "replayed"
    NOT_EXECUTED = "not-executed"
    UNKNOWN = "unknown"


class Denied(NamedTuple):
    """Why a caller is not let in: labels of a metric, so words of the code alone.

    ``kind``: what it had to show: "session_secret", "client_token", "group_token", "log_token",
    "target_token", "certificate" or "address"; or the "right" that it lacks. ``reason``:
    "missing", "wrong", "unnamed", "unlisted"; of a right, which one.
    """

    kind: str
    reason: str


class RiflError(Exception):
    """The root; ``str()`` is the whole message, of which callers may be told less (``told``)."""

    # No names that gRPC's errors have otherwise: the client raises both in one.
    reason: str = "RIFL"
    code_name: ClassVar[str] = "INTERNAL"
    outcome: Outcome = Outcome.UNKNOWN
    # Of a key, which other callers share, a refusal tells ``outcome`` only if the store
    # has looked it up, or if there is no such key; else the outcome is unknown.
    of_the_key: ClassVar[bool] = False
    # Told to callers in place of a message that may name the server's store, files and addresses.
    told: str = ""
    # On a server: what a caller lacks who is not let in.
    denied: Denied | None = None
    # On a server: the ``Call`` that was refused, if it is not at hand otherwise.
    arrival: Any = None
    # The store that refuses, if it is not the one that the call names; 0: it is.
    store = 0

    def may_have_run(self) -> None:
        """Say of this refusal, not of its class, that its call may have run, or may yet."""
        self.outcome = Outcome.UNKNOWN


class LeaseExpired(RiflError):
    """The client id is unknown or over, and so is the call.

    This attempt did not run. Whether an earlier one did can no longer be known, so the label is
    unknown. A client that knows there was none may say more.

    Look at the data. The SDK sends again by itself where that is safe.
    """

    reason = "LEASE_EXPIRED"
    code_name = "FAILED_PRECONDITION"
    outcome = Outcome.UNKNOWN


class SessionClosed(RiflError):
    """The named session is closed, or its retention is over.

    Open another.
    """

    reason = "SESSION_CLOSED"
    code_name = "FAILED_PRECONDITION"
    outcome = Outcome.UNKNOWN


class NotYours(RiflError):
    """The token is wrong, or the id belongs to another peer. Reveals nothing.

    Look at which certificate the client has, and which server it calls.
    """

    reason = "NOT_YOURS"
    code_name = "PERMISSION_DENIED"
    outcome = Outcome.NOT_EXECUTED
    denied = Denied("client_token", "wrong")

    def __init__(self, message: str = "", denied: Denied | None = None) -> None:
        super().__init__(message)
        if denied is not None:
            self.denied = denied


class StoreMismatch(RiflError):
    """Another store granted the client id: two stores are behind one address.

    This attempt did not run. Whether the call ran where the other records are is not known here: a
    proxy may have sent its first attempt there.

    Look at the data. Give the replicas one store:
    docs/how-to/operations.md#two-stores-behind-one-address.
    """

    reason = "STORE_MISMATCH"
    code_name = "FAILED_PRECONDITION"
    outcome = Outcome.UNKNOWN


class ForkedProcess(RiflError):
    """The channel was made before a fork; from a server: its ``Deduplicator`` was.

    From a server the outcome is unknown.

    Connect, or make the ``Deduplicator``, in the child:
    docs/how-to/operations.md#servers-that-fork.
    """

    reason = "FORKED_PROCESS"
    code_name = "FAILED_PRECONDITION"
    outcome = Outcome.NOT_EXECUTED


class BadHeader(RiflError):
    """The header, or a lease's request, breaks the protocol. No state was created.

    Fix the client: docs/reference/protocol.md.
    """

    reason = "BAD_HEADER"
    code_name = "INVALID_ARGUMENT"
    outcome = Outcome.NOT_EXECUTED
    of_the_key = True


class NotLeader(RiflError):
    """Another server leads; nothing ran here. ``leader`` is its address, if it is known.

    Nothing: the SDK retries.
    """

    reason = "NOT_LEADER"
    code_name = "UNAVAILABLE"
    outcome = Outcome.NOT_EXECUTED

    def __init__(self, message: str = "", leader: str = "") -> None:
        super().__init__(message, leader)
        self.leader = leader

    def __str__(self) -> str:
        return str(self.args[0])


class StoreUnavailable(RiflError):
    """The store could not be reached or written before the handler started.

    Look at the store, and at the server's disk. The SDK retries.
    """

    reason = "STORE_UNAVAILABLE"
    code_name = "UNAVAILABLE"
    outcome = Outcome.NOT_EXECUTED
    told = "the server's store does not take this now: send it again; the server's events say why"


def caller_text(error: BaseException) -> str:
    """Return what a caller is told of an error: its class's ``told``, or else its message.

    The one place that decides: messages of trouble with a store may name hosts, users and files.
    """
    told: str = getattr(error, "told", "")
    return told or str(error)
