"""The calls that handlers make to other services: each once (DESIGN-LOG §14, T6).

A call has an identity that does not depend on who makes it: the session of its shard, and a key of
the message's place and the call's number among those of the message. It is in the store, with that
identity, before it is sent, and its answer is, before the handler has it. So a handler that runs
again gets the first answers; and who takes the shard over asks for those that are missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable
from typing import Any, NamedTuple, TypeVar

from sharedlog._core.errors import CallForgotten, CallMismatch, InvalidRequest
from sharedlog._core.position import Position

_T = TypeVar("_T")
# Of one message: a service keeps 100,000 keys of a session.
MAX_CALLS = 1000
# A shard goes on to its next session after so many.
SESSION_CALLS = 10_000
_SERIES_BYTES = 200


class HandlerCall(NamedTuple):
    """A call that a handler has made, as the store keeps it until its message is done.

    ``serial`` counts the calls of the shard, ``number`` those of the message at ``position``.
    ``session``: its name at the service; ``client``: the id that the service has granted to it,
    which no other session of that name ever has. ``answer``: None while there is none.
    """

    serial: int
    position: Position
    number: int
    session: str
    client: str
    target: str
    method: str
    request: bytes
    answer: bytes | None = None

    @property
    def key(self) -> bytes:
        """Its key in the session."""
        return f"{self.position.lsn}.{self.position.ordinal}.{self.number}".encode()


class Wanted(NamedTuple):
    """What a handler calls. ``timeout_s``, ``metadata``: of this sending."""

    target: str
    method: str
    request: bytes
    timeout_s: float | None = None
    metadata: tuple[tuple[str, str | bytes], ...] = ()


class Open(NamedTuple):
    """Open a session at a service: the id that the service has granted to it."""

    target: str
    session: str
    timeout_s: float | None = None


class Intend(NamedTuple):
    """Keep a call in the store, durably, where the fence is the number; it was not sent yet."""

    tag: str
    number: int
    call: HandlerCall


class SendCall(NamedTuple):
    """Send a call, and return its packed answer. Raises ``Unanswered``."""

    call: HandlerCall
    timeout_s: float | None = None
    metadata: tuple[tuple[str, str | bytes], ...] = ()


class KeepAnswer(NamedTuple):
    """Keep a call's answer in the store, durably, where the fence is the number."""

    tag: str
    number: int
    call: HandlerCall


class Unanswered(Exception):
    """A call has no answer: the service is ``away``, or has refused it.

    ``cause``: as the caller is told.
    """

    def __init__(self, cause: Exception, *, away: bool, lasts: bool = False) -> None:
        """``lasts``: no further try mends it."""
        super().__init__(str(cause))
        self.cause = cause
        self.away = away
        self.lasts = lasts


CallStep = Open | Intend | SendCall | KeepAnswer
Calling = Generator[CallStep, Any, _T]


class ShardCalls:
    """The calls of a shard whose messages are not done, as its store has them."""

    def __init__(
        self, tag: str, number: int, series: str, done: Position | None, rows: Iterable[HandlerCall]
    ) -> None:
        """``number``: the fence's. ``done``: through which message the calls are over."""
        self._tag = tag
        self._number = number
        self._series = series
        self._calls: dict[tuple[int, int, int], HandlerCall] = {}
        # Of the newest: it is kept though its message is done, so that serials only grow.
        self._serial = 0
        for each in rows:
            self._serial = max(self._serial, each.serial)
            self._keep(each)
        if done is not None:
            self.passed(done)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._calls)

    def passed(self, done: Position) -> None:
        """T6: the position has passed them; nothing else lets an answer go."""
        place = (done.lsn, done.ordinal)
        for at in [at for at in self._calls if at[:2] <= place]:
            del self._calls[at]

    def unanswered(self, position: Position) -> bool:
        """Whether a call of a message has no answer."""
        if not self._calls:
            return False
        place = (position.lsn, position.ordinal)
        return any(at[:2] == place and each.answer is None for at, each in self._calls.items())

    def answer_of(self, position: Position, number: int) -> bytes | None:
        """Return the answer that is kept; None: there is none."""
        found = self._calls.get((position.lsn, position.ordinal, number))
        return None if found is None else found.answer

    def make(self, position: Position, number: int, wanted: Wanted) -> Calling[bytes]:
        """T6: make a message's call of this number, or return the answer that it has.

        Raises ``CallMismatch`` if it was another one when the handler ran before, and
        ``Unanswered``.
        """
        target, method, request, timeout_s, metadata = wanted
        call = self._calls.get((position.lsn, position.ordinal, number))
        if call is None:
            if number > MAX_CALLS:
                raise InvalidRequest(f"a handler makes {MAX_CALLS} calls for a message at most")
            session = self._session()
            client = yield Open(target, session, timeout_s)
            call = HandlerCall(
                self._serial + 1, position, number, session, client, target, method, request
            )
            # T6: with its identity, before it is sent.
            yield Intend(self._tag, self._number, call)
            self._serial = call.serial
            self._keep(call)
        elif (call.method, call.request) != (method, request):
            raise CallMismatch(
                f"call {number} of the message at {position} was {call.method} of "
                f"{_shown(call.request)} when the handler ran before, and is {method} of "
                f"{_shown(request)} now: a handler that runs again makes the same calls"
            )
        elif call.answer is None:
            yield from self._same(call, timeout_s)
        if call.answer is None:
            call = yield from self._asked(SendCall(call, timeout_s, metadata))
        return call.answer or b""

    def resend(self) -> Calling[None]:
        """T6: send again what has no answer, before anything else is done.

        Raises ``Unanswered`` if a service is away. What is refused is for the handler, when
        it runs again.
        """
        for call in list(self._calls.values()):
            if call.answer is None:
                try:
                    yield from self._same(call)
                    yield from self._asked(SendCall(call))
                except Unanswered as error:
                    if error.away:
                        raise

    def _same(self, call: HandlerCall, timeout_s: float | None = None) -> Calling[None]:
        """T6: what a service was sent and has forgotten is not sent again, as it may run anew."""
        client = yield Open(call.target, call.session, timeout_s)
        if client != call.client:
            error = CallForgotten(
                f"the service at {call.target} has forgotten the session {call.session!r}, in "
                f"which {call.method} was called for the message at {call.position}: whether it "
                "ran is not known, and it is not sent again"
            )
            raise Unanswered(error, away=False, lasts=True)

    def _asked(self, send: SendCall) -> Calling[HandlerCall]:
        call = send.call._replace(answer=(yield send))
        # T6: before the handler has it.
        yield KeepAnswer(self._tag, self._number, call)
        self._keep(call)
        return call

    def _keep(self, call: HandlerCall) -> None:
        self._calls[call.position.lsn, call.position.ordinal, call.number] = call

    def _session(self) -> str:
        """Of the next call: the others' that are kept, so that older ones are done with."""
        for each in reversed(self._calls.values()):
            return each.session
        return f"{self._series}#{(self._serial + 1) // SESSION_CALLS}"


def series_of(name: str, tag: str, epoch: int, incarnation: str) -> str:
    """Return what a shard's sessions are called: of a consumer and its epoch, in a log."""
    series = f"sharedlog/{name}/{tag}/{epoch}@{incarnation}"
    if len(series) <= _SERIES_BYTES:
        return series
    return f"sharedlog/{hashlib.blake2b(series.encode(), digest_size=32).hexdigest()}"


def _shown(request: bytes) -> str:
    return f"{len(request)} bytes ({hashlib.blake2b(request, digest_size=4).hexdigest()})"
