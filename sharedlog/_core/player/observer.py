"""The observer of players, who is told what they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sharedlog._core.envelope import unpack
from sharedlog._core.errors import LogError
from sharedlog._core.position import Position
from sharedlog._core.streams import stream_of


class TargetReport(NamedTuple):
    """A target at one moment: its state, entries behind, messages queued and in flight."""

    target: str
    state: str
    lag: int
    queued: int
    in_flight: int
    taken: int


class DeliveryReport(NamedTuple):
    """A message on its way to a target.

    ``tag``: its substream, such as ``orders/3``; ``appended_us``: when it was appended, by the
    log's clock, microseconds since 1970; ``again``: this player has sent it to the target before.
    """

    player: str
    target: str
    tag: str
    position: Position
    appended_us: int
    again: bool
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


class PlayerObserver:
    """Is told what players do. Subclass and override; on a player's event loop, not to block.

    What it raises is logged once, and changes nothing.
    """

    def attached(self, player: str, report: Callable[[], list[TargetReport]]) -> None:
        """A player begins; ``report`` says how its targets are, in any thread."""

    def detached(self, player: str, report: Callable[[], list[TargetReport]]) -> None:
        """That player is closed."""

    def troubled(self, player: str, target: str, cause: str) -> None:
        """A target was cut off, for what ``cause`` names."""

    def stopped(self, player: str, target: str, why: str) -> None:
        """A target is sent nothing until an operator acts."""

    def buried(self, player: str, target: str) -> None:
        """A message that it was not called with is a dead letter."""

    def sending(self, delivery: DeliveryReport) -> tuple[str, str, Any] | None:
        """A message is about to be sent. Called for each one, so it costs.

        Returns the trace context that it is to travel with (``traceparent``, ``tracestate``; empty:
        its publisher's), and what ``answered`` is given; None where it wants neither.
        """

    def answered(self, delivery: DeliveryReport, begun: Any, seconds: float, error: str) -> None:
        """The target has taken it, ``seconds`` after it was sent; or (``error``) it has not.

        ``begun``: what this observer's ``sending`` returned last, else None.
        """
