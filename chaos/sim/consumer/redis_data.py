"""Model of the world: a Redis server, its commands and a consumer's scripts, in memory.

This stands for ``sharedlog/_consumer/scripts``; a test has a real server answer the same requests
(``tests/chaos/test_redis_data.py``). One request is one moment: a command, or what is between MULTI
and EXEC.
"""

from __future__ import annotations

import copy
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import redis

import sharedlog._consumer

__all__ = ["RedisData", "Session"]

_FIELDS = (b"position", b"seq", b"intent", b"takeovers", b"attempts", b"broken", b"epoch")
# Of commands: how many words, at least where it is negative; and their flags.
_INFO = {
    b"GET": (2, ("readonly",)),
    b"SET": (-3, ("write", "denyoom")),
    b"RPUSH": (-3, ("write", "denyoom")),
    b"LRANGE": (4, ("readonly",)),
    b"HGET": (3, ("readonly",)),
    b"HGETALL": (2, ("readonly",)),
    b"HSET": (-4, ("write", "denyoom")),
    b"HINCRBY": (4, ("write", "denyoom")),
    b"HDEL": (-3, ("write",)),
    b"DEL": (-2, ("write",)),
}

_OOM = "OOM command not allowed when used memory > 'maxmemory'."


class Session:
    """What a server keeps of a connection: the keys that it watches, as they were."""

    def __init__(self) -> None:
        self.watched: dict[bytes, int] = {}


class RedisData:
    """What is durable of it."""

    def __init__(self) -> None:
        self.keys: dict[bytes, Any] = {}
        # There is no room.
        self.full = False
        # Redis from 8 on queues a transaction's commands when it is full, and refuses their writes.
        self.queues_when_full = False
        # How often each key has changed.
        self._changes: Counter[bytes] = Counter()
        self._loaded: set[str] = set()
        # A script has written.
        self._dirty = False

    def carry(self, session: Session, commands: Sequence[Sequence[bytes]]) -> list[Any]:
        """Answer what arrives at once; an error is an answer, too."""
        if commands[0][0].upper() != b"MULTI":
            return [self._answered(session, each) for each in commands]
        watched, session.watched = session.watched, {}
        queued = commands[1:-1]
        if self.full and not self.queues_when_full:
            why = redis.exceptions.ExecAbortError(
                "Transaction discarded because of previous errors."
            )
            return [b"OK", *(redis.ResponseError(_OOM) for _ in queued), why]
        if any(self._changes[key] != before for key, before in watched.items()):
            return [b"OK", *(b"QUEUED" for _ in queued), None]
        return [
            b"OK",
            *(b"QUEUED" for _ in queued),
            [self._answered(session, each) for each in queued],
        ]

    def copied(self) -> RedisData:
        """Return one that has the same keys."""
        found = RedisData()
        found.keys = copy.deepcopy(self.keys)
        return found

    def restore(self, other: RedisData) -> None:
        """Be as another one was."""
        for key in {*self.keys, *other.keys}:
            self._changes[key] += 1
        self.keys = copy.deepcopy(other.keys)

    # Commands.

    def _answered(self, session: Session, words: Sequence[bytes]) -> Any:
        self._dirty = False
        name, given = words[0].upper(), words[1:]
        try:
            match name:
                case b"WATCH":
                    for key in given:
                        session.watched.setdefault(key, self._changes[key])
                    return b"OK"
                case b"COMMAND":
                    return [self._info(each) for each in given[1:]]
                case b"SCRIPT":
                    sha = _sha(given[1])
                    self._loaded.add(sha)
                    return sha.encode()
                case b"EVAL":
                    self._loaded.add(_sha(given[0]))
                    return self._evaluate(_sha(given[0]), given[1:])
                case b"EVALSHA":
                    return self._evaluate(given[0].decode(), given[1:])
            return self._call(*words)
        except redis.ResponseError as error:
            return error

    def _info(self, name: bytes) -> Any:
        known = _INFO.get(name.upper())
        return None if known is None else [name, known[0], [each.encode() for each in known[1]]]

    def _call(self, *words: bytes | int) -> Any:
        """Carry out a command, or raise: as ``redis.call`` does."""
        name, *given = [b"%d" % each if isinstance(each, int) else each for each in words]
        name = name.upper()
        _, flags = _INFO[name]
        # A script that has written may end.
        if self.full and "denyoom" in flags and not self._dirty:
            raise redis.ResponseError(_OOM)
        found = _COMMANDS[name](self, *given)
        if "write" in flags:
            self._dirty = True
            if found or not name.endswith(b"DEL"):
                self._changes[given[0]] += 1
        return found

    def _of(self, key: bytes, kind: type) -> Any:
        """Return what a key has, or an empty one; it is of that type."""
        found = self.keys.get(key)
        if found is None:
            return kind()
        if not isinstance(found, kind):
            raise redis.ResponseError(
                "WRONGTYPE Operation against a key holding the wrong kind of value"
            )
        return found

    def _get(self, key: bytes) -> bytes | None:
        self._of(key, bytes)
        return self.keys.get(key)

    def _set(self, key: bytes, value: bytes) -> bytes:
        self.keys[key] = value
        return b"OK"

    def _rpush(self, key: bytes, *values: bytes) -> int:
        found: list[bytes] = self._of(key, list)
        found.extend(values)
        self.keys[key] = found
        return len(found)

    def _lrange(self, key: bytes, first: bytes, last: bytes) -> list[bytes]:
        found: list[bytes] = self._of(key, list)
        return found[int(first) : int(last) + 1 or None]

    def _hget(self, key: bytes, field: bytes) -> bytes | None:
        found: dict[bytes, bytes] = self._of(key, dict)
        return found.get(field)

    def _hgetall(self, key: bytes) -> list[bytes]:
        return [word for pair in self._of(key, dict).items() for word in pair]

    def _hset(self, key: bytes, *pairs: bytes) -> int:
        found: dict[bytes, bytes] = self._of(key, dict)
        new = len({*pairs[::2]} - {*found})
        found.update(zip(pairs[::2], pairs[1::2], strict=True))
        self.keys[key] = found
        return new

    def _hincrby(self, key: bytes, field: bytes, by: bytes) -> int:
        found = int(self._of(key, dict).get(field, 0)) + int(by)
        self._hset(key, field, b"%d" % found)
        return found

    def _hdel(self, key: bytes, *fields: bytes) -> int:
        found: dict[bytes, bytes] = self._of(key, dict)
        gone = sum(found.pop(each, None) is not None for each in fields)
        if not found:
            self.keys.pop(key, None)
        return gone

    def _del(self, key: bytes) -> int:
        return int(self.keys.pop(key, None) is not None)

    # The consumer's scripts.

    def _evaluate(self, sha: str, given: Sequence[bytes]) -> Any:
        if sha not in self._loaded:
            raise redis.exceptions.NoScriptError("No matching script. Please use EVAL.")
        count = int(given[0])
        keys, words = given[1 : 1 + count], list(given[1 + count :])
        script: Callable[..., Any] = getattr(self, f"_script_{_SCRIPTS[sha]}")
        return script(*keys, words)

    def _fence(self, row: bytes) -> bytes:
        found: bytes = self._call(b"HGET", row, b"fence") or b"0"
        return found

    def _script_take(self, row: bytes, words: list[bytes]) -> list[Any]:
        number, gone, anew = words
        fence = self._fence(row)
        if int(fence) >= int(number):
            return [b"fenced", fence]
        if anew == b"1":
            self._call(b"HSET", row, b"takeovers", b"0", b"attempts", b"0")
            self._call(b"HDEL", row, b"broken")
        elif gone != b"0":
            takeovers = int(self._call(b"HGET", row, b"takeovers") or b"0")
            noted = int(self._call(b"HGET", row, b"attempts") or b"0") > 0
            takeovers = max(1, takeovers) + (gone == b"2" and noted)
            self._call(b"HSET", row, b"takeovers", b"%d" % takeovers)
        self._call(b"HSET", row, b"fence", number)
        return [b"ok", *(self._call(b"HGET", row, each) or b"" for each in _FIELDS)]

    def _script_keep(self, row: bytes, key: bytes, words: list[bytes]) -> list[Any]:
        number, field, value = words
        fence = self._fence(row)
        if fence != number:
            return [b"fenced", fence]
        self._call(b"HSET", key, field, value)
        return [b"ok"]

    def _script_rewind(self, row: bytes, calls: bytes, words: list[bytes]) -> list[Any]:
        number, position, epoch = words
        fence = self._fence(row)
        if fence != number:
            return [b"fenced", fence]
        begun = (b"intent", b"", b"takeovers", b"0", b"attempts", b"0")
        self._call(b"HSET", row, b"position", position, b"epoch", epoch, *begun)
        self._call(b"HDEL", row, b"broken")
        self._call(b"DEL", calls)
        return [b"ok"]

    def _script_commit(self, row: bytes, calls: bytes, words: list[bytes]) -> list[Any]:
        number, before, behind, *_ = words
        fence = self._fence(row)
        if fence != number:
            return [b"fenced", fence]
        parts = parts_of(words)
        refused: list[Any] = []
        for done, part in enumerate(parts):
            refused = self._part(row, part, done)
            if refused:
                parts = parts[:done]
                break
            for each in part.gone:
                self._call(b"HDEL", calls, each)
        if parts:
            intent = parts[-1].head + b"".join(each.piece for each in parts)
            self._moved(row, parts[-1].position, behind if intent else before, intent)
        return refused or [b"ok"]

    def _part(self, row: bytes, part: Part, done: int) -> list[Any]:
        """Run the commands of a part; returns what a refusal is answered with."""
        wrote = False
        for count, (writes, command) in enumerate(part.commands, 1):
            try:
                self._call(*command)
            except redis.ResponseError as error:
                why = f"{part.label.decode()}: {error}"
                return self._failed(row, why, [str(error).encode(), count, done], wrote=wrote)
            wrote = wrote or writes
        return []

    def _failed(self, row: bytes, why: str, told: list[Any], *, wrote: bool) -> list[Any]:
        if wrote:
            self._call(b"HSET", row, b"broken", why.encode())
        return [b"failed", b"1" if wrote else b"0", *told]

    def _moved(self, row: bytes, position: bytes, seq: bytes, intent: bytes) -> None:
        begun = (b"takeovers", b"0", b"attempts", b"0")
        self._call(b"HSET", row, b"position", position, b"seq", seq, b"intent", intent, *begun)


class Part(NamedTuple):
    """A part of what a commit's script is given: one message's, mostly."""

    position: bytes
    head: bytes
    piece: bytes
    label: bytes
    gone: list[bytes]
    commands: list[tuple[bool, list[bytes]]]


def parts_of(words: list[bytes]) -> list[Part]:
    """Return the parts of a commit's arguments."""
    found, rest = [], words[4:]
    for _ in range(int(words[3])):
        position, head, piece, label = rest[:4]
        gone = int(rest[4])
        serials, count = rest[5 : 5 + gone], int(rest[5 + gone])
        rest, commands = rest[6 + gone :], []
        for _ in range(count):
            length = int(rest[1])
            commands.append((rest[0] == b"1", rest[2 : 2 + length]))
            rest = rest[2 + length :]
        found.append(Part(position, head, piece, label, serials, commands))
    return found


_COMMANDS: dict[bytes, Callable[..., Any]] = {
    b"GET": RedisData._get,
    b"SET": RedisData._set,
    b"RPUSH": RedisData._rpush,
    b"LRANGE": RedisData._lrange,
    b"HGET": RedisData._hget,
    b"HGETALL": RedisData._hgetall,
    b"HSET": RedisData._hset,
    b"HINCRBY": RedisData._hincrby,
    b"HDEL": RedisData._hdel,
    b"DEL": RedisData._del,
}


def _sha(script: bytes) -> str:
    return hashlib.sha1(script).hexdigest()  # noqa: S324 - as Redis names scripts


# By their names at a server.
_SCRIPTS = {
    _sha((files(sharedlog._consumer) / "scripts" / f"{name}.lua").read_bytes()): name
    for name in ("take", "keep", "rewind", "commit")
}
