"""The observer of consumers, which is told what their processes do (DESIGN §9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sharedlog._core.envelope import unpack
from sharedlog._core.errors import LogError
from sharedlog._core.position import Position
from sharedlog._core.streams import stream_of


class HandlingReport(NamedTuple):
    """A message that a handler is about to run for.

    ``tag``: its substream, such as ``orders/3``; ``appended_us``: when it was appended, by the
    log's clock, microseconds since 1970.
    """

    consumer: str
    tag: str
    position: Position
    appended_us: int
    envelope: bytes = b""

    @property
    def stream(self) -> str:
        """The stream that it is of."""
        return stream_of(self.tag)

    @property
    def trace(self) -> tuple[str, str]:
        """Its publisher's trace context: ``traceparent`` and ``tracestate`` as W3C has them."""
        try:
            found = unpack(self.envelope)
        except LogError:
            return "", ""
        return found.trace_parent, found.trace_state


class ConsumerObserver:
    """An observer of the processes of consumers. Subclass and override.

    It is called in the threads that run functions, one call at a time, and must not block. An
    exception of it is logged once, and changes nothing.
    """

    def handling(self, report: HandlingReport) -> tuple[str, str, Any] | None:
        """A handler is about to run. Return the trace context (``traceparent``, ``tracestate``) for
        the messages that it publishes, and the ``begun`` of ``handled``; None: neither.
        """
        return None

    def handled(self, report: HandlingReport, begun: Any, seconds: float, error: str) -> None:
        """The handler has returned, or raised ``error``, which rolls its transaction back."""

    def committed(self, reports: Sequence[HandlingReport]) -> None:
        """A transaction with the effects of these messages is committed."""

    def called(self, consumer: str, target: str, method: str, seconds: float, error: str) -> None:
        """A handler's call to a service was answered, or failed with ``error``."""

    def failed(self, consumer: str, tag: str) -> None:
        """A handler has failed, and the failure counts as an attempt."""

    def retrying(self, consumer: str, tag: str, seconds: float, error: str) -> None:
        """A substream has been retried for these ``seconds``, over a minute; 0.0: it goes on."""

    def buried(self, consumer: str, tag: str) -> None:
        """A message has become a dead letter."""

    def stopped(self, consumer: str, tag: str) -> None:
        """A substream has stopped, until an operator resumes it."""

    def took_over(self, consumer: str, tag: str, died: bool) -> None:
        """The process has taken a substream; ``died``: its former owner had not left it."""
