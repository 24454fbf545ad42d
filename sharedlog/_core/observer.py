"""Observers of a log, who are told what programs do with it (DESIGN §9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sharedlog._core.envelope import About
from sharedlog._core.position import Position


class HoldReport(NamedTuple):
    """How far the follower ``name`` is behind in the substream with this ``tag``.

    ``entries``: of the log, whatever their substream; ``seconds``: how long ago the oldest entry
    of its substream that it has not done was appended, 0.0 if there is none.
    """

    name: str
    tag: str
    entries: int
    seconds: float
    overdue: bool


class QueryReport(NamedTuple):
    """What a query of Spark's that writes has committed, by its ``name``.

    ``batch``: the last one, -1 for none; ``batches``, ``rows``, ``entries``: so many so far;
    ``undone``: about how many attempts of tasks were rolled back after they had appended;
    ``pending``: those that are neither committed nor rolled back yet.
    """

    name: str
    batch: int
    batches: int
    rows: int
    entries: int
    undone: int
    pending: int


class LogReport(NamedTuple):
    """A log at one moment, or at neighbouring ones.

    ``first`` to ``tail`` are the LSNs that are there; ``holds``: those that were not dropped.
    ``open_spans``: what is pending, by producer and substream; ``oldest_span_s``: its age.
    ``queries``: those of Spark that write it.
    """

    tail: int
    first: int
    open_spans: int
    oldest_span_s: float
    holds: list[HoldReport]
    queries: Sequence[QueryReport] = ()


class LogObserver:
    """Is told what happens to the logs that it was given to. Subclass and override.

    Called outside of all locks, in any thread (``publish_begins`` on the event loop, too), and
    not to block. What it raises is logged once, and changes nothing. ``log`` is the log's URL
    without what is secret in it.
    """

    def attached(self, log: str, report: Callable[[], LogReport]) -> None:
        """A log was opened; ``report`` asks it, and may raise ``LogError``."""

    def detached(self, log: str, report: Callable[[], LogReport]) -> None:
        """That handle is closed."""

    def publish_begins(
        self, log: str, stream: str, about: About | None
    ) -> tuple[About | None, Any]:
        """A message is published; return what is said of it, and what ``publish_ended`` gets."""
        return about, None

    def publish_ended(
        self, begun: Any, position: Position | None, error: BaseException | None
    ) -> None:
        """It is in the log at its position, or was taken into a transaction (None), or failed."""

    def appended(self, log: str, entries: int, size: int, seconds: float) -> None:
        """An append is in the log: so many entries, of so many bytes with their tags."""

    def refused(self, log: str, reason: str) -> None:
        """A message or a transaction has an error, the name of whose class is ``reason``."""

    def delivered(self, log: str, stream: str, messages: int, waited_s: float | None) -> None:
        """A follower has so many messages more; it had none for that time, if it had to wait."""
