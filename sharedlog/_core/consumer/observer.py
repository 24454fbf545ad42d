"""The observer of consumers, who is told what their processes do (DESIGN §9)."""

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
    """Is told what the processes of consumers do. Subclass and override.

    Called in the threads that run functions, one call at a time, and not to block. What it raises
    is logged once, and changes nothing.
    """

    def handling(self, report: HandlingReport) -> tuple[str, str, Any] | None:
        """A handler is about to run: the trace context that what it publishes carries, and what
        ``handled`` gets; None: neither.
        """
        return None

    def handled(self, report: HandlingReport, begun: Any, seconds: float, error: str) -> None:
        """It has returned, or raised ``error``, which undoes its transaction."""

    def committed(self, reports: Sequence[HandlingReport]) -> None:
        """A transaction is committed: the effects of these messages."""

    def called(self, consumer: str, target: str, method: str, seconds: float, error: str) -> None:
        """A handler's call to a service has its answer, or none because of ``error``."""

    def failed(self, consumer: str, tag: str) -> None:
        """A handler has failed, as its attempts count."""

    def retrying(self, consumer: str, tag: str, seconds: float, error: str) -> None:
        """A substream is tried again for more than a minute, at each try; 0.0: it goes on."""

    def buried(self, consumer: str, tag: str) -> None:
        """A message has become a dead letter."""

    def stopped(self, consumer: str, tag: str) -> None:
        """A substream has stopped, until an operator lets it go on."""

    def took_over(self, consumer: str, tag: str, died: bool) -> None:
        """The process has a substream; ``died``: who had it did not leave it."""
