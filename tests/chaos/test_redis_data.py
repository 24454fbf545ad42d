"""The simulator's Redis answers a consumer's requests as a real one does (DESIGN-LOG §14)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from random import Random
from typing import Any

import pytest
import redis

import sharedlog._consumer
from chaos.redis_server import RedisServer
from chaos.sim.consumer.redis_data import RedisData, Session

_SEQUENCES, _STEPS = 60, 60
_SCRIPTS = {
    name: (files(sharedlog._consumer) / "scripts" / f"{name}.lua").read_bytes()
    for name in ("take", "keep", "rewind", "commit")
}
_KEYS = [b"a", b"b", b"c"]
_ROW, _CALLS = b"row", b"row:calls"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A real one, which may forget: no crash is asked for here."""
    started = RedisServer(tmp_path_factory.mktemp("redis"), appendfsync="no")
    yield started
    started.stop()


class _Real:
    """Two connections to the server, and one for what is beside them."""

    def __init__(self, server: RedisServer) -> None:
        self._aside = redis.Redis.from_url(server.url(), protocol=2)
        pools = [redis.ConnectionPool.from_url(server.url(), protocol=2) for _ in range(2)]
        self._connections = [each.get_connection() for each in pools]

    @property
    def version(self) -> int:
        return int(self._aside.info("server")["redis_version"].split(".")[0])

    def clear(self) -> None:
        self.limit(full=False)
        self._aside.flushall()
        for each in self._connections:
            each.send_command("UNWATCH")
            each.read_response()

    def limit(self, *, full: bool) -> None:
        self._aside.config_set("maxmemory", 1 if full else 0)

    def ask(self, who: int, commands: list[list[bytes]]) -> list[Any]:
        connection = self._connections[who]
        connection.send_packed_command(connection.pack_commands(commands))
        found = []
        for _ in commands:
            try:
                found.append(connection.read_response())
            except redis.RedisError as error:
                found.append(error)
        return found


class _Simulated:
    """The same of the simulator's, of the real one's version."""

    def __init__(self, real: _Real) -> None:
        self._queues_when_full = real.version >= 8
        self.clear()

    def clear(self) -> None:
        self._data = RedisData()
        self._data.queues_when_full = self._queues_when_full
        self._sessions = [Session(), Session()]

    def limit(self, *, full: bool) -> None:
        self._data.full = full

    def ask(self, who: int, commands: list[list[bytes]]) -> list[Any]:
        return self._data.carry(self._sessions[who], commands)


def test_it_answers_as_a_real_one(server: RedisServer) -> None:
    """Its commands, WATCH, and the scripts, of which each branch is taken (T1, T2, T5, T6)."""
    real = _Real(server)
    simulated = _Simulated(real)
    seen: Counter[str] = Counter()
    for seed in range(_SEQUENCES):
        dice = Random(seed)
        real.clear()
        simulated.clear()
        lines: list[str] = []
        for _ in range(_STEPS):
            full = dice.random() < 0.1
            who, commands = dice.randrange(2), _request(dice)
            answers = []
            for subject in (real, simulated):
                subject.limit(full=full)
                told = [_told(each) for each in subject.ask(who, commands)]
                # In no order.
                hashed = commands[0][0] == b"HGETALL"
                answers.append([_pairs(each) for each in told] if hashed else told)
            lines.append(f"{who} full={full} {_shown(commands)}: {answers}")
            if answers[0] != answers[1]:
                pytest.fail("\n".join([f"sequence {seed}", *lines]))
            seen.update(_kinds(commands, answers[0]))
    assert {
        "take ok",
        "take fenced",
        "keep ok",
        "keep fenced",
        "rewind ok",
        "rewind fenced",
        "commit ok",
        "commit fenced",
        "commit failed 0",
        "commit failed 1",
        "commit failed 0 behind others",
        "commit failed 1 behind others",
        "OOM",
        "a key that was watched has changed",
    } <= {*seen}


def test_it_says_of_commands_what_a_real_one_says(server: RedisServer) -> None:
    """How many words, and whether they read, write, or need room: redis_transaction asks (§14)."""
    real = _Real(server)
    simulated = _Simulated(real)
    asked = [[b"COMMAND", b"INFO", b"GET", b"SET", b"RPUSH", b"HSET", b"HDEL", b"HGETALL"]]
    (found,), (said,) = real.ask(0, asked), simulated.ask(0, asked)
    assert [(each[0].upper(), each[1]) for each in found] == [(each[0], each[1]) for each in said]
    wanted = {b"readonly", b"write", b"denyoom", b"noscript", b"blocking", b"admin"}
    assert [{*map(bytes, each[2])} & wanted for each in found] == [{*each[2]} for each in said]


def _request(dice: Random) -> list[list[bytes]]:
    """A command, a script of the consumer's, or one between MULTI and EXEC."""
    number = b"%d" % dice.randint(1, 3)
    match dice.randrange(9):
        case 0:
            return [[b"WATCH", dice.choice(_KEYS)]]
        case 1:
            return [dice.choice([[b"GET", b"a"], [b"LRANGE", b"b", b"0", b"-1"]])]
        case 2:
            return [[b"HGETALL", dice.choice([_ROW, _CALLS])]]
        case 3:
            gone = dice.choice((b"0", b"1", b"2"))
            anew = dice.choice((b"0", b"0", b"1"))
            return [[b"EVAL", _SCRIPTS["take"], b"1", _ROW, number, gone, anew]]
        case 4:
            key, field = dice.choice([(_ROW, b"attempts"), (_CALLS, b"%d" % dice.randint(1, 3))])
            return [[b"EVAL", _SCRIPTS["keep"], b"2", _ROW, key, number, field, b"1"]]
        case 5 if dice.random() < 0.3:
            return [[b"EVAL", _SCRIPTS["rewind"], b"2", _ROW, _CALLS, number, b"7.0", b"2"]]
    commit = [b"EVAL", _SCRIPTS["commit"], b"2", _ROW, _CALLS, number, b"3", b"4"]
    parts = dice.randint(1, 3)
    commit.append(b"%d" % parts)
    for part in range(1, parts + 1):
        commit += [b"9.%d" % part, *dice.choice([(b"head", b"piece%d" % part), (b"", b"")]), b"it"]
        gone = [b"%d" % each for each in range(1, 4) if dice.random() < 0.3]
        commands = [_command(dice) for _ in range(dice.randint(0, 3))]
        commit += [b"%d" % len(gone), *gone, b"%d" % len(commands)]
        for each in commands:
            writes = b"0" if each[0] in (b"GET", b"LRANGE") else b"1"
            commit += [writes, b"%d" % len(each), *each]
    return [commit] if dice.random() < 0.7 else [[b"MULTI"], commit, [b"EXEC"]]


def _command(dice: Random) -> list[bytes]:
    key = dice.choice(_KEYS)
    return dice.choice(
        [
            [b"GET", key],
            [b"SET", key, b"1"],
            [b"RPUSH", key, b"1", b"2"],
            [b"LRANGE", key, b"0", b"0"],
            [b"HSET", key, b"f", b"1"],
            [b"HINCRBY", key, b"n", b"2"],
            [b"HDEL", key, b"f"],
            [b"HGET", key, b"f"],
            [b"DEL", key],
        ]
    )


def _told(answer: Any) -> Any:
    """An error by the word that says which: servers word them differently."""
    if isinstance(answer, list):
        return [_told(each) for each in answer]
    text = answer if isinstance(answer, bytes) else str(answer).encode()
    for word in (b"WRONGTYPE", b"OOM"):
        if word in text or (word == b"OOM" and isinstance(answer, _OUT_OF_MEMORY)):
            return word
    return b"EXECABORT" if isinstance(answer, redis.exceptions.ExecAbortError) else answer


def _pairs(answer: Any) -> Any:
    return sorted(zip(answer[::2], answer[1::2], strict=True))


_OUT_OF_MEMORY = redis.exceptions.OutOfMemoryError


def _shown(commands: list[list[bytes]]) -> str:
    names = {text: name.encode() for name, text in _SCRIPTS.items()}
    return repr([[names.get(word, word) for word in each] for each in commands])


def _kinds(commands: list[list[bytes]], answers: list[Any]) -> Iterator[str]:
    script = next((each for each in commands if each[0] == b"EVAL"), None)
    if script is None:
        return
    found = answers[-1]
    if len(commands) > 1:
        if found is None:
            yield "a key that was watched has changed"
            return
        found = b"OOM" if found == b"EXECABORT" else found[0]
    name = next(name for name, text in _SCRIPTS.items() if text == script[1])
    if found == b"OOM" or b"OOM" in found:
        yield "OOM"
    elif found[0] == b"failed":
        yield f"{name} failed {found[1].decode()}" + (" behind others" if found[4] else "")
    else:
        yield f"{name} {found[0].decode()}"
