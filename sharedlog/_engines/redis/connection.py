"""Script calls to one log in Redis, which notice that it is another, or went back."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from _rifl_ground.redis.address import RedisAddress
from _rifl_ground.redis.lua import Script
from sharedlog._core.errors import CorruptLog, LogExists, NoSuchLog
from sharedlog._engines.checksums import kept
from sharedlog._engines.formats import check_format
from sharedlog._engines.owner import LOG, Home
from sharedlog._engines.redis.log_scripts import ALL, OPEN
from sharedlog._engines.redis.server import Server

FORMAT = 1
_ID_BYTES = 16


class RedisConnection:
    """One process's way to a log in Redis. Any thread.

    Every script is told the log's id and the newest step that was seen here, and does nothing if
    the log is another, or has not got so far: a server that restarted with less than it had
    acknowledged, or a replica in the place of a primary that it lagged behind.
    """

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
    ) -> None:
        home = home or home_of(name)
        self._address = address
        self._prefix, self._format = home.root, home.format
        self._names = [self.key(part) for part in PARTS]
        # It may be asked for within itself, by a signal's handler: what it guards is whole by then.
        self._lock = threading.RLock()
        self._seen: tuple[int, bytes] = (0, b"")
        self._id = b""
        self.server = Server(address, home.owner, replicas=replicas)
        try:
            if not read_only:
                self.server.check_rights(self.key("probe"), ALL)
            self._open(name, new, removed, waits=not read_only and replicas > 0)
        except BaseException:
            self.server.close()
            raise

    @property
    def entries(self) -> str:
        """The name of the stream of entries."""
        return self._names[1]

    def key(self, *parts: str) -> str:
        """Return the name of one of the log's keys."""
        return self._prefix + ":".join(parts)

    def tag_key(self, tag: str) -> str:
        """Return the name of a tag's sorted set."""
        return self.key("tag", tag)

    def run(
        self, script: Script, arguments: Sequence[Any], keys: Sequence[str] = ()
    ) -> tuple[bytes, int, list[Any]]:
        """Run a script; return its reply's word, the log's tail, and what else it says."""
        seen, mark = self._seen
        reply = self.server.ask(script, [*self._names, *keys], [self._id, seen, mark, *arguments])
        word, *rest = reply
        if word == b"other":
            raise CorruptLog(f"{self._address} has lost the log, or has another one in its place")
        if word == b"damaged":
            raise CorruptLog(f"{self._address} has lost parts of the log's head, or of its keys")
        if word == b"back":
            raise CorruptLog(
                f"{self._address}: the log went back: it has made {rest[0]} steps, and {seen} "
                "were seen"
            )
        if word == b"changed":
            raise CorruptLog(f"{self._address}: the log's step {seen} is not the one that was seen")
        step, mark, tail, *more = rest
        with self._lock:
            if step > self._seen[0]:
                self._seen = step, mark
        return word, int(tail), more

    def _open(
        self, name: str, new: Mapping[str, bytes] | None, removed: int, *, waits: bool
    ) -> None:
        arguments: list[Any] = [int(waits)]
        if new is not None:
            arguments += [secrets.token_hex(_ID_BYTES), self._format]
            arguments += [secrets.token_bytes(_ID_BYTES), removed]
            arguments += [part for key, value in new.items() for part in (key, kept(key, value))]
        reply = self.server.ask(OPEN, self._names, arguments)
        self._id = id_of(reply, self._address, name, self._format)


PARTS = ("head", "entries", "values", "names")


def home_of(name: str) -> Home:
    """Return where a shared log is kept."""
    return Home(LOG, f"sharedlog:{{{name}}}:", FORMAT)


def id_of(reply: Sequence[Any], address: RedisAddress, name: str, known: int) -> bytes:
    """Return the id that the opening script told; raises ``NoSuchLog``, ``CorruptLog``.

    ``LogExists`` where one was to be created, ``NewerFormat`` for one above ``known``.
    """
    if reply[0] == b"none":
        raise NoSuchLog(f"{address} has no log {name!r}; create makes one")
    if reply[0] == b"exists":
        raise LogExists(f"{address} has a log {name!r} already: open it")
    if reply[0] == b"damaged":
        raise CorruptLog(f"{address} has parts of a log {name!r}, and not its head")
    check_format(reply[2], known, f"{address}: the log {name!r}")
    found: bytes = reply[1]
    return found
