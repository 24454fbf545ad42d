"""The observer of players, which is told what they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sharedlog._core.envelope import unpack
from sharedlog._core.errors import LogError
from sharedlog._core.position import Position
from sharedlog._core.streams import stream_of


class TargetReport(NamedTuple):
    """A target at one moment: its state, entries behind, messages queued, in flight and taken."""

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
    """An observer of players. Subclass and override.

    It is called on a player's event loop, and must not block. An exception of it is logged once,
    and changes nothing.
    """

    def attached(self, player: str, report: Callable[[], list[TargetReport]]) -> None:
        """A player begins; ``report`` returns the states of its targets, in any thread."""

    def detached(self, player: str, report: Callable[[], list[TargetReport]]) -> None:
        """That player is closed."""

    def troubled(self, player: str, target: str, cause: str) -> None:
        """The player has closed the connection to a target, for the reason that ``cause`` names."""

    def stopped(self, player: str, target: str, why: str) -> None:
        """A target is sent nothing until an operator acts."""

    def buried(self, player: str, target: str) -> None:
        """A message of a target has become a dead letter."""

    def sending(self, delivery: DeliveryReport) -> tuple[str, str, Any] | None:
        """A message is about to be sent. Called for each one, so it costs.

        Returns the trace context for the message (``traceparent``, ``tracestate``; empty: its
        publisher's), and the ``begun`` of ``answered``; None: neither.
        """

    def answered(self, delivery: DeliveryReport, begun: Any, seconds: float, error: str) -> None:
        """The target has done the message, ``seconds`` after it was sent, or failed (``error``).

        ``begun``: what this observer's ``sending`` returned last, else None.
        """
