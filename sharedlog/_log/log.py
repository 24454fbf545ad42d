"""``Log``: what ``sharedlog.open`` returns; its methods delegate."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import TypeVar

from sharedlog._core.catalog import Stream, all_streams, find_stream, make_stream
from sharedlog._core.envelope import About, Value, key_bytes, pack
from sharedlog._core.errors import OutcomeUnknown
from sharedlog._core.position import Position
from sharedlog._core.publishing import Placed
from sharedlog._core.steps import Rule
from sharedlog._core.streams import substream_of, tag_of
from sharedlog._engines.engine import Engine
from sharedlog._log.place import Place
from sharedlog._log.publisher import Publisher

_T = TypeVar("_T")


class Log:
    """A log, opened by ``sharedlog.open`` or ``create``. Any thread; a context manager."""

    def __init__(self, url: str, place: Place) -> None:
        """Use ``sharedlog.open``."""
        self._url = url
        self._place = place
        self._publisher = Publisher(place)
        # Of streams that were seen: their substreams never change.
        self._known: dict[str, Stream] = {}
        # The next message without a key goes to the substream after the last one's.
        self._rounds = itertools.count()

    @property
    def incarnation(self) -> str:
        """Which log this is: drawn at its creation, part of every position."""
        return self._place.incarnation

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

    def publish(
        self,
        stream: str | Stream,
        value: Value,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | str] | None = None,
        about: About | None = None,
    ) -> Position:
        """Append one message, and return its position once it is durable, and committed.

        ``value``: bytes, a text, or a protobuf message; a mebibyte at most. ``key``: messages of
        one key are in one substream, in the order in which they were appended; without one the
        substreams take turns. ``headers``: 64 names at most. ``about``: what else is to be said.
        Messages of threads that publish at the same time share an append.

        What the log does not answer is sent again, as the same append, for as long as
        ``sharedlog.open`` says. Raises then ``OutcomeUnknown``, of which ``settle`` asks again;
        ``LogFull``, ``LogUnavailable`` with ``appended`` False: the message is not there;
        ``NoSuchStream``; ``InvalidRequest`` for what is too large.
        """
        return self._publisher.publish(self._placed(stream, value, key, headers, about))

    def settle(self, unknown: OutcomeUnknown) -> Position:
        """Return where a message is of which this log said ``OutcomeUnknown``.

        Raises that again while it is still unknown, and what refused it if it is not there.
        """
        return self._publisher.settle(unknown.ticket)

    def close(self) -> None:
        """Let go of files and connections; idempotent. Who waits gets ``LogUnavailable``."""
        self._place.closing.set()
        self._place.engine.close()

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
        return self._place.run(rule)

    @property
    def _engine(self) -> Engine:
        return self._place.engine

    def _stream(self, stream: str | Stream) -> Stream:
        """Return a stream that exists; raises ``NoSuchStream``."""
        name = stream if isinstance(stream, str) else stream.name
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = self._run(find_stream(name))
        return found

    def _placed(
        self,
        stream: str | Stream,
        value: Value,
        key: bytes | str | None,
        headers: Mapping[str, bytes | str] | None,
        about: About | None,
    ) -> Placed:
        """Return the message as it is appended, and where."""
        found = self._stream(stream)
        if headers is not None:
            about = (about or About())._replace(headers=headers)
        data = key_bytes(key)
        substream = (
            next(self._rounds) % found.substreams
            if data is None
            else substream_of(data, found.substreams)
        )
        envelope = pack(value, data, about, time.time_ns() // 1000)
        return Placed(envelope, tag_of(found.name, substream))
