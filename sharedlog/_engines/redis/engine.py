"""``Engine`` over Redis."""

from __future__ import annotations

import contextlib
import math
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from _rifl_ground.redis.address import RedisAddress
from sharedlog._core.commit import Commit, NewEntry, Put, Refused, Stamp
from sharedlog._core.entry import Row
from sharedlog._core.errors import CorruptLog, InvalidRequest, LogError, LogStopped, TrimmedLog
from sharedlog._core.steps import Lsns, Rows
from sharedlog._engines.checks import check_commit
from sharedlog._engines.checksums import (
    PAGE,
    damage,
    expected,
    named_values,
    paged,
    sent,
    values_of,
)
from sharedlog._engines.engine import READ_BYTES, Limits
from sharedlog._engines.forks import belongs_here
from sharedlog._engines.owner import Home
from sharedlog._engines.redis.connection import RedisConnection
from sharedlog._engines.redis.log_scripts import (
    COMMIT,
    DOOMED,
    GET,
    READ,
    REMAINING,
    REMOVE,
    SCAN,
    STATUS,
)
from sharedlog._engines.terms import ServerTerms, Term

# How long it listens at once, so that a closed engine is noticed, and a server that is gone.
_BLOCK_S = 0.5
_LOOK_S = 1.0


class WaitingForEntries:
    """Wakes who waits when the stream gets an entry. Any thread.

    It asks for what follows the newest LSN that was seen (XREAD), so that nothing is missed
    between two looks, nor after a lost connection, as a subscription would. What it says is a
    hint all the same. Its thread begins with the first wait, and rests while no call waits.
    """

    def __init__(self, redis: RedisConnection) -> None:
        self._redis = redis
        # Taken and given back by C: a signal's exception may leave a condition's own taken.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._tail = 0
        self._waits = 0
        self._woken = 0
        self._thread: threading.Thread | None = None

    def saw(self, tail: int) -> None:
        """Note that the log ends there; wait for what follows."""
        with self._lock:
            if tail > self._tail:
                self._tail = tail
                self._changed.notify_all()

    def wait(self, tail: int, timeout_s: float) -> None:
        """Wait until something may follow ``tail``, which was the log's a moment ago.

        At most a second: then it is time to look again.
        """
        end = time.monotonic() + min(timeout_s, _LOOK_S)
        with self._lock:
            self._tail = max(self._tail, tail)
            woken = self._woken
            self._waits += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sharedlog", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            try:
                self._changed.wait_for(
                    lambda: self._woken > woken or self._tail > tail or self._closing,
                    end - time.monotonic(),
                )
            finally:
                self._waits -= 1
        if self._closing:
            raise LogStopped("the log was closed")

    def close(self) -> None:
        """End all waits, once the connection is closing; idempotent."""
        with self._lock:
            self._changed.notify_all()

    @property
    def _closing(self) -> bool:
        return self._redis.server.closing.is_set()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._changed.wait_for(lambda: self._waits > 0 or self._closing)
                tail = self._tail
            if self._closing:
                return
            try:
                told = self._redis.server.block(self._redis.entries, tail, _BLOCK_S)
            except LogError:
                # The waiting calls look again, and get the error.
                self._redis.server.closing.wait(_BLOCK_S)
                continue
            if told:
                self._wake(tail)

    def _wake(self, tail: int) -> None:
        with self._lock:
            self._woken += 1
            self._changed.notify_all()
            # Wait until a call has read the new tail: else the same news would come at once again.
            self._changed.wait_for(
                lambda: self._tail > tail or not self._waits or self._closing, _BLOCK_S
            )


# How many entries one script removes.
_PIECE = 500
# Of different ones in one append: each is a key that a script names.
_MOST_TAGS = 100_000
_MARK_BYTES = 16
_FIELDS = 5
_FIRST_PLACE = 5
# Between tags, none of which has it.
_BETWEEN = "\n"
_STAMPS = {Stamp.NONE: "put", Stamp.FIRST: "first", Stamp.LAST: "last"}


class RedisEngine:
    """An ``Engine`` in Redis 6.2 or newer; any thread, any number of processes and machines.

    A commit is one script: Redis runs one at a time. ``durability`` says what the server's
    settings promise; with the address's ``durability=require`` (the default), a server that may
    forget what it acknowledged is refused (``NotDurable``). ``replicas``: so many of the server's
    replicas must have a commit before it counts; fewer in time is ``LogUnavailable``.

    A log that went back, or that is another one, is noticed by what this engine has seen of it
    (``CorruptLog``). A server without room refuses entries (``LogFull``), and takes keys.
    """

    limits = Limits(entries=10_000, append_bytes=64 << 20, operations=20_000)

    def __init__(
        self,
        address: RedisAddress,
        name: str,
        *,
        replicas: int = 0,
        new: Mapping[str, bytes] | None = None,
        removed: int = 0,
        read_only: bool = False,
        home: Home | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the log of that name; ``new``: create it, with these keys, behind that LSN.

        ``read_only``: for tools that only look; what they may not do is not asked. ``home``: of a
        log that is not one of ``sharedlog``'s own. Terms of keys end by the server's clock;
        ``clock`` is this machine's.
        Raises ``NoSuchLog``, ``LogExists``, ``NewerFormat``, ``CorruptLog``, ``NotDurable``.
        """
        self._redis = RedisConnection(
            address,
            name,
            replicas=replicas,
            new=new,
            removed=removed,
            read_only=read_only,
            home=home,
        )
        self._waiting = WaitingForEntries(self._redis)
        self._terms = ServerTerms(clock)
        belongs_here(self)

    @property
    def durability(self) -> str:
        """What the store promises of an append that returned, in a sentence."""
        return self._redis.server.durability

    def commit(self, commit: Commit) -> Lsns:
        """Commit, or raise ``Refused`` with the values of the conditions' keys."""
        check_commit(commit, self.limits)
        conditions: list[Any] = [len(commit.conditions)]
        for key, value in commit.conditions:
            conditions += [key, int(value is not None), expected(key, value) or b""]
        puts: list[Any] = [len(commit.puts)]
        for put in commit.puts:
            puts += [put.key, _done(put), sent(put) or b"", _term(put)]
        places: dict[str, int] = {}
        entries: list[Any] = [len(commit.entries)]
        for entry in commit.entries:
            entries += _packed(entry, places)
        if len(places) > _MOST_TAGS:
            raise InvalidRequest(f"{len(places)} tags in one append; this log takes {_MOST_TAGS}")
        waits = int(self._redis.server.replicas > 0)
        word, tail, found = self._redis.run(
            COMMIT,
            [secrets.token_bytes(_MARK_BYTES), commit.at_us, waits, *conditions, *puts, *entries],
            [*map(self._redis.tag_key, places)],
        )
        self._waiting.saw(tail)
        if word == b"refused":
            keys = [condition.key for condition in commit.conditions]
            raise Refused(values_of(dict(zip(keys, found, strict=True))))
        return Lsns(*found)

    def get(self, keys: tuple[str, ...]) -> dict[str, bytes | None]:
        """Return the values of these keys as of one moment."""
        _, _, found = self._redis.run(GET, keys)
        return values_of(dict(zip(keys, found, strict=True)))

    def scan(self, prefix: str) -> dict[str, bytes]:
        """Return the keys with this prefix, and their values, as of one moment."""
        return named_values(self._scanned(prefix))

    def damaged(self) -> list[str]:
        """Return in words which keys are damaged."""
        return damage(paged(lambda after: self._scanned("", after, PAGE)))

    def _scanned(self, *arguments: Any) -> list[tuple[bytes, bytes]]:
        _, _, found = self._redis.run(SCAN, arguments)
        pairs = iter(found)
        return list(zip(pairs, pairs, strict=True))

    def remaining(self, key: str) -> float:
        """Return the seconds left of a key's term, by the server's clock (``ServerTerms``)."""
        _, _, (kept, ends_us, term_us, now_us) = self._redis.run(REMAINING, [key])
        if ends_us is None:
            return float("inf") if kept == b"1" else 0.0
        term = Term(0, "", _number(ends_us, key) / 1e6, _number(term_us, key) / 1e6)
        return self._terms.remaining_s(term, int(now_us) / 1e6)

    def read(self, after: int, limit: int, tag: str | None = None) -> Rows:
        """Return rows with LSN above ``after``, with the tag if one is given."""
        keys = [] if tag is None else [self._redis.tag_key(tag)]
        _, tail, found = self._redis.run(READ, [after, limit, READ_BYTES], keys)
        removed, cut, *values = found
        if after < removed:
            raise TrimmedLog(f"what follows LSN {after} was trimmed", removed + 1)
        rows = [_row(values[start : start + _FIELDS]) for start in range(0, len(values), _FIELDS)]
        complete = cut == b"1" or after + len(rows) >= tail
        lsns = [row.lsn for row in rows]
        if tag is None and (lsns != [*range(after + 1, after + 1 + len(rows))] or not complete):
            raise CorruptLog(f"entries behind LSN {after} are missing")
        if tag is not None and not all(tag in row.tags for row in rows):
            raise CorruptLog(f"an entry is listed under the tag {tag!r} of another")
        return Rows(rows, rows[-1].lsn if rows and cut == b"1" else max(after, tail))

    def tail(self) -> int:
        """Return the LSN of the last entry, 0 if there was never one."""
        _, tail, _ = self._redis.run(STATUS, [])
        return tail

    def first(self) -> int:
        """Return the LSN of the oldest row that is there; tail + 1 if there is none."""
        _, _, found = self._redis.run(STATUS, [])
        return int(found[0]) + 1

    def wait(self, after: int, timeout_s: float) -> int:
        """Wait until the tail is above ``after``, or the timeout passes; return the tail."""
        end = time.monotonic() + timeout_s
        while True:
            if self._redis.server.closing.is_set():
                raise LogStopped("the log was closed")
            tail = self.tail()
            self._waiting.saw(tail)
            left_s = end - time.monotonic()
            if tail > after or left_s <= 0:
                return tail
            self._waiting.wait(tail, left_s)

    def remove(self, through: int) -> None:
        """Remove the rows through this LSN, and their tags; idempotent."""
        while True:
            _, tail, found = self._redis.run(DOOMED, [through, _PIECE])
            # Entries that are missing are removed, too.
            last = min(through, tail) if len(found) < 2 * _PIECE else _lsn_of(found[-2])
            tags: set[str] = set()
            for packed in found[1::2]:
                # Damaged ones are removed, too.
                with contextlib.suppress(UnicodeDecodeError):
                    tags.update(_tags(packed))
            keys = [self._redis.tag_key(tag) for tag in sorted(tags)]
            self._redis.run(REMOVE, [last], keys)
            if len(found) < 2 * _PIECE:
                return

    def close(self) -> None:
        """Close files and connections; idempotent."""
        self._redis.server.close()
        self._waiting.close()


def _done(put: Put) -> str:
    return "delete" if put.value is None else _STAMPS[put.stamp]


def _term(put: Put) -> str:
    # Up: who counts on its whole term must have it.
    return "" if put.term_s is None else str(math.ceil(put.term_s * 1e6))


def _packed(entry: NewEntry, places: dict[str, int]) -> list[Any]:
    """Return an entry's arguments; ``places``: of tags among the script's keys, to be extended."""
    tags = _BETWEEN.join(entry.tags).encode()
    listed = [places.setdefault(tag, len(places) + _FIRST_PLACE) for tag in set(entry.tags)]
    return [tags, _checksum(tags, entry.body), entry.body, " ".join(map(str, listed))]


def _row(values: Sequence[bytes]) -> Row:
    lsn, tags, checksum, at_us, body = values
    if not checksum.isdigit() or int(checksum) != _checksum(tags, body):
        raise CorruptLog(f"LSN {_lsn_of(lsn)} is missing, or damaged: its checksum is wrong")
    return Row(_lsn_of(lsn), body, _tags(tags), _number(at_us, f"LSN {_lsn_of(lsn)}"))


def _number(value: bytes | None, whose: str) -> int:
    if value is None or not value.isdigit():
        raise CorruptLog(f"{whose} is damaged: {value!r} is no time")
    return int(value)


def _checksum(tags: bytes, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(b"%d %s" % (len(tags), tags)))


def _tags(packed: bytes) -> tuple[str, ...]:
    return tuple(packed.decode().split(_BETWEEN)) if packed else ()


def _lsn_of(stream_id: bytes) -> int:
    return int(stream_id.partition(b"-")[0])
