"""``Log``: what ``sharedlog.open`` returns. Its methods delegate; what they do is elsewhere."""

from __future__ import annotations

import threading
from datetime import timedelta
from types import TracebackType
from typing import TypeVar

from sharedlog._core.catalog import Stream, all_streams, find_stream, make_stream
from sharedlog._core.steps import Rule
from sharedlog._engines.driving import carry_out
from sharedlog._engines.engine import Engine

_T = TypeVar("_T")


class Log:
    """A log, opened by ``sharedlog.open`` or ``create``. Any thread; a context manager."""

    def __init__(self, url: str, engine: Engine, incarnation: str) -> None:
        """Use ``sharedlog.open``."""
        self._url = url
        self._engine = engine
        self._incarnation = incarnation
        # Of streams that were seen: their substreams never change.
        self._known: dict[str, Stream] = {}
        self._closing = threading.Lock()

    @property
    def incarnation(self) -> str:
        """Which log this is: drawn at its creation, part of every position."""
        return self._incarnation

    @property
    def durability(self) -> str:
        """What the store promises of an append that returned, in a sentence."""
        return self._engine.durability

    def stream(
        self, name: str, substreams: int | None = None, retention: timedelta | None = None
    ) -> Stream:
        """Create a stream, or find the one that has the name.

        ``substreams``: how many, 1 to 512, fixed for ever (8 where none is said); messages with
        one key are in one substream, and ordered there. ``retention``: how long messages are
        kept at least (a day). What is not said is as it is found; something else than what is
        there is ``InvalidRequest``.
        """
        found = self._run(make_stream(name, substreams, retention))
        self._known[name] = found
        return found

    def streams(self) -> list[Stream]:
        """Return the streams of the log, by name."""
        return self._run(all_streams())

    def close(self) -> None:
        """Let go of files and connections; idempotent. Who waits gets ``LogUnavailable``."""
        with self._closing:
            self._engine.close()

    def __enter__(self) -> Log:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def _run(self, rule: Rule[_T]) -> _T:
        """Carry a rule out, in this thread."""
        return carry_out(self._engine, rule)

    def _stream(self, name: str) -> Stream:
        """Return a stream that exists; raises ``NoSuchStream``."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = self._run(find_stream(name))
        return found
