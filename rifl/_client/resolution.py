"""Resolutions: asking the server for the outcome of a call that stayed unknown (DESIGN §4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from _rifl_ground.refusals import Outcome
from lease_server.v1 import lease_server_pb2 as pb
from rifl._client.answers import FinalStatus, read_answer
from rifl._client.errors import CallError, Status, call_error, explained
from rifl._client.session_secret import shown
from rifl._client.state import ClientState
from rifl._grpc.codes import status_code
from rifl._wire.records import parse_resolution
from rifl.core._calling.issued_call import IssuedCall
from rifl.core._calling.retry import pause_s
from rifl.core._shared.codes import raised_code
from rifl.core._shared.errors import StaleRpc
from rifl.core._shared.identity import RpcId
from rifl.v1 import rifl_pb2

RESOLVE_METHOD = "/rifl.v1.Outcomes/Resolve"


@dataclass(frozen=True, slots=True)
class Resolution:
    """The server's knowledge of a call.

    EXECUTED (or REPLAYED): it ran; ``reply`` is its answer, or ``error`` if it
    answered with an error. NOT_EXECUTED: it did not run and never will. UNKNOWN:
    the server lost the outcome in a crash, and says so in ``error``, or does not
    know it yet (``error`` is None).
    """

    outcome: Outcome
    reply: Any = None
    error: CallError | None = None


class Asking:
    """What is asked of the server besides calls, and may be asked again: how often, how long."""

    METHOD = RESOLVE_METHOD

    def __init__(self, state: ClientState, timeout_s: float | None, rpc_id: RpcId | None) -> None:
        state.check_usable()
        self._state = state
        self._rpc_id = rpc_id
        if timeout_s is None:
            timeout_s = state.settings.retry.max_elapsed_s
        self._deadline = None if timeout_s is None else state.now() + timeout_s
        self._attempts = 0
        # For as long as it lives.
        state.waiting.add(self)

    def remaining_s(self) -> float | None:
        """Return how long an attempt may take."""
        return None if self._deadline is None else max(self._deadline - self._state.now(), 0.0)

    def retry_after_s(self, status: Status) -> float:
        """Return how long to wait before the next attempt; raises where there is none."""
        state = self._state
        answer = read_answer(status)
        self._attempts += 1
        delay = state.settings.retry.backoff_s(self._attempts, state.jitter())
        delay = pause_s(delay, answer.retry_after_s)
        left = self.remaining_s()
        if state.closed or not answer.transient or delay < 0 or (left is not None and delay > left):
            raise call_error(
                status.code(),
                explained(status, answer.reason, self.METHOD),
                rpc_id=self._rpc_id,
                # Only this library's own errors say that nothing was sent.
                outcome=status.outcome if isinstance(status, CallError) else Outcome.UNKNOWN,
                reason=answer.reason,
                status=status,
            )
        return delay


class Closing(Asking):
    """The closing of a channel's named session, for good."""

    METHOD = "/lease_server.v1.LeaseServer/CloseSession"

    def __init__(self, state: ClientState, timeout_s: float | None) -> None:
        name = state.settings.session_name
        if name is None:
            raise ValueError("only a named session is closed: rifl.connect(..., session=...)")
        super().__init__(state, timeout_s, None)
        secrets = shown(state.settings.session_secrets)
        self.request = pb.CloseSessionRequest(name=name, **secrets).SerializeToString()


class Resolver(Asking):
    """One resolution: its request, its retries, the reading of its reply."""

    def __init__(self, state: ClientState, rpc_id: RpcId, timeout_s: float | None) -> None:
        super().__init__(state, timeout_s, rpc_id)
        with state.lock:
            call = state.session.unresolved(rpc_id, state.now())
        if call is None:
            raise call_error(
                grpc.StatusCode.FAILED_PRECONDITION,
                "not a call of this channel whose outcome is unknown, or no longer one",
                rpc_id=rpc_id,
                outcome=Outcome.UNKNOWN,
                reason=StaleRpc.reason,
            )
        self._identity = rpc_id
        self._call: IssuedCall = call

    def request(self) -> Any:
        """Build the request."""
        lease = self._call.lease
        request = rifl_pb2.ResolveRequest(
            client_id=lease.client_id,
            token=lease.token,
            store=lease.store,
            method=self._call.method,
        )
        if self._call.key is None:
            request.seq = self._call.seq
            request.seed = self._call.stamp[1]
        else:
            request.key = self._call.key
        return request

    def read(self, reply: Any) -> Resolution:
        """Read the reply; a definite one acknowledges the call."""
        outcome, record = parse_resolution(reply)
        message: Any = None
        error: CallError | None = None
        if record is not None and record.code:
            code = status_code(record.code)
            error = call_error(
                # Who raises it does so in place of the call.
                grpc.StatusCode[raised_code(code.name, outcome, record.reason, attempts=1)],
                record.details,
                rpc_id=self._rpc_id,
                outcome=outcome,
                reason=record.reason,
                status=FinalStatus(
                    code, record.details, record.initial_metadata, record.trailing_metadata
                ),
                original_code=code,
            )
        elif record is not None and record.response is not None:
            decode = self._call.decode
            message = record.response if decode is None else decode(record.response)
        if outcome is not Outcome.UNKNOWN or record is not None:
            state = self._state
            with state.lock:
                state.session.resolved(self._identity)
                woken = state.next_waiters()
            state.wake(woken)
        return Resolution(outcome, message, error)
