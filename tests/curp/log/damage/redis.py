"""Damage to a group's log in Redis. What is known of its keys stands here alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from curp.log import open_engine
from curp.log._commits import GroupLog
from tests.curp.logs import created

# The head's own name is looked up: it is the one hash that has a format.
_HEAD, _ENTRIES, _VALUES, _NAMES = "head", "entries", "values", "names"
_METADATA = "metadata/"
# Of an entry in the stream.
_TAGS, _CHECKSUM, _TIME, _BODY = b"t", b"c", b"m", b"b"


class RedisLog:
    """A group's log in a server, created here, whose keys are changed behind its engines."""

    store = "redis"

    def __init__(self, server: Any, group: str, **options: Any) -> None:
        self.server = server
        self.group = group
        self.url = created(server.url(group=group, **options))
        self.client = server.client()
        self._opened: list[GroupLog] = []
        names = (key_of(group, part) for part in self.parts())
        self._head = next(
            name
            for name in names
            if self.client.type(name) == b"hash" and self.client.hexists(name, "format")
        )

    def open(self) -> GroupLog:
        """Return one more engine."""
        self._opened.append(open_engine(self.url))
        return self._opened[-1]

    def close(self) -> None:
        """Close all engines."""
        while self._opened:
            self._opened.pop().close()

    def key(self, part: str) -> str:
        """Return the name of one of the log's keys."""
        return self._head if part == _HEAD else key_of(self.group, part)

    def parts(self) -> set[str]:
        """Return which parts of the log have a key."""
        prefix = key_of(self.group, "")
        found = self.client.keys(prefix.replace("{", "[{]") + "*")
        return {key.decode().removeprefix(prefix) for key in found}

    def rewrite(self, lsn: int, change: Callable[[dict[bytes, bytes]], Any]) -> None:
        """Build the stream anew with an entry's fields changed, since no entry can be."""
        stream = self.key(_ENTRIES)
        entries = self.client.xrange(stream)
        with self.client.pipeline() as together:
            together.delete(stream)
            for name, fields in entries:
                if name == b"%d-0" % lsn:
                    change(fields)
                together.xadd(stream, fields, id=name)
            together.execute()

    def drop(self, lsn: int) -> None:
        """Remove an entry from the stream."""
        assert self.client.xdel(self.key(_ENTRIES), f"{lsn}-0") == 1

    def head(self, field: str, value: Any) -> None:
        """Change a field of the head; None: remove it."""
        self._hash(_HEAD, field, value)

    def kept(self, key: str) -> bytes:
        """Return what one of the log's own keys holds."""
        return bytes(self.client.hget(self.key(_VALUES), key))

    def keep(self, key: str, value: bytes | None) -> None:
        """Have one of the log's own keys hold something else; None: remove it, and its name."""
        self._hash(_VALUES, key, value)
        if value is None:
            assert self.client.zrem(self.key(_NAMES), key) == 1

    def piece(self, place: int, change: Callable[[bytes], bytes | None]) -> None:
        """Change a piece of the snapshot."""
        name, found = next(
            (key, value)
            for key, value in self.client.hgetall(self.key(_VALUES)).items()
            if key.startswith(b"pieces/") and key.endswith(b"/%08d" % place)
        )
        self.keep(name.decode(), change(found))

    def count(self) -> tuple[int, int]:
        """Return how many entries the server holds, and how many under the tag ``t``."""
        return self.client.xlen(self.key(_ENTRIES)), self.client.zcard(self.key("tag:t"))

    def pieces(self) -> int:
        """Return how many pieces of snapshots the server holds."""
        return sum(key.startswith(b"pieces/") for key in self.client.hkeys(self.key(_VALUES)))

    def stored(self) -> list[tuple[str, bytes]]:
        """Return every field of a hash, and every entry's, by the part of the log.

        Not the metadata: their values are their writers' to check.
        """
        found = [
            (part, field)
            for part in (_HEAD, _VALUES)
            for field in sorted(self.client.hkeys(self.key(part)))
            if not field.startswith(_METADATA.encode())
        ]
        return [*found, *((_ENTRIES, field) for field in (_TAGS, _CHECKSUM, _TIME, _BODY))]

    @contextlib.contextmanager
    def flipped(self, part: str, field: bytes, at: int, bit: int) -> Iterator[None]:
        """Have one bit of a field be the other one for a while; then all is as it was.

        ``at``: which byte, counted around; of entries, it is the fifth's field.
        """
        kept = {key: self.client.dump(self.key(key)) for key in self.parts()}

        def change(value: bytes) -> bytes:
            place = at % len(value)
            flip = bytes((value[place] ^ 1 << bit,))
            return value[:place] + flip + value[place + 1 :]

        try:
            if part == _ENTRIES:
                self.rewrite(5, lambda fields: fields.update({field: change(fields[field])}))
            else:
                value = self.client.hget(self.key(part), field)
                self.client.hset(self.key(part), field, change(value))
            yield
        finally:
            for key in self.parts() - kept.keys():
                self.client.delete(self.key(key))
            for key, value in kept.items():
                self.client.restore(self.key(key), 0, value, replace=True)

    def _hash(self, part: str, field: str, value: Any) -> None:
        if value is None:
            assert self.client.hdel(self.key(part), field) == 1
        else:
            assert self.client.hset(self.key(part), field, value) == 0


def key_of(group: str, part: str) -> str:
    """Return the name of a key of a group's log."""
    return f"curp:{{{group}}}:{part}"


def entries_of(group: str) -> str:
    """Return the name of a group's stream of entries."""
    return key_of(group, _ENTRIES)


def cut_append_file(server: Any, size: int) -> None:
    """Cut so many bytes off what a stopped server would read when it starts."""
    found = sorted(Path(server.directory).rglob("appendonly*.aof"))
    newest = next((file for file in found if ".incr." in file.name), found[-1])
    with newest.open("r+b") as file:
        file.truncate(newest.stat().st_size - size)


Damage: TypeAlias = Callable[[RedisLog], None]


def _entry(field: bytes, change: Callable[[bytes], bytes | None]) -> Damage:
    def rewritten(fields: dict[bytes, bytes]) -> None:
        value = change(fields[field])
        if value is None:
            del fields[field]
        else:
            fields[field] = value

    return lambda log: log.rewrite(7, rewritten)


def _of_another_type(part: str) -> Damage:
    def damage(log: RedisLog) -> None:
        assert log.client.delete(log.key(part)) == 1
        log.client.set(log.key(part), "x")

    return damage


def _lost(part: str) -> Damage:
    def damage(log: RedisLog) -> None:
        assert log.client.delete(log.key(part)) == 1

    return damage


def _member(part: str, name: str, score: float | None) -> Damage:
    def damage(log: RedisLog) -> None:
        if score is None:
            assert log.client.zrem(log.key(part), name) == 1
        else:
            log.client.zadd(log.key(part), {name: score})

    return damage


# To entry 7 of 300, of which the first two are trimmed, where nothing else is said.
ENTRIES: dict[str, Damage] = {
    "a flipped bit of a body": _entry(_BODY, lambda body: body.replace(b"body", b"bodY")),
    "another append's id": _entry(_BODY, lambda body: b"\xff" + body[1:]),
    "a body of zeros": _entry(_BODY, lambda body: bytes(len(body))),
    "a body that is torn": _entry(_BODY, lambda body: body[:9]),
    "an empty body": _entry(_BODY, lambda body: b""),
    "no body": _entry(_BODY, lambda body: None),
    "other tags": _entry(_TAGS, lambda tags: b"u"),
    "tags that are no text": _entry(_TAGS, lambda tags: b"\xff"),
    "a time that is no number": _entry(_TIME, lambda at_us: b"x"),
    "another checksum": _entry(_CHECKSUM, lambda checksum: b"%d" % (int(checksum) ^ 1)),
    "a checksum that is no number": _entry(_CHECKSUM, lambda checksum: b"x"),
    "missing": lambda log: log.drop(7),
    "the first one missing": lambda log: log.drop(3),
}

# To where the entries end.
ENDS: dict[str, Damage] = {
    "the last one missing": lambda log: log.drop(300),
    "all missing": _lost(_ENTRIES),
    "a key of another type": _of_another_type(_ENTRIES),
}

# An index by which no entry may be believed to have, or not to have, a tag.
INDEX_THAT_LIES: dict[str, Damage] = {
    "an entry without the tag": _member("tag:u", "5", 5),
    "behind the log's end": _member("tag:u", "400", 400),
    "no number": _member("tag:u", "x", 5),
    "another's number": _member("tag:u", "5", 6),
    "a key of another type": lambda log: log.client.set(log.key("tag:u"), "x"),
}
INDEX_THAT_LACKS: dict[str, Damage] = {
    "all": _lost("tag:t"),
    "one": _member("tag:t", "7", None),
    "the last": _member("tag:t", "300", None),
}

SNAPSHOTS: dict[str, Damage] = {
    "a flipped bit of a piece": lambda log: log.piece(0, lambda piece: piece[:-1] + b"E"),
    "a piece that is torn": lambda log: log.piece(0, lambda piece: piece[:6]),
    "an empty piece": lambda log: log.piece(1, lambda piece: b""),
    "more than a piece": lambda log: log.piece(1, lambda piece: piece + b"!"),
    "a missing piece": lambda log: log.piece(1, lambda piece: None),
    "no words of it": lambda log: log.keep("snapshot", b"{"),
    "other words of it": lambda log: log.keep("snapshot", b"[7]"),
    "forgotten": lambda log: log.keep("snapshot", None),
}

# Of what says where the log stands, and whose it is.
CONTROL: dict[str, Damage] = {
    "no head": _lost(_HEAD),
    "a head of another type": _of_another_type(_HEAD),
    "no values": _lost(_VALUES),
    "values of another type": _of_another_type(_VALUES),
    "no names": _lost(_NAMES),
    "names of another type": _of_another_type(_NAMES),
    "a name without a value": _member(_NAMES, f"{_METADATA}l", 0),
    "a name that is no text": lambda log: log.client.zadd(
        log.key(_NAMES), {_METADATA.encode() + b"\xfe": 0}
    ),
    **{
        f"a head {how} {field}": (lambda log, field=field, value=value: log.head(field, value))
        for field in ("step", "tail", "removed", "at_us", "term:lease")
        for how, value in (("without", None), ("of another", "x"))
    },
    "a head without id": lambda log: log.head("id", None),
    "a head without mark": lambda log: log.head("mark", None),
    "a head of another terms": lambda log: log.head("terms", "x"),
    "a head of another ends:lease": lambda log: log.head("ends:lease", "x"),
    "removed more than there is": lambda log: log.head("removed", "400"),
    **{
        f"{key} {how}": (lambda log, key=key, value=value: log.keep(key, value))
        for key in ("configuration", "tail", "trimmed")
        for how, value in (("missing", None), ("torn", b"\0\0\0\0\0"), ("of text", b"text"))
    },
    "an end that is not the log's": lambda log: log.keep("tail", bytes(22) + b"\x01\x30"),
    "a leader without a name": lambda log: log.keep("leader", b"[]"),
    "a leader that is no text": lambda log: log.keep("leader", b"\xff"),
}

NEWER: Damage = lambda log: log.client.hincrby(log.key(_HEAD), "format", 1)  # noqa: E731
WITHOUT_FORMAT: dict[str, Damage] = {
    "no number": lambda log: log.head("format", "x"),
    "none": lambda log: log.head("format", None),
}
