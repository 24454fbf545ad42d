"""Model of the world: the store of a target, rows and its handlers' effects in one place.

It stands for any store of rifl's that has conditional rows: what is in one commit happens in one
moment, or not at all, and who asked may not hear of it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from chaos.sim.event_loop import EventLoop
from chaos.sim.faults import Fault, Point
from chaos.sim.player.cast import PlayerCast
from rifl._server.local_calls import Move, RecordPending, StoreUnavailable
from rifl.core._serving.later import Later
from sharedlog.v1 import target_pb2 as pb

__all__ = ["Effect", "Store", "Waits", "moved"]

_COMMIT_S = 0.002
# Presence of a replica in a shared store.
_BEAT_S, _PRESENT_S = 0.1, 1.0


class Effect(NamedTuple):
    """What a handler did: for an index of a number, with a message of a substream."""

    number: int
    tag: str
    place: tuple[int, int]
    body: bytes
    # When, of true time.
    at: float = 0.0


@dataclass
class Held:
    """What is durable."""

    id: str
    rows: dict[str, bytes] = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)

    def copy(self) -> Held:
        """Return a copy of its present state."""
        return Held(self.id, dict(self.rows), list(self.effects))


class Waits(Later):
    """A future of one event loop, as the rules wait for it."""

    __slots__ = ("_future", "record")

    def __init__(self, future: asyncio.Future[Any], *, record: object = None) -> None:
        self._future = future
        # What shared transactions give, once they commit.
        self.record = record

    @property
    def result(self) -> Any:
        """What came of it, once it is over."""
        return self._future.result()

    @property
    def error(self) -> BaseException | None:
        """Its error, once it is over."""
        return self._future.exception()

    def then(self, action: Callable[[], object]) -> None:
        """Have something done when it is over."""
        self._future.add_done_callback(lambda _: action())

    def wait(self) -> Any:
        """Never: there are no threads."""
        raise NotImplementedError

    def __await__(self) -> Generator[Any, Any, Any]:
        """Await the result; raises its error."""
        return (yield from self._future.__await__())


class Store:
    """Of one target, whichever of its processes live. ``shares``: transactions of several runs."""

    def __init__(self, cast: PlayerCast, name: str, *, shares: bool) -> None:
        self._cast = cast
        self.name = name
        self.shares = shares
        self._made = 0
        self.held = Held(self._new_id())
        self.copy: Held | None = None
        # Takes nothing until then; answers late, or not at all.
        self.full_until = self.lossy_until = 0.0
        # In which store of this target handlers ran for an index, by its number.
        self.ran: dict[int, dict[str, None]] = {}
        # What an index has passed over, by its key; and effects of runs that went on after that.
        self.skipped: set[tuple[str, int, int]] = set()
        self.late: list[Effect] = []
        # Its processes by what they drew as they opened it: when each has ended.
        self.ended: dict[str, float] = {}
        # What becomes of connections when another copy is put in its place.
        self._lives = 0

    def _new_id(self) -> str:
        self._made += 1
        return f"{self.name}.{self._made}"

    # What happens to it.

    def backup(self) -> None:
        """Keep a copy."""
        self.copy = self.held.copy()

    def restore(self, *, declared: bool) -> None:
        """Go on with the copy; ``declared``: by ``rifl restored``, which gives it another id."""
        if self.copy is None:
            return
        self._lives += 1
        self.held = self.copy.copy()
        if declared:
            self.held.id = self._new_id()

    def wipe(self) -> None:
        """Go on with nothing."""
        self._lives += 1
        self.held = Held(self._new_id())

    # What processes ask of it.

    def open(self) -> str:
        """Have a process open it; returns what it drew."""
        process = f"{self.name}.process{len(self.ended)}"
        self.ended[process] = math.inf
        return process

    def beats(self, process: str, *, shared: bool) -> int:
        """Return 0 of a process that is known to have ended, else how often it has beaten.

        A store of one process knows at once; over a shared one presence ends after a while.
        """
        now, ended_at = self._cast.loop.now, self.ended[process]
        if ended_at + (_PRESENT_S if shared else 0.0) <= now:
            return 0
        return 1 + int(min(now, ended_at) / _BEAT_S)

    def get(self, keys: Iterable[str]) -> Mapping[str, bytes | None]:
        """Return what is durable."""
        self._check(Point.INDEX)
        return {key: self.held.rows.get(key) for key in keys}

    def move(self, events: EventLoop, moves: Sequence[Move], *, point: Point) -> Waits:
        """Move rows, durably."""
        return self.commit(events, moves, (), point=point)

    def commit(
        self, events: EventLoop, moves: Sequence[Move], effects: Sequence[Effect], *, point: Point
    ) -> Waits:
        """Have effects, and rows moved, in a while: whether they were."""
        self._check(point)
        future = events.create_future()
        delay = _COMMIT_S * (0.5 + self._cast.random.random())
        self._cast.loop.after(
            delay, self._commit, self._lives, events, future, tuple(moves), tuple(effects), point
        )
        return Waits(future)

    def _check(self, point: Point) -> None:
        if self.full_until > self._cast.loop.now:
            self._cast.coverage.hit(Fault.FULL_DISK, point)
            raise StoreUnavailable("no space left")

    def _commit(
        self,
        life: int,
        events: EventLoop,
        future: asyncio.Future[Any],
        moves: tuple[Move, ...],
        effects: tuple[Effect, ...],
        point: Point,
    ) -> None:
        cast = self._cast
        alive = events.process.alive
        lossy = self.lossy_until > cast.loop.now and cast.random.random() < 0.5
        # Of a process that died meanwhile it may have arrived.
        arrives = (alive or cast.random.random() < 0.5) and life == self._lives
        if lossy and cast.random.random() < 0.5:
            arrives = False
        found: Any = False
        if arrives:
            rows = moved(self.held.rows, moves)
            found = rows is not None
            if rows is not None:
                self.held.rows = rows
                self._note_skips(moves)
                for each in effects:
                    self.effect(each._replace(at=cast.loop.now))
        if lossy or life != self._lives:
            cast.coverage.hit(Fault.STORE_LOSS, point)
            found = RecordPending("it is not known whether it was committed")
        events.process.after(0.0, _end, future, found)

    def _note_skips(self, moves: Iterable[Move]) -> None:
        for each in moves:
            if each.key.startswith("index/"):
                skipped = pb.KeptIndex.FromString(each.value).skipped
                self.skipped |= {(each.key, at.place.lsn, at.place.ordinal) for at in skipped}

    def effect(self, effect: Effect) -> None:
        """Have the effect of a handler whose index is moved by itself."""
        self.ran.setdefault(effect.number, {})[self.held.id] = None
        self.held.effects.append(effect)


def moved(rows: Mapping[str, bytes], moves: Iterable[Move]) -> dict[str, bytes] | None:
    """Return rows once they were moved, one move after the other; None where one is not so."""
    found = dict(rows)
    for each in moves:
        if found.get(each.key) != each.expected:
            return None
        found[each.key] = each.value
    return found


def _end(future: asyncio.Future[Any], found: Any) -> None:
    if future.done():
        return
    if isinstance(found, Exception):
        future.set_exception(found)
    else:
        future.set_result(found)
