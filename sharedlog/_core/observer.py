"""Observers of a log, which are told what programs do with it (DESIGN §9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sharedlog._core.envelope import About
from sharedlog._core.position import Position


class HoldReport(NamedTuple):
    """How far the follower ``name`` is behind in the substream with this ``tag``.

    ``entries``: of the log, of all substreams; ``seconds``: the age of the oldest entry of its
    substream that it has not done, 0.0 if there is none.
    """

    name: str
    tag: str
    entries: int
    seconds: float
    overdue: bool


class QueryReport(NamedTuple):
    """What a writing Spark query has committed, by its ``name``.

    ``batch``: the last one, -1 for none; ``batches``, ``rows``, ``entries``: totals so far;
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
    """An observer of the logs that it is given to. Subclass and override.

    It is called outside of all locks, in any thread (``publish_begins`` also on the event loop),
    and must not block. An exception of it is logged once, and changes nothing. ``log`` is the
    log's URL without secrets.
    """

    def attached(self, log: str, report: Callable[[], LogReport]) -> None:
        """A log was opened; ``report`` reads its state, and can raise ``LogError``."""

    def detached(self, log: str, report: Callable[[], LogReport]) -> None:
        """That handle of the log was closed."""

    def publish_begins(
        self, log: str, stream: str, about: About | None
    ) -> tuple[About | None, Any]:
        """A message is published; return its ``About``, and the ``begun`` of ``publish_ended``."""
        return about, None

    def publish_ended(
        self, begun: Any, position: Position | None, error: BaseException | None
    ) -> None:
        """It is in the log at its position, or is part of a transaction (None), or failed."""

    def appended(self, log: str, entries: int, size: int, seconds: float) -> None:
        """An append is in the log: so many entries, of so many bytes with their tags."""

    def refused(self, log: str, reason: str) -> None:
        """A message or a transaction got an error; ``reason``: the name of its class."""

    def caller_refused(self, log: str, kind: str, reason: str) -> None:
        """The log's server did not let a caller in: what it has to show is missing, or wrong.

        ``kind``: such as "log_token"; or "right", of which ``reason`` says which one it lacks.
        """

    def delivered(self, log: str, stream: str, messages: int, waited_s: float | None) -> None:
        """A follower got so many messages, ``waited_s`` after it had none; None: without a wait."""
