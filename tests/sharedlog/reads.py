"""What is in a log that tests have published to."""

from __future__ import annotations

import sharedlog
from sharedlog._core.message import Message
from sharedlog._core.reading import Reader
from sharedlog._core.streams import tag_of


def substream(log: sharedlog.Log, stream: str, number: int) -> list[Message]:
    """The committed messages of a substream, in order."""
    reader = Reader(tag_of(stream, number), log.incarnation)
    found: list[Message] = []
    while batch := log._run(reader.read(1000)).messages:
        found += [Message(each.envelope, each.position, stream, number, 0) for each in batch]
    return found


def messages(log: sharedlog.Log, stream: str) -> list[Message]:
    """All that is committed in a stream, by substream."""
    count = log._placing.stream(stream).substreams
    return [each for number in range(count) for each in substream(log, stream, number)]


def texts(log: sharedlog.Log, stream: str) -> list[str]:
    """Their values, sorted."""
    return sorted(each.text for each in messages(log, stream))
