"""A consumer's store in a Redis, which is the user's."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from importlib.resources import files
from typing import Any, NamedTuple, NoReturn

import redis

from _rifl_ground.counting import Counts, noted
from _rifl_ground.loans import Loan
from _rifl_ground.log import get_logger
from _rifl_ground.redis.address import RedisAddress
from _rifl_ground.redis.clients import Clients
from _rifl_ground.redis.failures import by_redis, passes
from _rifl_ground.redis.lua import Script
from _rifl_ground.servers import InvalidAddress
from sharedlog._consumer.lending import handler_ended
from sharedlog._consumer.redis_transaction import (
    Command,
    Info,
    RedisTransaction,
)
from sharedlog._core.consumer.asked import Failed, PartialTransaction, Unit
from sharedlog._core.consumer.calls import HandlerCall
from sharedlog._core.consumer.checkpoint import Checkpoint
from sharedlog._core.consumer.members import Gone
from sharedlog._core.consumer.outputs import pieces_of
from sharedlog._core.errors import (
    Fenced,
    InvalidRequest,
    LogError,
    NotDurable,
    StoreAway,
)
from sharedlog._core.position import Position
from sharedlog._engines.engine import Engine

_log = get_logger("sharedlog")
PREFIX = "sharedlog:consumer:"
_SCRIPTS = {
    name: Script(files(__package__) / "scripts", (name,))
    for name in ("take", "rewind", "keep", "commit")
}


class _Part(NamedTuple):
    """What a script does as one: the effects of a message, mostly, and what goes with them.

    ``head`` and the ``piece`` of this part and of those before it are the intent.
    """

    position: Position | None
    head: bytes
    piece: bytes
    label: bytes
    gone: Sequence[int]
    commands: Sequence[Command]


class RedisLane:
    """A store in Redis. A transaction is queued until its commit, which is one script."""

    def __init__(self, clients: Clients, name: str) -> None:
        """``clients``: of one server that forgets nothing. ``name``: the consumer's."""
        self._name = name
        self._clients = clients
        self._client = clients.blocking
        # What the handler that runs was lent; None: it has ended.
        self._lent: RedisTransaction | None = None
        # Of the transaction that runs: what its handlers have queued, how much that was behind
        # each of them, and the one that watches keys until the commit.
        self._queued: list[Command] = []
        self._ends: list[int] = []
        self._watching: RedisTransaction | None = None
        self._known: dict[str, Info | None] = {}
        # The calls of shards: their serials, and the places of their messages. Of all lanes.
        self._serials: dict[str, dict[int, tuple[int, int]]] = {}

    def lane(self) -> RedisLane:
        """Return another lane, or None if the store cannot have one."""
        found = RedisLane(self._clients, self._name)
        found._serials = self._serials
        return found

    def joined(self, _: Engine) -> None:
        """Return None: the log is elsewhere."""

    def take(self, tag: str, number: int, *, gone: Gone, anew: bool) -> Checkpoint:
        """Raise the shard's fence to the number, and return the checkpoint."""
        found = self._ask("take", (self._row(tag),), (number, int(gone), int(anew)))
        if found[0] != b"ok":
            raise self._fenced(tag, number, found)
        position, seq, intent, takeovers, attempts, broken, epoch = found[1:]
        return Checkpoint(
            number,
            Position.parse(position.decode()) if position else None,
            int(seq or 0),
            intent,
            int(takeovers or 0),
            int(attempts or 0),
            broken.decode("utf-8", "replace"),
            int(epoch or 0),
        )

    def note(self, tag: str, number: int, attempts: int) -> None:
        """Note attempts, durably, if the fence has the number."""
        self._keep(tag, number, self._row(tag), "attempts", attempts)

    def rewind(self, tag: str, number: int, epoch: int, position: Position | None) -> None:
        """Set the position in a new epoch, if the fence has the number."""
        keys = (self._row(tag), self._calls(tag))
        found = self._ask("rewind", keys, (number, str(position or ""), epoch))
        if found[0] != b"ok":
            raise self._fenced(tag, number, found)

    def calls(self, tag: str) -> Sequence[HandlerCall]:
        """Return the kept calls of a shard, by their serials (T6)."""
        with _errors():
            rows: dict[bytes, bytes] = self._client.hgetall(self._calls(tag))
        found = sorted((_read_call(int(at), row) for at, row in rows.items()), key=_serial)
        self._serials[tag] = {each.serial: _place(each) for each in found}
        return found

    def intend(self, tag: str, number: int, call: HandlerCall) -> None:
        """Keep a call, durably, apart from the transaction that runs."""
        self._keep(tag, number, self._calls(tag), call.serial, _written_call(call))
        self._serials.setdefault(tag, {})[call.serial] = _place(call)

    def answered(self, tag: str, number: int, call: HandlerCall) -> None:
        """Keep a call's answer, durably, if the fence has the number."""
        self._keep(tag, number, self._calls(tag), call.serial, _written_call(call))

    def written(self) -> None:
        """Do nothing: queued commands block no other client."""

    def suspend(self) -> None:
        """Do nothing: queued commands block no other client."""

    def resume(self, *, read: bool) -> None:
        """Do nothing, as ``suspend``."""

    def begin(self) -> None:
        """Begin a transaction."""
        self._queued, self._ends = [], []

    def lend(self, loan: Loan) -> Any:
        """Return the connection that a handler uses, until the loan is over."""
        self._lent = RedisTransaction(self._client, PREFIX, self._info, loan, first=not self._ends)
        return self._lent

    def take_back(self) -> None:
        """End the loan: uses of the connection raise ``HandlerEnded``."""
        if self._lent is not None:
            self._lent.take_back()

    def savepoint(self) -> AbstractContextManager[object]:
        """Return a context manager that rolls its block back if an exception leaves it."""
        if self._lent is None:
            raise handler_ended()
        return self._lent.savepoint()

    def sqlalchemy(self) -> NoReturn:
        """There is no SQL."""
        raise InvalidRequest("effects.sqlalchemy is for SQLite and PostgreSQL")

    def intact(self) -> None:
        """Raise ``Failed`` if a handler has ended the transaction."""
        lent = self._lent
        if lent is not None:
            self._queued += lent.taken()
            self._ends.append(len(self._queued))
            if lent.watching:
                self._watching, self._lent = lent, None

    def commit(
        self, tag: str, checkpoint: Checkpoint, units: Sequence[Unit] = ()
    ) -> PartialTransaction | None:
        """Commit with the checkpoint. ``Failed`` with ``partial``: earlier commands are done."""
        commands = self._queued
        parts = self._parts(tag, checkpoint, units, commands)
        try:
            found = self._commit(tag, _arguments(checkpoint, parts), self._watching)
        finally:
            self.rollback()
        if found[0] == b"fenced":
            raise self._fenced(tag, checkpoint.number, found)
        done = len(parts) if found[0] == b"ok" else int(found[4])
        for part in parts[:done]:
            for serial in part.gone:
                del self._serials[tag][serial]
        if found[0] == b"ok":
            return None
        why, partial = found[2].decode("utf-8", "replace"), found[1] == b"1"
        failing = parts[done]
        words = failing.commands[int(found[3]) - 1].words
        told = f"{b' '.join(words[:2]).decode('utf-8', 'replace')}: {why}"
        if partial:
            told = f"{failing.label.decode()}: {told}"
        failed = Failed(told, counts=partial or not passes(why), partial=partial)
        if not done:
            raise failed
        return PartialTransaction(done, failed)

    def rollback(self) -> None:
        """Roll back the transaction, if there is one; does not fail."""
        self._queued, self._ends = [], []
        lent, self._lent = self._lent, None
        watching, self._watching = self._watching, None
        for each in (lent, watching):
            if each is not None:
                with contextlib.suppress(redis.RedisError, OSError):
                    each.give_back()

    def judge(self, error: BaseException) -> Counts:
        """Return whether a handler's error counts as an attempt."""
        return by_redis(error)

    def close(self) -> None:
        """Close the store; idempotent."""
        self.rollback()
        self._clients.close()

    def _commit(
        self, tag: str, given: Sequence[Any], transaction: RedisTransaction | None
    ) -> list[Any]:
        keys = (self._row(tag), self._calls(tag))
        if transaction is None or not transaction.watching:
            return self._ask("commit", keys, given)
        with _errors():
            self._refuse_weak()
            found = transaction.carry("EVAL", _SCRIPTS["commit"].text, len(keys), *keys, *given)
            if found is None:
                raise Failed("a key that a handler watched has changed", counts=False)
            if isinstance(found, Exception):
                raise found
            return list(found)

    def _keep(self, tag: str, number: int, key: str, field: Any, value: Any) -> None:
        found = self._ask("keep", (self._row(tag), key), (number, field, value))
        if found[0] != b"ok":
            raise self._fenced(tag, number, found)

    def _parts(
        self,
        tag: str,
        checkpoint: Checkpoint,
        units: Sequence[Unit],
        commands: Sequence[Command],
    ) -> list[_Part]:
        """Part a transaction by its messages, or have it be one part."""
        ends = self._ends
        position, intent = checkpoint.position, checkpoint.intent
        if not units or len(units) != len(ends):
            gone = self._gone(tag, position)
            label = f"the transaction through {position}, which is done again as a whole"
            return [_Part(position, intent, b"", label.encode(), gone, commands)]
        found: list[_Part] = []
        passed: set[int] = set()
        begin = 0
        pieces = pieces_of(intent, [each.outputs for each in units])
        for unit, end, (head, piece) in zip(units, ends, pieces, strict=True):
            gone = [each for each in self._gone(tag, unit.position) if each not in passed]
            passed.update(gone)
            label = f"the message {unit.position}, which is done again"
            own = commands[begin:end]
            found.append(_Part(unit.position, head, piece, label.encode(), gone, own))
            begin = end
        return found

    def _gone(self, tag: str, position: Position | None) -> list[int]:
        """Return the calls of messages that are done; the newest stays, as serials only grow."""
        known = self._serials.get(tag)
        if not known or position is None:
            return []
        place = (position.lsn, position.ordinal)
        return [each for each, at in known.items() if at <= place and each < max(known)]

    def _ask(self, script: str, keys: Sequence[str], given: Sequence[Any]) -> list[Any]:
        with _errors():
            self._refuse_weak()
            parts = (len(keys), *keys, *given)
            return list(_SCRIPTS[script].run(self._client, parts))

    def _refuse_weak(self) -> None:
        if weak := self._clients.weakness():
            raise StoreAway(f"the store may forget what it acknowledges: {weak}")

    def _info(self, name: str) -> Info | None:
        """Return what the server says of a command; None: it has none of that name."""
        if name not in self._known:
            with _errors():
                (found,) = self._client.execute_command("COMMAND INFO", name)
            known = None
            if found is not None:
                flags = frozenset(
                    each.decode() if isinstance(each, bytes) else str(each) for each in found[2]
                )
                known = Info(int(found[1]), flags)
            self._known[name] = known
        return self._known[name]

    def _fenced(self, tag: str, number: int, found: Sequence[Any]) -> Fenced:
        fence = int(found[1])
        return Fenced(
            f"the store has {tag} of the consumer {self._name!r} at fence {fence}, this process "
            f"holds {number}: another one took over",
            fence,
        )

    def _row(self, tag: str) -> str:
        return f"{PREFIX}{self._name}:{tag}"

    def _calls(self, tag: str) -> str:
        return f"{PREFIX}{self._name}:{tag}:calls"


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except (LogError, Failed):
        raise
    except (redis.RedisError, OSError) as error:
        why = f"the store: {type(error).__name__}: {error}"
        raise noted(StoreAway(why)) from error


def open_redis(url: str, name: str) -> RedisLane:
    """Open the store of a consumer; raises ``NotDurable`` for a server that may forget."""
    try:
        address = RedisAddress.parse(url)
    except InvalidAddress as error:
        raise InvalidRequest(str(error)) from error
    if address.clustered or "decode_responses" in address.options:
        raise InvalidRequest(
            "a consumer's Redis is one server, or Sentinel's: a transaction's keys are in one "
            "place; and what it answers is bytes"
        )
    clients = Clients(address, retries=0)
    try:
        with _errors():
            for setting, cost in clients.check_durability(NotDurable):
                _log.warning("store_not_durable", store=str(address), setting=setting, cost=cost)
    except BaseException:
        clients.close()
        raise
    return RedisLane(clients, name)


def _arguments(checkpoint: Checkpoint, parts: Sequence[_Part]) -> list[Any]:
    seq = checkpoint.seq
    found: list[Any] = [checkpoint.number, seq - bool(checkpoint.intent), seq, len(parts)]
    for position, head, piece, label, gone, commands in parts:
        found += (str(position or ""), head, piece, label, len(gone), *gone, len(commands))
        for writes, words in commands:
            found += (int(writes), len(words), *words)
    return found


def _serial(call: HandlerCall) -> int:
    return call.serial


def _place(call: HandlerCall) -> tuple[int, int]:
    return call.position.lsn, call.position.ordinal


def _written_call(call: HandlerCall) -> bytes:
    answer = None if call.answer is None else base64.b64encode(call.answer).decode()
    request = base64.b64encode(call.request).decode()
    return json.dumps([str(call.position), *call[2:7], request, answer]).encode()


def _read_call(serial: int, row: bytes) -> HandlerCall:
    position, number, session, client, target, method, request, answer = json.loads(row)
    return HandlerCall(
        serial,
        Position.parse(position),
        number,
        session,
        client,
        target,
        method,
        base64.b64decode(request),
        None if answer is None else base64.b64decode(answer),
    )
