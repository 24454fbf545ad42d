"""Consumer of a log, each process behind its own path, and the service that they call; judged."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import redis

import sharedlog
from chaos.ports import free_ports
from chaos.run.consumed import COPIES, Effect, following, is_called
from chaos.run.process import Process
from chaos.run.scenario import Deployed
from chaos.run.streams import STREAMS, SUBSTREAMS
from chaos.run.toxiproxy import Link, Toxiproxy

__all__ = ["Consumers", "wrong"]

_TABLE = (
    "CREATE TABLE effect (tag TEXT, number INTEGER, message TEXT, chain TEXT, answer TEXT, "
    "PRIMARY KEY (tag, number))"
)
_ROWS = "SELECT tag, number, message, chain, answer FROM effect ORDER BY tag, number"
# Where a server's address is asked for: of the log's own, or by a path that leads there.
_STORES = {
    "postgresql": "postgresql://rifl@{}/postgres?connect_timeout=2",
    "redis": "redis://{}/1",
}
_SECRET = "a secret of the consumer's processes alone"  # noqa: S105 - it guards nothing
_PAGE = 10_000
_TAGS = [f"{stream}/{number}" for stream in STREAMS for number in range(SUBSTREAMS)]


class Consumers:
    """Processes of one consumer, which follow all streams, and the ledger that they call."""

    def __init__(
        self, deployed: Deployed, directory: Path, proxy: Toxiproxy, urls: Mapping[str, str]
    ) -> None:
        """Build them; nothing runs yet. ``urls``: by a process's name, where the log is."""
        self.links: dict[str, Link] = {}
        self.processes: list[Process] = []
        self._deployed = deployed
        self._file = directory / "effects.db"
        self._ledger = directory / "ledger.db"
        self._server = ""
        if not deployed.consumers:
            return
        (port,) = free_ports(1)
        self.links["ledger-1"] = proxy.link("ledger-1", port)
        command = [sys.executable, "-m", "chaos.run.ledger", str(self._ledger), str(port)]
        self.processes.append(Process("ledger-1", command, directory))
        ledger = self.links["ledger-1"].address
        for number in range(1, deployed.consumers + 1):
            name = f"consumer-{number}"
            command = [sys.executable, "-m", "chaos.run.consumer", urls[name]]
            command += [self._store(urls[name]), ledger]
            environment = {"RIFL_SESSION_SECRET": _SECRET}
            process = Process(name, command, directory, environment=environment)
            self.processes.append(process)

    def _store(self, url: str) -> str:
        """Return where a process has its effects, that finds the log there: by the same path."""
        kind = self._deployed.effects
        if kind == "sqlite":
            return f"sqlite:///{self._file}"
        if kind == "log":
            return kind
        address = url.partition("://")[2].rpartition("@")[2].partition("/")[0]
        return _STORES[kind].format(address)

    def prepare(self, url: str) -> None:
        """Make the tables, and the stream of what is published; ``url``: of the log."""
        if not self._deployed.consumers:
            return
        with sharedlog.open(url) as log:
            # All of it is judged in the end.
            log.stream(COPIES, SUBSTREAMS, timedelta(days=1))
        with contextlib.closing(sqlite3.connect(self._ledger)) as connection, connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(
                "CREATE TABLE noted (entry INTEGER PRIMARY KEY AUTOINCREMENT, message TEXT)"
            )
        if self._deployed.effects == "sqlite":
            with contextlib.closing(sqlite3.connect(self._file)) as connection, connection:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute(_TABLE)
        elif self._deployed.effects == "postgresql":
            self._server = self._store(url)
            with psycopg.connect(self._server) as server:
                server.execute(_TABLE)
        self._server = self._store(url)

    def problems(self, url: str) -> list[str]:
        """Say what is wrong with all that they did, now that everything is committed."""
        if not self._deployed.consumers:
            return []
        with sharedlog.open(url) as log:
            messages = {tag: list(_texts(log, tag)) for tag in _TAGS}
            copies = [
                [Effect.told(text) for text in _texts(log, f"{COPIES}/{number}")]
                for number in range(SUBSTREAMS)
            ]
        named = {tag: [text.partition(" ")[0] for text in each] for tag, each in messages.items()}
        with contextlib.closing(sqlite3.connect(self._ledger, timeout=30)) as connection:
            noted = connection.execute("SELECT message, entry FROM noted").fetchall()
        answers = [(each, str(at)) for each, at in noted]
        chained = self._deployed.effects != "redis"
        return list(wrong(named, self._effects(), copies, answers, chained=chained))

    def _effects(self) -> list[Effect] | None:
        """Return what the store has, by substream; None: the log has the state."""
        if self._deployed.effects == "sqlite":
            with contextlib.closing(sqlite3.connect(self._file, timeout=30)) as connection:
                return [Effect(*row) for row in connection.execute(_ROWS)]
        if self._deployed.effects == "postgresql":
            with psycopg.connect(self._server) as server:
                return [Effect(*row) for row in server.execute(_ROWS)]
        if self._deployed.effects == "redis":
            with redis.Redis.from_url(self._server) as client:
                rows: list[Any] = []
                for tag in _TAGS:
                    rows += client.lrange(f"chaos:effects:{tag}", 0, -1)
            return [Effect(*json.loads(row)) for row in rows]
        return None


def _texts(log: sharedlog.Log, tag: str) -> Iterator[str]:
    """Yield the messages of a substream, from its beginning."""
    stream, _, number = tag.rpartition("/")
    after: sharedlog.Position | None = None
    while messages := log.read(stream, int(number), after, _PAGE):
        yield from (each.text for each in messages)
        after = messages[-1].position


def wrong(
    messages: Mapping[str, Sequence[str]],
    effects: Sequence[Effect] | None,
    copies: Sequence[Sequence[Effect]],
    noted: Iterable[tuple[str, str]],
    *,
    chained: bool = True,
) -> Iterator[str]:
    """Say what differs from one run over the messages, with the answers that the ledger gave.

    ``messages``: what is committed, by substream, in its order. ``effects``: of the store, None
    where that is the log. ``copies``: what was published, of each substream in its order.
    ``noted``: each call that had an effect, and its answer. ``chained``: effects hash those before.
    """
    noted = list(noted)
    wanted_calls = {each for found in messages.values() for each in found if is_called(each)}
    for message, count in Counter(message for message, _ in noted).items():
        if count > 1:
            yield f"consumed: {message} was noted {count} times"
        if message not in wanted_calls:
            yield f"consumed: {message} was noted, and no caller asks for that"
    answers = dict(noted)
    for tag, found in messages.items():
        wanted: list[Effect] = []
        for each in found:
            answer = answers.get(each, "never") if is_called(each) else ""
            before = wanted[-1] if wanted and chained else None
            wanted.append(following(tag, before, each, answer))
        if effects is not None:
            yield from _compared(tag, "effect", [e for e in effects if e.tag == tag], wanted)
        # A key is in one substream, so its order is that of the effects.
        there = [e for of in copies for e in of if e.tag == tag]
        yield from _compared(tag, "copy", there, wanted)


def _compared(
    tag: str, what: str, found: Sequence[Effect], wanted: Sequence[Effect]
) -> Iterator[str]:
    for at, (one, other) in enumerate(zip(found, wanted, strict=False), 1):
        if one != other:
            yield f"consumed: {what} {at} of {tag} is {tuple(one)}, in one run {tuple(other)}"
            return
    if len(found) != len(wanted):
        yield f"consumed: {tag} has {len(found)} of {what}, one run has {len(wanted)}"
