"""What the sync and aio shells share: everything but how one waits."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from typing import Any

import grpc

from lease_server import Authority, LeaseError
from lease_server.peer import peer_of
from lease_server.tokens import peer_bound
from rifl.core.call import Call
from rifl.core.errors import BadHeader, RiflError
from rifl.core.observer import Observers, ServedCall
from rifl.core.policy import MethodPolicies
from rifl.core.serving import Answer
from rifl.server.events import RefusalLog
from rifl.stores.base import Store
from rifl.wire import ATTEMPTS_BY_GRPC_KEY, error_class, find_header, parse_call

__all__ = ["Engine"]

_WAIT_SHARE = 0.9
_CODES: dict[str, int] = {code.name: code.value[0] for code in grpc.StatusCode}


class Engine:
    """The store, the leases and the bounds of one deduplicator.

    Immutable but for ``max_waiters``, which is set when a server is known; safe
    in any thread.
    """

    def __init__(
        self,
        store: Store,
        authority: Authority,
        policies: MethodPolicies,
        *,
        max_waiters: int,
        max_aio_waiters: int,
        max_wait_s: float,
        peer_property: str | None,
        observer: Observers | None = None,
    ) -> None:
        self.store = store
        self.authority = authority
        self.policies = policies
        self.max_waiters = max_waiters
        self.max_aio_waiters = max_aio_waiters
        self._max_wait_s = max_wait_s
        self._peer_property = peer_property
        self.observer = observer
        self.refusals = RefusalLog()
        # How many duplicates wait, one entry for each shell.
        self.waiting: list[Callable[[], int]] = []

    def arrive(self, method: str, request: bytes, context: Any) -> Call:
        """Step 1: parse the header and check its token; no state is made.

        Raises ``BadHeader``, ``NotYours``, ``LeaseExpired``.
        """
        metadata = context.invocation_metadata()
        header = find_header(metadata)
        if header is None:
            raise BadHeader(f"{method} takes calls with an identity only")
        call = parse_call(header, method, request)
        self.authenticate(call, context)
        if call.attempt == 1:
            for key, _ in metadata:
                if key == ATTEMPTS_BY_GRPC_KEY:
                    call.retried_by_grpc = True
        return call

    def authenticate(self, call: Call, context: Any) -> None:
        """Check that the token is for this id and, if it is bound, this peer."""
        token = call.token
        bound = peer_bound(token)
        verified = self.store.token(call.client_id)
        if (
            verified
            and not bound
            and hmac.compare_digest(token, verified)
            and self.authority.still_signed(token)
        ):
            return
        try:
            if bound:
                call.peer = peer_of(context, self._peer_property)
            self.authority.check(call.client_id, token, call.peer)
        except LeaseError as error:
            raise (error_class(error.reason) or RiflError)(str(error)) from error

    def served(
        self, method: str, call: Call | None, answer: Answer | RiflError, began: float
    ) -> None:
        """Tell the observer, of which there is one, of an answer or a refusal."""
        if isinstance(answer, RiflError):
            outcome, reason, code = answer.outcome, answer.reason, _CODES[answer.code]
        else:
            outcome, reason, code = answer.outcome, answer.record.reason, answer.record.code
        self.observer.call_served(  # type: ignore[union-attr]  # asked for by the shell
            ServedCall(method, call, outcome, reason, code, time.perf_counter() - began)
        )

    def wait_limit_s(self, remaining_s: float | None) -> float:
        """How long a duplicate may wait: the answer has to reach it in time."""
        if remaining_s is None:
            return self._max_wait_s
        return min(max(0.0, remaining_s) * _WAIT_SHARE, self._max_wait_s)
