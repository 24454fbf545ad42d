"""The errors of the client: ``grpc.RpcError`` with an identity and an outcome (DESIGN §3).

::

    grpc.RpcError
     └─ grpc.aio.AioRpcError
         └─ CallError    any failed call; a handler's own error answer
             └─ one for each reason, which is also the rifl.core error of that reason

``except grpc.RpcError``, ``except grpc.aio.AioRpcError`` and, say, ``except
rifl.core.LeaseExpired`` all catch what they name, on sync and aio channels alike. Web
frameworks take the handler of the first class in an error's ``__mro__``: there the refusal
comes before ``CallError``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import grpc
import grpc.aio

from _rifl_ground.refusals import Outcome
from rifl._grpc.status import DETAILS_KEY, saying
from rifl.core._calling.answer import may_call_again
from rifl.core._shared.errors import ReentrantCall, RiflError
from rifl.core._shared.identity import RpcId
from rifl.core._shared.reasons import REASONS

__all__ = [
    "ANOTHER_STORE",
    "NOT_HOSTED",
    "CallError",
    "Status",
    "agreeing",
    "call_error",
    "explained",
    "may_retry",
    "plain_error",
    "reentrant",
    "undecodable",
    "unserialisable",
]


EXPIRED = "Deadline Exceeded, not sent: the timeout is not positive"
# What the server's owner is to look for.
ANOTHER_WRITER = "the session takes the calls of another writer, and no others"
ANOTHER_STORE = (
    "the store is not the one that granted the client id before: two stores are behind "
    "one address, or the store was replaced"
)
NOT_HOSTED = (
    "The server does not host the lease service (Deduplicator.add_to_server), or a proxy in front "
    "of it answered"
)
_NOT_LET_IN = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


# What grpc/_channel.py says where it ends a call by itself.
_ENDED_HERE = frozenset(
    {
        "Exception deserializing response!",
        "Exception iterating requests!",
        "Exception serializing request!",
        "Locally cancelled by application!",
        "Cancelled upon garbage collection!",
    }
)
_UNKNOWN_CODE = "Server sent unknown code"


class Status(Protocol):
    """The final status of an attempt: what gRPC's errors and finished calls offer."""

    def code(self) -> Any:
        """Return the ``grpc.StatusCode``."""

    def details(self) -> Any:
        """Return the text, str or None."""

    def initial_metadata(self) -> Any:
        """Return the initial metadata, or None."""

    def trailing_metadata(self) -> Any:
        """Return the trailing metadata, or None."""

    def debug_error_string(self) -> Any:
        """Return gRPC's own account, str or None."""


class CallError(grpc.aio.AioRpcError, grpc.Call, grpc.Future):  # type: ignore[type-arg]
    """A call that failed.

    ``rpc_id`` is its identity, None if it never had one; ``key`` is its ``rifl.key``, None
    if it has none. ``outcome`` tells whether it ran: after UNKNOWN,
    ``channel.session.resolve(rpc_id)`` may still find out.
    ``reason`` is the ErrorInfo reason of a refusal of rifl's, empty for a
    handler's own error answer and for what transports, proxies and deadlines
    report.

    A call that may have run is raised with FAILED_PRECONDITION, which no retry policy
    repeats; ``original_code`` is then the code that it ended with, such as
    DEADLINE_EXCEEDED. Elsewhere it is what ``code()`` returns.

    Also a finished ``grpc.Call`` and ``grpc.Future``, as gRPC's own errors are,
    since outer interceptors use them so. Immutable, picklable, any thread.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        details: str | None = None,
        *,
        rpc_id: RpcId | None = None,
        outcome: Outcome = Outcome.UNKNOWN,
        reason: str = "",
        initial_metadata: Any = None,
        trailing_metadata: Any = None,
        debug_error_string: str | None = None,
        original_code: grpc.StatusCode | None = None,
        key: bytes | None = None,
    ) -> None:
        super().__init__(
            code,
            # As gRPC's own: who reads them iterates over them.
            () if initial_metadata is None else initial_metadata,  # type: ignore[arg-type]
            () if trailing_metadata is None else agreeing(trailing_metadata, code, details),  # type: ignore[arg-type]
            details,
            debug_error_string,
        )
        # What Exception itself shows, and old pickles and loggers read.
        self.args = (details,)
        self.rpc_id = rpc_id
        self.key = rpc_id.key if key is None and rpc_id is not None else key
        self.outcome = outcome
        self.reason = reason
        self.original_code = code if original_code is None else original_code

    if TYPE_CHECKING:
        # gRPC's bases say them differently, which would keep a checker from combining the class
        # with a refusal's.
        def code(self) -> grpc.StatusCode: ...
        def details(self) -> str: ...
        def initial_metadata(self) -> Any: ...
        def trailing_metadata(self) -> Any: ...

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def __str__(self) -> str:
        facts = [f"outcome {self.outcome.value}"]
        if self.reason:
            facts.insert(0, self.reason)
        if self.rpc_id is not None:
            facts.append(f"rpc {self.rpc_id}")
        if self.original_code is not self.code():
            facts.append(f"ended as {self.original_code.name}")
        return f"{self.code().name}: {self.details() or ''} ({', '.join(facts)})"

    def __reduce__(self) -> Any:
        return (
            _rebuild,
            (
                type(self),
                self.code().name,
                self.details(),
                {
                    "rpc_id": self.rpc_id,
                    "outcome": self.outcome,
                    "reason": self.reason,
                    "initial_metadata": _portable(self.initial_metadata()),
                    "trailing_metadata": _portable(self.trailing_metadata()),
                    "debug_error_string": self.debug_error_string(),
                    "original_code": self.original_code.name,
                    "key": self.key,
                },
            ),
        )

    # A finished call and future, as gRPC's own sync errors are.

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Return False: the call has ended."""
        return False

    def is_active(self) -> bool:
        """Return False: the call has ended."""
        return False

    def time_remaining(self) -> Any:
        """Return None: the call has ended."""
        return None

    def cancel(self) -> bool:
        """Return False: the call has ended."""
        return False

    def cancelled(self) -> bool:
        """Return False: it failed."""
        return False

    def running(self) -> bool:
        """Return False: the call has ended."""
        return False

    def done(self) -> bool:
        """Return True: the call has ended."""
        return True

    def result(self, timeout: float | None = None) -> Any:
        """Raise this error."""
        raise self

    def exception(self, timeout: float | None = None) -> Exception:
        """Return this error."""
        return self

    def traceback(self, timeout: float | None = None) -> TracebackType | None:
        """Return a traceback of this error."""
        try:
            raise self
        except CallError:
            return sys.exc_info()[2]

    def add_done_callback(self, fn: Callable[[Any], None]) -> None:
        """Call ``fn`` with this error at once."""
        fn(self)


def agreeing(trailing: Any, code: grpc.StatusCode, details: str | None) -> Any:
    """Return the metadata, with the error's own code in each rifl status in it."""
    told = [
        (key, saying(value, code, details or ""))
        if key == DETAILS_KEY and isinstance(value, bytes)
        else (key, value)
        for key, value in trailing
    ]
    if all(one[1] is other[1] for one, other in zip(told, trailing, strict=True)):
        return trailing
    return grpc.aio.Metadata(*told) if isinstance(trailing, grpc.aio.Metadata) else tuple(told)


def _portable(metadata: Iterable[Any] | None) -> Any:
    # The sync API's entries are of a class that only gRPC's extension knows.
    if metadata is None or isinstance(metadata, grpc.aio.Metadata):
        return metadata
    return tuple((key, value) for key, value in metadata)


def _rebuild(
    cls: type[CallError], code: str, details: str | None, fields: dict[str, Any]
) -> CallError:
    original = fields.pop("original_code", None)
    return cls(
        grpc.StatusCode[code],
        details,
        original_code=None if original is None else grpc.StatusCode[original],
        **fields,
    )


def _twin(refusal: type[RiflError]) -> type[CallError]:
    """Make the class of the calls that were refused so, which is that refusal's, too."""
    about = {"__doc__": f"See ``rifl.core.{refusal.__name__}``.", "__module__": __name__}
    # The refusal first, so that its handler outweighs one of ``CallError``; all that it says
    # of itself is what a call's error says.
    about |= {name: getattr(CallError, name) for name in ("__init__", "__str__")}
    return type(f"{refusal.__name__}Error", (refusal, CallError), about)


# One for each row of the core's table. Callers name the refusal, and mypy knows that a
# ``CallError`` may be one: ``isinstance(error, rifl.core.LeaseExpired)``.
_CLASSES = {
    reason: _twin(row.error) for reason, row in REASONS.items() if row.error is not RiflError
}
# Where pickle looks for them.
globals().update((twin.__name__, twin) for twin in _CLASSES.values())


def call_error(
    code: grpc.StatusCode,
    details: str | None,
    *,
    rpc_id: RpcId | None,
    outcome: Outcome,
    reason: str = "",
    status: Status | None = None,
    original_code: grpc.StatusCode | None = None,
    key: bytes | None = None,
) -> CallError:
    """Build the error of the class that ``reason`` names, with a status's metadata."""
    cls = _CLASSES.get(reason, CallError)
    if status is None:
        return cls(
            code,
            details,
            rpc_id=rpc_id,
            outcome=outcome,
            reason=reason,
            original_code=original_code,
            key=key,
        )
    return cls(
        code,
        details,
        rpc_id=rpc_id,
        outcome=outcome,
        reason=reason,
        initial_metadata=status.initial_metadata(),
        trailing_metadata=status.trailing_metadata(),
        # Others' outcomes may lack it, and gRPC's futures wait for it without an end if this
        # process failed them.
        debug_error_string=None
        if _ended_here(status)
        else getattr(status, "debug_error_string", str)(),
        original_code=original_code,
        key=key,
    )


def explained(status: Status, reason: str, method: str) -> str:
    """Return a status's text; if the server let the client's own request not in, what to do."""
    details = status.details() or ""
    # What did not leave this process says so itself.
    if reason or status.code() not in _NOT_LET_IN or isinstance(status, CallError):
        return details
    return (
        f"{details}. An interceptor of the server, or a proxy, refused {method}, which rifl's "
        "client calls by itself. Let it and its service pass, or send a token with it: by "
        "connect(metadata=), connect(interceptors=) or composite channel credentials"
    )


def may_retry(error: BaseException) -> bool:
    """Tell a loop around a call whether a new call is safe after this error, and of use.

    True if the call was not executed, for a reason that may pass; or if its outcome is unknown,
    it has a ``rifl.key``, and that may pass: the new call needs the same key. False for any other
    error, a handler's own among them. ``tenacity.retry_if_exception`` takes it; ``giveup`` of
    ``backoff`` is its negation.
    """
    if not isinstance(error, CallError):
        return False
    code, keyed = error.original_code.name, error.key is not None
    return may_call_again(code, error.outcome, error.reason, keyed=keyed)


def reentrant(text: str) -> CallError:
    """Build the error of a call that was made within one of the same channel; nothing was sent."""
    return call_error(
        grpc.StatusCode.FAILED_PRECONDITION,
        text,
        rpc_id=None,
        outcome=Outcome.NOT_EXECUTED,
        reason=ReentrantCall.reason,
    )


def _ended_here(status: Status) -> bool:
    """Whether gRPC's own code in this process made the status, and gives no account of it."""
    details = status.details() or ""
    return details in _ENDED_HERE or details.startswith(_UNKNOWN_CODE)


def undecodable(status: Status) -> bool:
    """Whether the stub's deserialiser rejected the reply: gRPC says so in these words."""
    internal: bool = status.code() is grpc.StatusCode.INTERNAL
    return internal and status.details() == "Exception deserializing response!"


def plain_error(status: Any) -> CallError:
    """Build the error of a call that was sent once, without an identity."""
    return call_error(
        status.code(), status.details(), rpc_id=None, outcome=Outcome.UNKNOWN, status=status
    )


def unserialisable() -> CallError:
    """Build the error of a request that its serialiser rejects; nothing was sent."""
    return CallError(
        grpc.StatusCode.INTERNAL,
        "Exception serializing request!",
        outcome=Outcome.NOT_EXECUTED,
    )
