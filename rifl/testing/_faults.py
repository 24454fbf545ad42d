"""Faults by name, and where they strike."""

from __future__ import annotations

import enum
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.later import Later, Replies, ask_each
from rifl.core._serving.policy import Kind, MethodPolicies
from rifl.core._shared.errors import StoreUnavailable
from rifl.core._shared.record import CompletionRecord


class Fault(enum.Enum):
    """A fault, which happens once for each time it is armed."""

    # The store cannot be written: the call is refused as not executed.
    STORE_DOWN = "store-down"
    # The process dies between the handler's effect and its record; not of an atomic method.
    KILL_AFTER_EFFECT = "kill-after-effect"
    # The process dies right after the transaction of an atomic method's handler committed.
    KILL_AFTER_COMMIT = "kill-after-commit"
    # The process dies with the record durable and the answer not sent.
    KILL_AFTER_RECORD = "kill-after-record"
    # All is done, and the answer is lost on its way.
    DROP_ANSWER = "drop-answer"
    # The request arrives twice, one after the other; the second is answered.
    DUPLICATE_REQUEST = "duplicate-request"


class Killed(Exception):
    """The end of a handler's call when its process crashes."""


# Faults that strike some kinds of methods alone, and what strikes the others. What is not
# deduplicated has no record and asks no store.
_KINDS: dict[Fault, tuple[frozenset[Kind], str]] = {
    Fault.STORE_DOWN: (frozenset(Kind), ""),
    Fault.KILL_AFTER_RECORD: (frozenset(Kind), ""),
    Fault.KILL_AFTER_EFFECT: (
        frozenset({Kind.PLAIN, Kind.IDEMPOTENT}),
        "an atomic method's effect and record are one commit: KILL_AFTER_COMMIT",
    ),
    Fault.KILL_AFTER_COMMIT: (
        frozenset({Kind.ATOMIC}),
        "it is for atomic methods; of others KILL_AFTER_EFFECT and KILL_AFTER_RECORD strike",
    ),
}


class Faults:
    """Which faults are to strike. Any thread."""

    # Those of the served methods, if they are known.
    policies: MethodPolicies | None = None

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed: Counter[tuple[Fault, str | None]] = Counter()
        self._struck: Counter[Fault] = Counter()

    def arm(self, fault: Fault | str, times: int = 1, *, method: str | None = None) -> None:
        """Let a fault strike the next ``times`` calls (of that full method name).

        Raises ``ValueError`` if it can strike no call, as the methods are declared.
        """
        fault = Fault(fault)
        self._check(fault, method)
        with self._lock:
            self._armed[fault, method] += times

    def _check(self, fault: Fault, method: str | None) -> None:
        if self.policies is None or fault not in _KINDS:
            return
        kinds, instead = _KINDS[fault]
        found = self.policies if method is None else [self.policies.find(method)]
        declared = {policy.kind for policy in found if policy is not None}
        if not declared:
            instead = "no such method is deduplicated"
        if declared.isdisjoint(kinds):
            raise ValueError(f"{fault.name} can never strike here: {instead}")

    def struck(self, fault: Fault | str) -> int:
        """Return how often a fault has struck."""
        return self._struck[Fault(fault)]

    def strikes(self, fault: Fault, method: str) -> bool:
        """Take one armed fault that fits; False if there is none."""
        with self._lock:
            for armed in ((fault, method), (fault, None)):
                if self._armed[armed] > 0:
                    self._armed[armed] -= 1
                    self._struck[fault] += 1
                    return True
            return False


class FaultyStore:
    """A store that fails where a fault is armed; all else is the inner one's."""

    def __init__(self, inner: Any, faults: Faults, kill: Callable[[], None]) -> None:
        self._inner = inner
        self._faults = faults
        self._kill = kill
        self._killed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def start(self, attempt: Attempt) -> Any:
        """Make an intent durable, unless the store is down."""
        if self._faults.strikes(Fault.STORE_DOWN, attempt.call.method):
            raise StoreUnavailable("the store is down, by a fault that was armed")
        return self._inner.start(attempt)

    def finish(self, attempt: Attempt, record: CompletionRecord) -> Any:
        """Record an answer, unless the process dies before."""
        if self._faults.strikes(Fault.KILL_AFTER_EFFECT, attempt.call.method):
            self._kill()
            raise Killed("killed after the effect, before its record")
        return self._inner.finish(attempt, record)

    def committed(self, attempt: Attempt) -> Any:
        """Tell what a handler's transaction committed, unless the process dies before."""
        recorded = attempt.recorded is not None
        if recorded and self._faults.strikes(Fault.KILL_AFTER_COMMIT, attempt.call.method):
            self._killed = True
            self._kill()
            raise Killed("killed after the commit, before it was known")
        return self._inner.committed(attempt)

    def abandon(self, attempt: Attempt) -> Any:
        """Make the call new again; a process that died does not."""
        return None if self._killed else self._inner.abandon(attempt)

    # A batch's calls are asked for one by one, so that a fault strikes one of them.

    def start_all(self, attempts: Sequence[Attempt]) -> Replies | Later:
        """Do what ``start`` does, for each."""
        return ask_each(self.start, attempts)

    def finish_all(
        self, attempts: Sequence[Attempt], records: Sequence[CompletionRecord]
    ) -> Replies | Later:
        """Do what ``finish`` does, for each."""
        pairs = zip(attempts, records, strict=True)
        return ask_each(lambda pair: self.finish(*pair), pairs)


def _lost(context: Any) -> None:
    # What a client sees whose connection broke: nothing of rifl's in it.
    context.set_trailing_metadata(())


class SyncFaultInterceptor(grpc.ServerInterceptor):
    """The faults of the way between client and server; outside the deduplicator's."""

    def __init__(self, faults: Faults, kill: Callable[[], None]) -> None:
        self._faults = faults
        self._kill = kill

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Wrap unary handlers; others are passed through."""
        handler = continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or handler.request_streaming or handler.response_streaming:
            return handler
        faults, behavior = self._faults, handler.unary_unary

        def faulty(request: Any, context: Any) -> Any:
            if faults.strikes(Fault.DUPLICATE_REQUEST, method):
                behavior(request, context)
            answer = behavior(request, context)
            if faults.strikes(Fault.KILL_AFTER_RECORD, method):
                self._kill()
                _lost(context)
                raise Killed("killed after the record, before the answer")
            if faults.strikes(Fault.DROP_ANSWER, method):
                _lost(context)
                context.abort(grpc.StatusCode.UNAVAILABLE, "the answer was dropped")
            return answer

        return grpc.unary_unary_rpc_method_handler(
            faulty, handler.request_deserializer, handler.response_serializer
        )


class AioFaultInterceptor(grpc.aio.ServerInterceptor):
    """As ``SyncFaultInterceptor``, for coroutines."""

    def __init__(self, faults: Faults, kill: Callable[[], None]) -> None:
        self._faults = faults
        self._kill = kill

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Wrap unary handlers; others are passed through."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or handler.request_streaming or handler.response_streaming:
            return handler
        faults, behavior = self._faults, handler.unary_unary

        async def faulty(request: Any, context: Any) -> Any:
            if faults.strikes(Fault.DUPLICATE_REQUEST, method):
                await behavior(request, context)
            answer = await behavior(request, context)
            if faults.strikes(Fault.KILL_AFTER_RECORD, method):
                self._kill()
                _lost(context)
                raise Killed("killed after the record, before the answer")
            if faults.strikes(Fault.DROP_ANSWER, method):
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer was dropped", ())
            return answer

        return grpc.unary_unary_rpc_method_handler(
            faulty, handler.request_deserializer, handler.response_serializer
        )
