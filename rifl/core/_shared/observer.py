"""Observers: they are told what happened, at the decision (DESIGN §9)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from _rifl_ground.refusals import Outcome
from rifl.core._shared.call import Call
from rifl.core._shared.errors import RiflError
from rifl.core._shared.identity import RpcId


class ServedCall(NamedTuple):
    """An arrival of a call that a server has answered, or refused.

    ``call`` is None where the header could not be read. ``code`` is a gRPC
    number; ``reason`` is empty for an answer of the handler's. ``seconds`` count
    from when the interceptor saw it, waiting included.
    """

    method: str
    call: Call | None
    outcome: Outcome
    reason: str
    code: int
    seconds: float


class EndedCall(NamedTuple):
    """A client's call that has ended, after one attempt or several.

    ``rpc_id`` is None for a call that got no identity; ``code`` is the name of a
    gRPC status.
    """

    method: str
    rpc_id: RpcId | None
    attempts: int
    outcome: Outcome
    reason: str
    code: str
    seconds: float


class Statistics(NamedTuple):
    """What a server holds now.

    ``clients`` with calls it tracks; ``leases`` granted or renewed; calls that are
    ``unacknowledged``, of which ``running`` have no record yet; ``waiting``
    duplicates. Over a store that replicas share the first two are the whole store's
    (clients and sessions that have a row, as last counted), the others this replica's.
    ``answer_bytes``: large answers that are kept unacknowledged, as bounds count them.
    ``queued``: calls that wait for a place of ``MethodPolicy.max_running``. ``unheard``: handlers
    on event loops that run for no caller. ``unknown``: calls of the whole store whose outcome is
    unknown, and not settled, and the oldest's age, as last counted in the background; None where
    another replica counts. ``serving``: whether new calls are taken.
    """

    clients: int
    leases: int
    unacknowledged: int
    running: int
    waiting: int
    answer_bytes: int = 0
    queued: int = 0
    unheard: int = 0
    unknown: int | None = None
    oldest_unknown_s: float = 0.0
    serving: bool = True


class Observer:
    """A receiver of events, which does nothing by itself. Subclass and override.

    Each method is called in the thread or on the loop of the event, outside all locks,
    after the event is durable and before the answer leaves: it must not block. Many
    threads may call it at once. An exception of a method is logged once and changes
    nothing. Later releases may add methods, and keep these.
    """

    # -- a server's ------------------------------------------------------------------

    def attached(self, statistics: Callable[[], Statistics]) -> None:
        """A deduplicator begins; ``statistics()`` counts, which takes milliseconds."""

    def detached(self, statistics: Callable[[], Statistics]) -> None:
        """That deduplicator is closed."""

    def call_served(self, served: ServedCall) -> None:
        """An attempt was decided, and run if its call was new."""

    def batch_served(self, served: Sequence[ServedCall]) -> None:
        """The items of a batched call were decided; by default each is reported alone."""
        for each in served:
            self.call_served(each)

    def committed(self, entries: int, seconds: float, error: Exception | None) -> None:
        """The store wrote ``entries`` records and intents in one commit, or failed to.

        Also for a handler's transaction that rifl commits: SQLite's shared ones, and over
        PostgreSQL those of a ``rifl.transaction``. If deliveries share one, ``entries`` counts
        them all.
        """

    def serving(self, refusal: RiflError | None) -> None:
        """New calls are refused from now on, for this reason; None: accepted again."""

    def caller_refused(self, kind: str, reason: str) -> None:
        """A caller was not let in: what it has to show (``kind``) is missing, or wrong."""

    def handler_cancelled(self, method: str) -> None:
        """A coroutine handler was cancelled, as no caller waited for it, and has ended."""

    # -- a client's ------------------------------------------------------------------

    def call_begins(
        self, method: str, metadata: Sequence[tuple[str, Any]]
    ) -> tuple[Sequence[tuple[str, Any]], Any]:
        """A call begins, in its caller's thread or task.

        Return the metadata that all its attempts must carry, and any object, which
        ``call_ended`` gets.
        """
        return metadata, None

    def call_ended(self, ended: EndedCall, begun: Any) -> None:
        """A call ended; in any thread."""

    def attempt_held_back(self, method: str, *, hedge: bool) -> None:
        """A retry, or a hedge, found the budget empty, and waits."""

    def batch_ended(self, ended: Sequence[EndedCall], begun: Any) -> None:
        """The items of a batch ended; by default each is reported as a call.

        ``call_begins`` was called once for the batch.
        """
        for each in ended:
            self.call_ended(each, begun)


class Observers(Observer):
    """Several observers as one, kept from doing harm.

    ``on_error(method, error)`` hears of the first error of each method.
    """

    def __init__(
        self, observers: Iterable[Observer], on_error: Callable[[str, Exception], None]
    ) -> None:
        self._observers = tuple(observers)
        self._on_error = on_error
        self._failed: set[str] = set()

    @classmethod
    def of(
        cls,
        given: Observer | Sequence[Observer] | None,
        on_error: Callable[[str, Exception], None],
    ) -> Observers | None:
        """Return the observer for a user's argument; None if there is none."""
        observers = (given,) if isinstance(given, Observer) else tuple(given or ())
        return cls(observers, on_error) if observers else None

    def attached(self, statistics: Callable[[], Statistics]) -> None:
        """See ``Observer``."""
        self._each("attached", statistics)

    def detached(self, statistics: Callable[[], Statistics]) -> None:
        """See ``Observer``."""
        self._each("detached", statistics)

    def call_served(self, served: ServedCall) -> None:
        """See ``Observer``."""
        self._each("call_served", served)

    def batch_served(self, served: Sequence[ServedCall]) -> None:
        """See ``Observer``."""
        self._each("batch_served", served)

    def committed(self, entries: int, seconds: float, error: Exception | None) -> None:
        """See ``Observer``."""
        self._each("committed", entries, seconds, error)

    def serving(self, refusal: RiflError | None) -> None:
        """See ``Observer``."""
        self._each("serving", refusal)

    def caller_refused(self, kind: str, reason: str) -> None:
        """See ``Observer``."""
        self._each("caller_refused", kind, reason)

    def handler_cancelled(self, method: str) -> None:
        """See ``Observer``."""
        self._each("handler_cancelled", method)

    def call_begins(
        self, method: str, metadata: Sequence[tuple[str, Any]] | None
    ) -> tuple[Sequence[tuple[str, Any]], Any]:
        """See ``Observer``."""
        given: Sequence[tuple[str, Any]] = tuple(metadata or ())
        begun: list[Any] = []
        for observer in self._observers:
            try:
                given, mine = observer.call_begins(method, given)
            except Exception as error:  # noqa: BLE001 - a watcher must not break what it watches
                self._note("call_begins", error)
                mine = None
            begun.append(mine)
        return given, begun

    def call_ended(self, ended: EndedCall, begun: Any) -> None:
        """See ``Observer``."""
        for observer, mine in zip(self._observers, begun, strict=True):
            try:
                observer.call_ended(ended, mine)
            except Exception as error:  # noqa: BLE001 - as above
                self._note("call_ended", error)

    def batch_ended(self, ended: Sequence[EndedCall], begun: Any) -> None:
        """See ``Observer``."""
        for observer, mine in zip(self._observers, begun, strict=True):
            try:
                observer.batch_ended(ended, mine)
            except Exception as error:  # noqa: BLE001 - as above
                self._note("batch_ended", error)

    def attempt_held_back(self, method: str, *, hedge: bool) -> None:
        """See ``Observer``."""
        self._each("attempt_held_back", method, hedge=hedge)

    def _each(self, method: str, *arguments: Any, **named: Any) -> None:
        for observer in self._observers:
            try:
                getattr(observer, method)(*arguments, **named)
            except Exception as error:  # noqa: BLE001 - as above
                self._note(method, error)

    def _note(self, method: str, error: Exception) -> None:
        if method not in self._failed:
            self._failed.add(method)
            self._on_error(method, error)
