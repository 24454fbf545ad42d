"""A service with one method of each kind, on each kind of server: what it did is in a file."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc

import rifl
import rifl.aio
import sharedlog
from tests.helpers.servers import generic, serve
from tests.sharedlog.target.player import Player, player

ATOMIC, IDEMPOTENT, PLAIN = "/shop.S/Atomic", "/shop.S/Idempotent", "/shop.S/Plain"
OTHER = "/shop.S/Other"
STREAMS = {"orders": [ATOMIC, IDEMPOTENT, PLAIN], "mails": OTHER}
METHODS = {ATOMIC: "atomic", IDEMPOTENT: "idempotent", PLAIN: "plain"}
Act = Callable[[bytes, Any], None]


class Shop:
    """What its handlers did, and what they are to do: ``act`` is called before the effect."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.act: Act = lambda request, context: None
        self.deliveries: list[Any] = []
        self._done: list[int] = []
        self._lock = threading.Lock()
        if path is not None:
            with contextlib.closing(sqlite3.connect(path)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("CREATE TABLE IF NOT EXISTS effect (lsn INTEGER)")
                connection.commit()

    def effects(self) -> list[int]:
        """What was done, in its order: atomic ones' first."""
        if self.path is None:
            return list(self._done)
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            rows = connection.execute("SELECT lsn FROM effect ORDER BY rowid").fetchall()
        return [lsn for (lsn,) in rows] + self._done

    def _note(self, request: bytes, context: Any) -> None:
        with self._lock:
            self.deliveries.append(sharedlog.delivery(context))
        self.act(request, context)

    def plain(self, request: bytes, context: Any) -> bytes:
        """Do it."""
        self._note(request, context)
        with self._lock:
            self._done.append(int(request))
        return b"done"

    def atomic(self, request: bytes, context: Any) -> bytes:
        """Do it in one transaction with the record."""
        with rifl.transaction(context) as connection:
            connection.execute("INSERT INTO effect VALUES (?)", (int(request),))
            self._note(request, context)
            rifl.record(context, b"done", connection)
        return b"done"

    async def plain_async(self, request: bytes, context: Any) -> bytes:
        """Do it, on a loop."""
        await asyncio.sleep(0)
        await self._act_async(request, context)
        self._done.append(int(request))
        return b"done"

    async def atomic_async(self, request: bytes, context: Any) -> bytes:
        """Do it in one transaction with the record, on a loop."""
        async with rifl.aio.transaction(context) as connection:
            connection.execute("INSERT INTO effect VALUES (?)", (int(request),))
            await self._act_async(request, context)
            rifl.record(context, b"done", connection)
        return b"done"

    async def _act_async(self, request: bytes, context: Any) -> None:
        self.deliveries.append(sharedlog.delivery(context))
        found = self.act(request, context)
        if asyncio.iscoroutine(found):
            await found

    def handlers(self, kind: str) -> Any:
        """The service."""
        plain: Any = self.plain_async if kind == "aio" else self.plain
        atomic: Any = self.atomic_async if kind == "aio" else self.atomic
        return generic(
            "shop.S", {"Atomic": atomic, "Idempotent": plain, "Plain": plain, "Other": plain}
        )


@contextlib.contextmanager
def open_shop(kind: str, url: str, shop: Shop, **options: Any) -> Iterator[Player]:
    """Serve a shop as a target, and play to it."""
    interceptors = options.pop("interceptors", ())
    token = options.pop("show", "")
    methods = dict(METHODS)
    if url == "memory:":
        del methods[ATOMIC]
    observer = options.pop("observer", None)
    with rifl.Deduplicator(url, methods=methods, drain_s=1.0, observer=observer) as dedup:

        def add(server: Any) -> None:
            sharedlog.add_target_to_server(server, dedup, STREAMS, **options)

        chain = [dedup, *interceptors]
        with (
            serve(kind, [shop.handlers(kind)], dedup=dedup, interceptors=chain, add=add) as served,
            player(served.address, token=token) as found,
        ):
            yield found


def aborting(context: Any, code: grpc.StatusCode, details: str) -> Any:
    """Abort, on either kind of server."""
    return context.abort(code, details)
