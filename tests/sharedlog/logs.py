"""Small logs for tests of the rules."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from sharedlog._core.commit import Commit, Refused
from sharedlog._core.position import Position
from sharedlog._core.producers import NewMessage, ProducerId, grant
from sharedlog._core.reading import Reader
from sharedlog._core.steps import Rule
from sharedlog._core.streams import commits_tag, tag_of
from sharedlog._engines.driving import carry_out, do
from sharedlog._engines.engine import Engine
from sharedlog._engines.memory import MemoryEngine

INCARNATION = "f00d"
T = TypeVar("T")
TOKEN = b"0123456789abcdef"


def producer(engine: MemoryEngine, window: int = 1) -> ProducerId:
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
    after: Position | int | None = None,
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


def carry_out_at(engine: Engine, rule: Rule[T], at_us: int) -> T:
    """Carry a rule out as of this moment."""
    return carry_out_from(engine, rule, None, at_us)


def carry_out_from(engine: Engine, rule: Rule[T], answer: object, at_us: int = 0) -> T:
    """Carry a rule out to its end from where it waits for this answer."""
    step = next_step(rule, answer)
    while not isinstance(step, Ended):
        try:
            commits = isinstance(step, Commit)
            answer = engine.commit(step._replace(at_us=at_us)) if commits else do(engine, step)
        except Refused as refused:
            answer = refused
        step = next_step(rule, answer)
    return step.value


class Ended(NamedTuple):
    """What a rule returned."""

    value: Any


def next_step(rule: Rule[Any], answer: object) -> Any:
    """The step that a rule asks for next, or that it has ended."""
    try:
        return rule.throw(answer) if isinstance(answer, Refused) else rule.send(answer)
    except StopIteration as stop:
        return Ended(stop.value)


def to_commit(engine: Engine, rule: Rule[Any], answer: object = None) -> Any:
    """Carry a rule out to the next commit that it asks for, which is returned, or to its end."""
    step = next_step(rule, answer)
    while not isinstance(step, Commit | Ended):
        step = next_step(rule, do(engine, step))
    return step
