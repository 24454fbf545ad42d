"""Small logs for tests of the rules."""

from __future__ import annotations

from sharedlog._core.position import Position
from sharedlog._core.producers import NewMessage, Producer, grant
from sharedlog._core.reading import Reader
from sharedlog._core.streams import commits_tag, tag_of
from sharedlog._engines.driving import carry_out
from sharedlog._engines.memory import MemoryEngine

INCARNATION = "f00d"
TOKEN = b"0123456789abcdef"


def producer(engine: MemoryEngine, window: int = 1) -> Producer:
    """A producer of the log."""
    return carry_out(engine, grant(TOKEN, window))


def message(text: str, substream: int = 0, *, pending: bool = False) -> NewMessage:
    """A message of the stream ``s``."""
    tags = (tag_of("s", substream),) if pending else (tag_of("s", substream), commits_tag("s"))
    return NewMessage(text.encode(), tags)


def pending(text: str, substream: int = 0) -> NewMessage:
    """A message that a marker decides."""
    return message(text, substream, pending=True)


def read(
    engine: MemoryEngine,
    substream: int = 0,
    after: Position | None = None,
    *,
    limit: int = 1000,
    ring: int = 10_000,
) -> list[tuple[Position, str]]:
    """All that is committed there, read by batches of about ``limit``."""
    reader = Reader(tag_of("s", substream), INCARNATION, after, ring=ring)
    found: list[tuple[Position, str]] = []
    while batch := carry_out(engine, reader.read(limit)).messages:
        found += [(each.position, each.envelope.decode()) for each in batch]
    return found


def texts(engine: MemoryEngine, substream: int = 0) -> list[str]:
    """The committed messages of a substream."""
    return [text for _, text in read(engine, substream)]
