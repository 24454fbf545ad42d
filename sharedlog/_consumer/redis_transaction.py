"""The transaction of a handler over Redis: a pipeline of redis-py, which the consumer commits."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn

import redis
import redis.client

from _rifl_ground.counting import counts, noted
from _rifl_ground.loans import Loan
from _rifl_ground.redis.failures import by_redis
from sharedlog._core.consumer.asked import BatchEnds, Failed
from sharedlog._core.errors import InvalidRequest

_OURS = "the consumer commits what a handler queues, with its checkpoint"
# What would reach further than the keys of a command.
_REFUSED = {"FLUSHALL", "FLUSHDB", "SELECT", "SWAPDB", "MULTI", "EXEC", "DISCARD"}
# A script takes no more of one command.
_MOST_WORDS = 5000
# How long the end of a handler waits for a command that another thread has in flight.
IN_FLIGHT_S = 10.0


class Info(NamedTuple):
    """What the server says of a command: how many words it has, -N: N at least; its flags."""

    arity: int
    flags: frozenset[str]


class Command(NamedTuple):
    """A queued command: the words that are sent."""

    writes: bool
    words: list[bytes]


class RedisTransaction(redis.client.Pipeline):
    """A ``redis.client.Pipeline`` of one handler, whose commands the consumer commits.

    As in redis-py: what is called is queued, and returns the pipeline. After ``watch`` commands
    that read are answered at once, until ``multi``; where a watched key changes until the commit
    the handler runs again.
    """

    def __init__(
        self,
        client: Any,
        prefix: str,
        info: Callable[[str], Info | None],
        loan: Loan,
        *,
        first: bool,
    ) -> None:
        """``prefix``: keys that are the consumer's begin so; ``info``: of a command.

        ``first``: no other handler of the transaction was before.
        """
        self._loan = loan
        # A command is in flight.
        self._in_flight = threading.RLock()
        # A command is queued, or asked.
        self._asking = False
        super().__init__(client.connection_pool, client.response_callbacks, True, None)
        self._encoder = client.get_encoder()
        self._prefix = prefix.encode()
        self._info = info
        self._first = first
        # What has ended the transaction, if anything has.
        self._ended: BaseException | None = None

    def take_back(self) -> None:
        """The handler has ended: wait for a command that is in flight, for a while.

        Then the connection is closed, which fails the command.
        """
        self._loan.over = True
        connection = self.connection
        if not self._in_flight.acquire(timeout=IN_FLIGHT_S):
            self._ended = InvalidRequest("the handler has left a command in flight")
            if connection is not None:
                connection.disconnect()
            return
        self._in_flight.release()

    def taken(self) -> list[Command]:
        """Return what the handler has queued; raises ``Failed`` if it hid an end."""
        if self._ended is not None:
            why = "the handler has hidden the end of its transaction, or left a command in flight"
            raise Failed(why, counts=counts(self._ended, by_redis)) from self._ended
        stack, self.command_stack = self.command_stack, []
        return [self._command(args) for args, _ in stack]

    def give_back(self) -> None:
        """Give the connection back, if there is one."""
        self._loan.over = True
        super().reset()

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        """Have a block queue nothing, if an exception leaves it."""
        self._loan.check()
        before = len(self.command_stack)
        try:
            yield
        except BaseException:
            if not self._loan.over:
                del self.command_stack[before:]
            raise

    def watch(self, *names: Any) -> Any:
        """See redis-py. A message that watches begins a transaction of its own."""
        self._loan.check()
        if not self._first:
            # What others queued would not be in what it reads.
            self._ended = BatchEnds()
            raise self._ended
        return super().watch(*names)  # type: ignore[no-untyped-call]

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Queue a command, or have it be answered at once after ``watch``."""
        with self._in_flight:
            self._loan.check()
            return self._executed(args, options)

    def _executed(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        self._check(args)
        self._asking = True
        try:
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except (redis.ResponseError, redis.DataError) as error:
            # An answer; or nothing was sent.
            noted(error)
            raise
        except BaseException as error:
            noted(error)
            # Redis-py releases the connection, and with that of what the server watches: also
            # where something interrupts it, a signal's handler, say. The next command would go
            # on with another one.
            self._ended = error
            raise
        finally:
            self._asking = False

    def carry(self, *words: Any) -> Any:
        """Carry a command out unless a key that was watched has changed: None, then.

        Not by ``execute``, which says of a connection that was lost that a key has changed:
        whether the command was carried out is not known then.
        """
        connection = self.connection
        if connection is None:
            raise redis.ConnectionError("the connection that watched is lost")
        commands = connection.pack_commands([("MULTI",), words, ("EXEC",)])
        # No health check, which would go on with a connection that watches nothing.
        connection.send_packed_command(commands, check_health=False)
        refused: redis.ResponseError | None = None
        for _ in range(2):
            try:
                connection.read_response()
            except redis.ResponseError as error:
                refused = refused or error
        try:
            found = connection.read_response()
        except redis.exceptions.ExecAbortError as error:
            raise refused or error from error
        self.watching = False
        return None if found is None else found[0]

    def execute(self, raise_on_error: bool = True) -> NoReturn:
        """Refuse: the consumer does."""
        self._loan.check()
        raise InvalidRequest(_OURS)

    def reset(self) -> None:  # type: ignore[override]
        """Refuse: the consumer does. Redis-py may, when it has lost the connection."""
        if not self._asking:
            self._loan.check()
            raise InvalidRequest(_OURS)
        super().reset()

    def __enter__(self) -> RedisTransaction:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def _check(self, args: tuple[Any, ...]) -> None:
        """Refuse what no script can run, and what would be there without the commit.

        A command that the script finds wrong ends it in the midst.
        """
        words = self._words(args)
        name = words[0].decode("utf-8", "replace").upper()
        if name in {"WATCH", "UNWATCH"}:
            return
        info = self._info(name)
        if info is None:
            raise InvalidRequest(f"Redis has no command {name}")
        if name in _REFUSED or info.flags & {"noscript", "blocking", "admin", "pubsub"} - {
            "pubsub" if name in {"PUBLISH", "SPUBLISH"} else ""
        }:
            raise InvalidRequest(f"{name} is no command of a handler's transaction")
        if len(words) > _MOST_WORDS:
            raise InvalidRequest(f"a command has {_MOST_WORDS} words at most: use several commands")
        if len(words) < abs(info.arity) or (0 < info.arity != len(words)):
            raise InvalidRequest(f"{name} with {len(words) - 1} arguments")
        if any(each.startswith(self._prefix) for each in words[1:2]):
            raise InvalidRequest(f"keys that begin with {self._prefix.decode()} are the consumer's")
        if self.watching and not self.explicit_transaction and "readonly" not in info.flags:
            raise InvalidRequest(f"{name} comes after multi(): what is answered at once reads")

    def _command(self, args: tuple[Any, ...]) -> Command:
        words = self._words(args)
        info = self._info(words[0].decode("utf-8", "replace").upper())
        return Command(info is None or "readonly" not in info.flags, words)

    def _words(self, args: tuple[Any, ...]) -> list[bytes]:
        first = args[0].encode() if isinstance(args[0], str) else bytes(args[0])
        return [*first.split(), *(self._encoder.encode(each) for each in args[1:])]
