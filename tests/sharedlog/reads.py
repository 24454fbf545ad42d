"""Reads of a log that tests have published to."""

from __future__ import annotations

import sharedlog
from sharedlog._core.message import Message
from sharedlog._core.roster import granted_producers


def substream(log: sharedlog.Log, stream: str, number: int) -> list[Message]:
    """The committed messages of a substream, in order."""
    found: list[Message] = []
    while batch := log.read(stream, number, found[-1] if found else None):
        found += batch
    return found


def messages(log: sharedlog.Log, stream: str) -> list[Message]:
    """All that is committed in a stream, by substream."""
    count = log._placing.stream(stream).substreams
    return [each for number in range(count) for each in substream(log, stream, number)]


def texts(log: sharedlog.Log, stream: str) -> list[str]:
    """Their values, sorted."""
    return sorted(each.text for each in messages(log, stream))


def pending(log: sharedlog.Log) -> list[int]:
    """The producers that have something pending."""
    return [each.id for each in log._run(granted_producers()) if each.pending]
