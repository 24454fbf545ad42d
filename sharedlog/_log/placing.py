"""The placing of messages: into which substream, in what envelope."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping

from sharedlog._core.catalog import Stream, find_stream, name_of
from sharedlog._core.envelope import About, Value, key_bytes, pack
from sharedlog._core.publishing import Placed, size_of
from sharedlog._core.streams import substream_of, tag_of
from sharedlog._log.place import Place

Headers = Mapping[str, bytes | str]


class Placing:
    """The streams that a log was asked for, and whose turn it is. Any thread."""

    def __init__(self, place: Place) -> None:
        """No stream is known yet."""
        self._place = place
        # Their substreams never change.
        self._known: dict[str, Stream] = {}
        self._tags: dict[str, list[str]] = {}
        # The next message without a key goes to the substream after the last one's.
        self._rounds = itertools.count()

    def stream(self, stream: str | Stream) -> Stream:
        """Return a stream that exists; raises ``NoSuchStream``."""
        name = name_of(stream)
        found = self._known.get(name)
        if found is None:
            found = self._place.run(find_stream(name))
            self.learn(found)
        return found

    def learn(self, stream: Stream) -> None:
        """Keep what the log has told of a stream."""
        self._tags[stream.name] = [tag_of(stream.name, each) for each in range(stream.substreams)]
        self._known[stream.name] = stream

    def knows(self, stream: str | Stream) -> bool:
        """Whether ``stream`` answers without asking the log."""
        return name_of(stream) in self._known

    def placed(
        self,
        stream: str | Stream,
        value: Value,
        key: bytes | str | None,
        headers: Headers | None,
        about: About | None,
        *,
        named: bool = False,
    ) -> Placed:
        """Return a message to append, and where; ``named``: with its content."""
        name = stream if isinstance(stream, str) else name_of(stream)
        tags = self._tags.get(name)
        if tags is None:
            self.stream(name)
            tags = self._tags[name]
        if headers is not None and (about is None or isinstance(about, About)):
            about = (about or About())._replace(headers=headers)
        data = None if key is None else key_bytes(key)
        if data is None:
            tag = tags[next(self._rounds) % len(tags)]
        else:
            tag = tags[substream_of(data, len(tags))]
        envelope = pack(value, data, about, time.time_ns() // 1000)
        seals = self._place.seals
        if seals is not None:
            envelope = seals.sealed(envelope, tag)
        content = b""
        if named:
            # The same whenever it is published: without the times, the trace, and the turn.
            told = about and about._replace(trace_parent="", trace_state="", event_time_us=None)
            content = name.encode() + b"/" + pack(value, data, told, 0)
        return Placed(envelope, tag, size_of(envelope, tag), content)
