"""Driver of the product's ``RedisLane`` and of redis-py, whose requests travel.

What is put in the place of the product's is a connection: what it sends travels, and the server at
the other end is ``RedisData``.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import redis
import redis.backoff
import redis.connection
import redis.retry

from chaos.sim.consumer.database import Effect
from chaos.sim.consumer.names import CONSUMER, TAGS
from chaos.sim.consumer.redis_data import RedisData, Session
from chaos.sim.consumer.stage import Acting, Stage, read_first
from chaos.sim.consumer.wire import Lost, Wire
from chaos.sim.faults import Fault, Point
from sharedlog._consumer.redis import PREFIX, RedisLane
from sharedlog._core.position import Position

__all__ = ["TEXT", "TOTAL", "RedisDatabase", "opened"]

# What all shards count together, who read it first.
TOTAL = b"total"
# A list to those who are wrong about it.
TEXT = b"text"
_SCRIPTS = (b"EVAL", b"EVALSHA")


class RedisDatabase:
    """The server, and what is in it."""

    def __init__(self) -> None:
        self.data = RedisData()
        self.data.keys[TEXT] = b""
        # Who looks at what each request has made of it.
        self.watchers: list[Callable[[], None]] = []
        self._copy: RedisData | None = None

    def carry(
        self, session: Session, commands: Sequence[Sequence[bytes]], *, full: bool
    ) -> list[Any]:
        """Answer what arrives at once."""
        self.data.full = full
        found = self.data.carry(session, commands)
        for each in self.watchers:
            each()
        return found

    def effects(self, shard: str) -> list[Effect]:
        """Return a shard's effects, in their order."""
        return [Effect(*each[1:]) for each in self._written(shard)]

    def ticks(self, shard: str) -> int:
        """Return how often the timer's function was committed."""
        return int(self.data.keys.get(f"tick:{shard}".encode(), 0))

    def total(self) -> int:
        """Return what was counted."""
        return int(self.data.keys.get(TOTAL, 0))

    def seq(self, shard: str) -> int:
        """Return through which seq a shard's outputs are committed."""
        return int(self._row(shard).get(b"seq", 0))

    def position(self, shard: str) -> str:
        """Return through which message a shard's effects are there, as text."""
        return self._row(shard).get(b"position", b"").decode()

    def attempts(self) -> list[tuple[str, str, int]]:
        """Return of each shard through which message it is done, and attempts of the next."""
        return [
            (tag, self.position(tag), int(self._row(tag).get(b"attempts", 0)))
            for tag in TAGS
            if self._row(tag)
        ]

    def mend(self, shard: str) -> None:
        """Undo the part of a transaction that a failed command has left, as an operator would."""
        if not self._row(shard).get(b"broken"):
            return
        done = _place(self.position(shard))
        kept = [each for each in self._written(shard) if _place(each[0]) <= done]
        session = Session()
        commands = [[b"DEL", f"{each}:{shard}".encode()] for each in ("effect", "chain")]
        if kept:
            written = [json.dumps(each).encode() for each in kept]
            commands.append([b"RPUSH", f"effect:{shard}".encode(), *written])
            commands.append([b"SET", f"chain:{shard}".encode(), kept[-1][2].encode()])
        self.data.full = False
        self.data.carry(session, commands)
        if read_first("redis", shard):
            count = sum(len(self._written(tag)) for tag in TAGS if read_first("redis", tag))
            self.data.carry(session, [[b"SET", TOTAL, b"%d" % count]])

    def clear(self) -> None:
        """Have nothing be there that is the user's."""
        names = ("effect", "chain", "tick")
        keys = [TOTAL, *(f"{name}:{tag}".encode() for name in names for tag in TAGS)]
        self.data.full = False
        for each in keys:
            self.data.carry(Session(), [[b"DEL", each]])

    def backup(self) -> None:
        """Keep a copy of its present state."""
        self._copy = self.data.copied()

    def restore(self) -> bool:
        """Be as the copy; False: there is none.

        A part of a transaction that it has may have been undone, and its shard let go on, since:
        nothing in the copy says so, and who puts it back has to undo it again.
        """
        if self._copy is None:
            return False
        self.data.restore(self._copy)
        for tag in TAGS:
            self.mend(tag)
        return True

    def close(self) -> None:
        """Nothing is held."""

    def _written(self, shard: str) -> list[Any]:
        return [json.loads(each) for each in self.data.keys.get(f"effect:{shard}".encode(), ())]

    def _row(self, shard: str) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = self.data.keys.get(f"{PREFIX}{CONSUMER}:{shard}".encode(), {})
        return found


def opened(cast: Stage, actor: Acting, database: RedisDatabase, wire: Wire) -> RedisLane:
    """Open the product's store, from a process."""
    clients: Any = _Clients(cast, actor, database, wire)
    return RedisLane(clients, CONSUMER)


class _Clients:
    """What a store needs of ``Clients``."""

    def __init__(self, *given: Any) -> None:
        pool = redis.ConnectionPool(_Connection, given=given, protocol=2)
        self.blocking = redis.Redis(connection_pool=pool)

    def weakness(self) -> str:
        """See ``Clients``: this one keeps what it acknowledges."""
        return ""

    def close(self) -> None:
        """See ``Clients``."""


class _Connection(redis.connection.Connection):
    """Whose requests travel, and whose thread parks."""

    def __init__(self, *, given: Any, **options: Any) -> None:
        never = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        super().__init__(**{**options, "retry": never})  # type: ignore[no-untyped-call]
        self._cast, self._actor, self._database, self._wire = given
        self._session: Session | None = None
        self._replies: deque[Any] = deque()

    def connect(self) -> None:
        """Have the server know it, in no time."""
        self._session = self._session or Session()

    def disconnect(self, *_: Any, **__: Any) -> None:
        """Have the server forget it, with what it watched."""
        self._session = None
        self._replies.clear()

    def can_read(self, timeout: float = 0) -> bool:
        """Nothing comes unasked."""
        del timeout
        return bool(self._replies)

    def should_reconnect(self) -> bool:
        """It is as good as any."""
        return False

    def pack_commands(self, commands: Any) -> Any:
        """Keep them apart."""
        return list(commands)

    def send_command(self, *args: Any, **_: Any) -> None:
        """Send one, and wait."""
        self.send_packed_command([args])

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Send several at once, and wait until they are answered."""
        del check_health
        session = self._session = self._session or Session()
        commands = [self._words(each) for each in command]
        if commands == [[b"UNWATCH"]]:
            # Asked when a transaction is released, which may be whenever memory is freed.
            session.watched.clear()
            self._replies.append(b"OK")
            return
        point = _point(commands)

        def do() -> list[Any]:
            full = self._cast.full_until > self._cast.loop.now
            found: list[Any] = self._database.carry(session, commands, full=full)
            if full and b"OOM" in repr(found).encode():
                self._cast.coverage.hit(Fault.FULL_DISK, point)
            return found

        try:
            self._replies.extend(self._wire.ask(self._actor, point, do))
        except Lost as error:
            self.disconnect()
            raise redis.TimeoutError("the store does not answer") from error

    def read_response(self, *_: Any, **__: Any) -> Any:
        """Return the next answer, or raise it."""
        found = self._replies.popleft()
        if isinstance(found, redis.RedisError):
            raise found
        return found

    def _words(self, args: Sequence[Any]) -> list[bytes]:
        first = args[0].encode() if isinstance(args[0], str) else args[0]
        return [*first.split(), *(self.encoder.encode(each) for each in args[1:])]


def _point(commands: Sequence[Sequence[bytes]]) -> Point:
    """What a request of a consumer is for."""
    words = next((each for each in commands if each[0] in _SCRIPTS), None)
    if words is None:
        return Point.STORE_TAKEN if commands[0][0] in (b"HGETALL", b"SCRIPT") else Point.HANDLER
    count = int(words[2])
    if len(words) == 3 + count + 3 and count == 1:
        return Point.STORE_TAKEN
    if words[4] == words[3]:
        return Point.NOTE
    if len(words) == 3 + count + 3:
        return _of_call(words[-1])
    return Point.STORE_COMMIT


def _of_call(value: bytes) -> Point:
    """What is kept of a call; or a reset, which has an epoch there."""
    if not value.startswith(b"["):
        return Point.STORE_TAKEN
    return Point.INTENDED if json.loads(value)[-1] is None else Point.ANSWER_KEPT


def _place(position: str) -> tuple[int, int]:
    if not position:
        return (0, 0)
    found = Position.parse(position)
    return found.lsn, found.ordinal
