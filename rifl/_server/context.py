"""The contexts that handlers of deduplicated calls get (DESIGN §4).

They forward to gRPC's, but for what would be sent at once: an abort, a status
and metadata are only noted, so that the record is durable before anything leaves. And
whether the call is active, cancelled or done is said of the *call*, which goes on when its
caller leaves: a retry can claim its answer (``rifl.caller_gone`` tells of the transport).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import grpc
import grpc.aio

from _rifl_ground.loops import tell_loop
from rifl._stores.base import Store
from rifl._stores.errors import WrongDatabase
from rifl._stores.transactions import Transactions
from rifl._wire.labels import without_labels
from rifl._wire.metadata import is_sendable
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.policy import Kind
from rifl.core._shared.record import Metadata


class Serving:
    """What the handlers of one method have in common, for ``rifl.record``."""

    __slots__ = ("serialize", "store")

    def __init__(self, store: Store, serialize: Callable[[Any], bytes] | None) -> None:
        self.store = store
        self.serialize = serialize

    @property
    def transactions(self) -> Transactions:
        """What the store has for handlers' transactions; raises ``WrongDatabase`` for none."""
        if (transactions := self.store.transactions) is None:
            raise WrongDatabase("the store has no transactions that records can be part of")
        return transactions


class _LeftCaller:
    """What gRPC's context told of a caller before it left."""

    __slots__ = ("_address", "_auth", "_identities", "_key", "context")

    def __init__(self, context: Any) -> None:
        # Kept, so that no other context has its id meanwhile.
        self.context = context
        self._address = context.peer()
        self._identities = context.peer_identities()
        self._key = context.peer_identity_key()
        self._auth = context.auth_context()

    def peer(self) -> str:
        return self._address  # type: ignore[no-any-return]

    def peer_identities(self) -> Iterable[bytes] | None:
        return self._identities  # type: ignore[no-any-return]

    def peer_identity_key(self) -> str | None:
        return self._key  # type: ignore[no-any-return]

    def auth_context(self) -> Any:
        return self._auth


# By the id of gRPC's context.
_left: dict[int, _LeftCaller] = {}


def caller_leaves(context: Any) -> None:
    """Keep what an event loop's call tells of its caller, before gRPC's task of it ends.

    Its handler goes on, and may ask. gRPC frees a call that has ended, and a question about it
    then kills the process. ``forget_caller`` follows when the handler has ended.
    """
    if id(context) not in _left:
        # A context that an interceptor made may not tell; then nothing of it is gRPC's.
        with contextlib.suppress(Exception):
            _left[id(context)] = _LeftCaller(context)


def forget_caller(context: Any) -> None:
    """Keep what ``caller_leaves`` keeps no longer."""
    _left.pop(id(context), None)


class Noted:
    """What the handler has said so far."""

    # Most handlers say none of it: set on the class, not for every call. ``spoke``:
    # any of it was said.
    spoke = False
    noted_code: Any = None
    noted_details: str | None = None
    noted_initial: Metadata = ()
    noted_trailing: Metadata = ()
    aborted = False
    # The rifl.transaction that is open, which keeps what is recorded until its end.
    rifl_held: Any = None
    # Whether the handler's transaction is one of those: without a record it was rolled back.
    rifl_undone = False

    def __init__(self, inner: Any, attempt: Attempt, serving: Serving) -> None:
        self._inner = inner
        self.rifl_attempt = attempt
        self.rifl_serving = serving

    @property
    def rifl_transport(self) -> Any:
        """gRPC's own context."""
        return self._inner

    def __getattr__(self, name: str) -> Any:
        # What an interceptor outside put on the context for handlers to read.
        return getattr(self._inner, name)

    # -- noted ---------------------------------------------------------------------

    def set_code(self, code: Any) -> None:
        """Note the status code."""
        self.noted_code = code
        self.spoke = True

    def set_details(self, details: str) -> None:
        """Note the status details."""
        self.noted_details = _text(details)
        self.spoke = True

    def set_trailing_metadata(self, trailing_metadata: Iterable[Any]) -> None:
        """Note the trailing metadata."""
        self.noted_trailing = _metadata(trailing_metadata)
        self.spoke = True

    def code(self) -> Any:
        """Return the code set, None if none was."""
        return self.noted_code

    def _note_abort(self, code: Any, details: str) -> None:
        # gRPC fails an abort with OK, too.
        ok = code is grpc.StatusCode.OK
        self.noted_code = grpc.StatusCode.UNKNOWN if ok else code
        self.noted_details = "" if ok else _text(details)
        self.aborted = self.spoke = True

    # -- forwarded -------------------------------------------------------------------

    def invocation_metadata(self) -> Any:
        """Return what the caller sent."""
        return self._inner.invocation_metadata()

    def peer(self) -> str:
        """Return the caller's address."""
        peer: str = self._caller().peer()
        return peer

    def peer_identities(self) -> Iterable[bytes] | None:
        """Return the authenticated identities, None if there are none."""
        return self._caller().peer_identities()  # type: ignore[no-any-return]

    def peer_identity_key(self) -> str | None:
        """Return the name of the property the identities are from."""
        return self._caller().peer_identity_key()  # type: ignore[no-any-return]

    def auth_context(self) -> Any:
        """Return the channel's authentication properties."""
        return self._caller().auth_context()

    def _caller(self) -> Any:
        return _left.get(id(self._inner), self._inner)

    def time_remaining(self) -> float:
        """Return the seconds left of the caller's deadline."""
        return self._inner.time_remaining()  # type: ignore[no-any-return]

    def set_compression(self, compression: grpc.Compression) -> None:
        """Compress the answer so."""
        self._inner.set_compression(compression)

    def disable_next_message_compression(self) -> None:
        """Leave the next message uncompressed."""
        self._inner.disable_next_message_compression()


class HandlerContext(Noted, grpc.ServicerContext):
    """What a sync handler gets; see ``grpc.ServicerContext`` for each method."""

    def send_initial_metadata(self, initial_metadata: Iterable[Any]) -> None:
        """Note the metadata: it leaves with the answer."""
        self.noted_initial = _metadata(initial_metadata)
        self.spoke = True

    def trailing_metadata(self) -> Any:
        """Return what was set, None if nothing was."""
        return self.noted_trailing or None

    def details(self) -> bytes | None:
        """Return the details set, as gRPC does: encoded, None if none were."""
        return None if self.noted_details is None else self.noted_details.encode()

    def abort(self, code: Any, details: str) -> NoReturn:
        """Note the status and leave the handler."""
        self._note_abort(code, details)
        raise Exception

    def abort_with_status(self, status: Any) -> NoReturn:
        """Note the status and its metadata and leave the handler."""
        self.set_trailing_metadata(status.trailing_metadata)
        self.abort(status.code, status.details)

    def is_active(self) -> bool:
        """Tell whether the call goes on, whether or not its caller still waits."""
        return not self.rifl_attempt.ended

    def cancel(self) -> bool:
        """Cancel the RPC; the handler's answer is recorded all the same."""
        return self._inner.cancel()  # type: ignore[no-any-return]

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Have ``callback`` called, in a thread of its own, when the call has ended.

        That is when its answer is recorded, or it is given up, not when its caller leaves.
        False: it has ended already.
        """
        # None while a group's log is replayed: its calls have no waiting callers.
        store: Store | None = self.rifl_serving.store
        return store is None or store.wait(self.rifl_attempt, lambda: _in_a_thread(callback))


class AioHandlerContext(Noted, grpc.aio.ServicerContext[Any, Any]):
    """What a coroutine handler gets; see ``grpc.aio.ServicerContext``."""

    async def send_initial_metadata(self, initial_metadata: Iterable[Any]) -> None:
        """Note the metadata: it leaves with the answer."""
        self.noted_initial = _metadata(initial_metadata)
        self.spoke = True

    def trailing_metadata(self) -> Any:
        """Return what was set."""
        return self.noted_trailing

    def details(self) -> str:
        """Return the details set."""
        return self.noted_details or ""

    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        """Note the status and leave the handler."""
        if self.aborted:
            raise grpc.aio.UsageError("Abort already called!")
        if trailing_metadata:
            self.set_trailing_metadata(trailing_metadata)
        self._note_abort(code, details)
        raise grpc.aio.AbortError(f"Locally aborted: {code} {details}")

    async def abort_with_status(self, status: Any) -> NoReturn:
        """Note the status and its metadata and leave the handler."""
        await self.abort(status.code, status.details, status.trailing_metadata)

    async def read(self) -> Any:
        """Raise: a unary call has nothing to read."""
        raise grpc.aio.UsageError("a unary call is read by gRPC")

    async def write(self, message: Any) -> None:
        """Raise: a unary call's answer is returned."""
        raise grpc.aio.UsageError("a unary call's answer is returned, not written")

    def add_done_callback(self, callback: Any) -> None:
        """Have ``callback(context)`` called on the loop when the call has ended.

        As ``HandlerContext.add_callback``: not when its caller leaves.
        """
        loop = asyncio.get_running_loop()
        store: Store | None = self.rifl_serving.store

        def ended() -> None:
            tell_loop(loop, callback, self)

        if store is not None and not store.wait(self.rifl_attempt, ended):
            ended()

    def cancelled(self) -> bool:
        """Return false: a call is never cancelled, though its caller may leave."""
        return False

    def done(self) -> bool:
        """Tell whether the call has ended, whether or not its caller still waits."""
        return self.rifl_attempt.ended


def _in_a_thread(callback: Callable[[], None]) -> None:
    # The thread that settles this call settles others, too: a handler must not block it.
    threading.Thread(target=callback, name="rifl-callback", daemon=True).start()


def _text(details: Any) -> str:
    """Return details as text, or raise in the handler, where gRPC would, too.

    What cannot be recorded must not get past the handler: its call would never end.
    """
    if details is None:
        return ""
    text: str = details.decode(errors="replace") if isinstance(details, bytes) else details
    text.encode()
    return text


def _metadata(entries: Iterable[Any] | None) -> Metadata:
    """Return metadata in its recorded form; raises for what gRPC could not send either.

    rifl's labels are left out: one forwarded from another server is of another call.
    """
    if isinstance(entries, dict) or not hasattr(entries or (), "__iter__"):
        raise TypeError(f"trailing or initial metadata is a sequence of pairs, not {entries!r}")
    found: list[tuple[str, str | bytes]] = []
    for entry in entries or ():
        if isinstance(entry, dict):
            raise TypeError(f"trailing or initial metadata is a sequence of pairs, not {entry!r}")
        key, value = entry
        if isinstance(key, bytes):
            # As gRPC takes them.
            key = key.decode("ascii")
        if not isinstance(key, str) or not isinstance(value, str | bytes):
            raise TypeError(f"metadata is text to text or bytes, not {key!r} to {value!r}")
        if key.endswith("-bin"):
            if isinstance(value, str):
                raise TypeError(f"the value of {key!r} is bytes, as that of each name in -bin")
        elif isinstance(value, bytes):
            value = value.decode("latin-1")
        if not is_sendable(key, value):
            # Recorded, it would fail in each retry, and the call would never be answered.
            raise ValueError(f"gRPC cannot send the metadata {key!r}: {value!r}")
        found.append((key, value))
    return without_labels(tuple(found))


# For handlers whose context another interceptor has wrapped again.
CURRENT: contextvars.ContextVar[Noted | None] = contextvars.ContextVar("rifl", default=None)


def noted_of(context: Any) -> Noted | None:
    """Return what a deduplicated call's handler was given, None for any other call."""
    # Another interceptor may have wrapped the context once more.
    return context if isinstance(context, Noted) else CURRENT.get()


def may_be_undone(context: Any) -> bool:
    """Return whether this run may be a second one, which the store then rolls back.

    True for the first attempt of an ``atomic`` call if the store decides at its commit only
    (``MethodPolicy.claim``): another attempt may have come first. False for a run that was
    claimed before it began, for an ``idempotent`` method's, which is never rolled back, and for
    a call without an identity. Any thread.
    """
    noted = noted_of(context)
    if noted is None:
        return False
    attempt = noted.rifl_attempt
    return attempt.unclaimed and attempt.policy.kind is Kind.ATOMIC


def caller_gone(context: Any) -> bool:
    """Return whether the caller has left: it cancelled, its deadline passed, or it is cut off.

    That is the transport's view. A deduplicated call goes on all the same, and a retry gets
    its answer: if it stopped half-way because the caller left, that would be its record for
    good. ``context.is_active()``, ``cancelled()``, ``done()`` and callbacks speak of the call.
    It also works with gRPC's own context of any other call. Any thread.
    """
    noted = noted_of(context)
    if noted is not None and noted.rifl_attempt.call.gone:
        return True
    inner = context if noted is None else noted.rifl_transport
    active = getattr(inner, "is_active", None)
    if active is not None:
        return not active()
    return bool(inner.cancelled() or inner.done())
