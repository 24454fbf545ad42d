"""The end of every arrival: labelled, observed, logged, and made ready to send (DESIGN §3, §4).

Unary calls, streams and batches come through here, on sync and aio servers: what differs
between those is only how a ``Status`` is put on the wire (``sync.send``, ``aio.send``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from rifl._log import get_logger
from rifl._server.answers import Status, answer_status, refusal_outcome, refusal_status
from rifl._server.events import RefusalLog
from rifl.core._serving.serving import Answer
from rifl.core._shared.call import Call
from rifl.core._shared.codes import CODE_NUMBERS
from rifl.core._shared.errors import RiflError
from rifl.core._shared.observer import Observers, ServedCall
from rifl.core._shared.outcome import Outcome
from rifl.core._shared.reasons import error_class

_log = get_logger("rifl.server")


class Tail:
    """What every arrival ends with. Thread-safe.

    An exception of the handler's is logged here and goes no further: what was recorded of
    it is the answer, for this arrival and all later ones. Raised through the interceptors
    outside, it were theirs to make another answer of, which no replay could give again.
    """

    __slots__ = ("_observer", "_refusals")

    def __init__(self, observer: Observers | None) -> None:
        self._observer = observer
        self._refusals = RefusalLog()

    @property
    def observed(self) -> bool:
        """Whether anybody watches."""
        return self._observer is not None

    def begin(self) -> float:
        """Return when an arrival begins, for the observer."""
        return 0.0 if self._observer is None else time.perf_counter()

    def answered(
        self,
        method: str,
        call: Call,
        answer: Answer,
        began: float,
        raised: Sequence[BaseException] = (),
    ) -> Status:
        """End an arrival that has an answer."""
        if raised:
            self.raised("handler_raised", method, call, raised[0])
        if answer.record.reason:
            self._note(method, call, answer)
        if self._observer is not None:
            self._observer.call_served(_served(method, call, answer, began))
        return answer_status(answer, call)

    def refused(self, method: str, call: Call | None, error: RiflError, began: float) -> Status:
        """End an arrival that is refused; ``call`` is None where its header is bad."""
        self._refusals.refused(method, call, error)
        if self._observer is not None:
            self._observer.call_served(_served(method, call, error, began))
        return refusal_status(error, call)

    def batch(
        self,
        method: str,
        calls: Sequence[Call],
        answers: Sequence[Answer | Exception],
        began: float,
        raised: Sequence[tuple[Call, BaseException]],
    ) -> None:
        """End the items of a batch; what they are labelled goes into its envelope.

        Of the handlers that raised the first is logged, with the number of them.
        """
        if raised:
            call, error = raised[0]
            self.raised("batched_handlers_raised", method, call, error, raised=len(raised))
        for call, answer in zip(calls, answers, strict=True):
            if type(answer) is Answer:
                if answer.record.reason:
                    self._note(method, call, answer)
            elif isinstance(answer, RiflError):
                self._refusals.refused(method, call, answer)
        if self._observer is not None:
            self._observer.batch_served(
                [
                    _served(method, call, answer, began)
                    for call, answer in zip(calls, answers, strict=True)
                    if isinstance(answer, Answer | RiflError)
                ]
            )

    def _note(self, method: str, call: Call, answer: Answer) -> None:
        """Log an answer that is an error of ours, where it is given for the first time."""
        error = error_class(answer.record.reason)
        if error is not None and answer.outcome is not Outcome.REPLAYED:
            self._refusals.refused(method, call, error(answer.record.details))

    def raised(
        self, event: str, method: str, call: Call, error: BaseException, **more: int
    ) -> None:
        """Log an exception of a handler's, as gRPC would have."""
        if not isinstance(error, asyncio.CancelledError):
            _log.error(event, method=method, rpc_id=str(call.rpc_id), exc_info=error, **more)


def _served(method: str, call: Call | None, answer: Answer | RiflError, began: float) -> ServedCall:
    if isinstance(answer, RiflError):
        reason, code = answer.reason, CODE_NUMBERS[answer.code]
        outcome = refusal_outcome(answer, call)
    else:
        outcome, reason, code = answer.outcome, answer.record.reason, answer.record.code
    return ServedCall(method, call, outcome, reason, code, time.perf_counter() - began)
