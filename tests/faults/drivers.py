"""A server whose atomic handler commits by one driver: ``python -m tests.faults.drivers``.

``FOLDER DRIVER``; the request says what happens at the handler's COMMIT, the first time:

- ``kill-before``, ``kill-after``: the process dies;
- ``lost-before``: the connection is lost, and nothing is committed;
- ``lost-after``: it is committed, and the handler is told an error;
- ``full``: the disk has no room for it.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiosqlite
import grpc
import grpc.aio
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import rifl

__all__ = ["CONTROL", "DRIVERS", "FAULTS", "METHOD", "STORE"]

METHOD, CONTROL = "/faults.Drivers/Act", "/faults.Drivers/Control"
STORE = "store.db"
DRIVERS = ("sqlite3", "sqlalchemy", "aiosqlite", "sqlalchemy-aio")
FAULTS = ("kill-before", "kill-after", "lost-before", "lost-after", "full")
_INSERT = "INSERT INTO effect VALUES ('{}')"


class Faults:
    """Strikes each request once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, request: bytes) -> str:
        """What happens to a request now; noted where a kill does not take it."""
        struck = self._folder / f"struck-{request.decode()}"
        if struck.exists():
            return ""
        struck.touch()
        return request.decode()

    @staticmethod
    def before(fault: str) -> None:
        """What happens before the commit."""
        if fault == "kill-before":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "full":
            set_limit(1024)

    @staticmethod
    def after(fault: str) -> None:
        """And after it."""
        if fault == "kill-after":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "lost-after":
            raise ConnectionError("the answer to the commit was lost")


def set_limit(size: int) -> None:
    """Let no file grow beyond so many bytes, -1 for any."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size if size >= 0 else most, most))


def sync_handler(driver: str, folder: Path) -> Callable[[bytes, Any], bytes]:
    """A handler of a thread's."""
    faults, path = Faults(folder), folder / STORE
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")

    def act(request: bytes, context: Any) -> bytes:
        fault, reply = faults.of(request), b"done " + request
        what: Any
        if driver == "sqlite3":
            what = sqlite3.connect(path, timeout=20)
            what.execute(_INSERT.format(request.decode()))
        else:
            what = Session(engine)
            what.execute(sqlalchemy.text(_INSERT.format(request.decode())))
        try:
            rifl.record(context, reply, what)
            faults.before(fault)
            if fault == "lost-before":
                raise ConnectionError("the connection was lost")
            what.commit()
            faults.after(fault)
        finally:
            what.close()
        return reply

    return act


def aio_handler(driver: str, folder: Path) -> Callable[[bytes, Any], Any]:
    """A coroutine."""
    faults, path = Faults(folder), folder / STORE
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")

    async def act(request: bytes, context: Any) -> bytes:
        fault, reply = faults.of(request), b"done " + request
        what: Any
        if driver == "aiosqlite":
            what = await aiosqlite.connect(path, timeout=20)
            await what.execute(_INSERT.format(request.decode()))
        else:
            what = AsyncSession(engine)
            await what.execute(sqlalchemy.text(_INSERT.format(request.decode())))
        try:
            await rifl.aio.record(context, reply, what)
            faults.before(fault)
            if fault == "lost-before":
                raise ConnectionError("the connection was lost")
            await what.commit()
            faults.after(fault)
        finally:
            await what.close()
        return reply

    return act


def main(folder: Path, driver: str) -> None:
    """Serve until killed."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with sqlite3.connect(folder / STORE) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS effect (what)")
    connection.close()
    dedup = rifl.Deduplicator(
        f"sqlite:///{folder / STORE}", methods={METHOD: "atomic", CONTROL: None}
    )
    if driver in ("sqlite3", "sqlalchemy"):
        server = grpc.server(ThreadPoolExecutor(8), interceptors=[dedup.interceptor()])
        _serve(server, dedup, sync_handler(driver, folder), control)
        server.start()
        threading.Event().wait()
    else:
        asyncio.run(_aio(dedup, aio_handler(driver, folder)))


def control(request: bytes, context: Any) -> bytes:
    """Make room again."""
    set_limit(-1)
    return b"ok"


async def _aio_control(request: bytes, context: Any) -> bytes:
    return control(request, context)


async def _aio(dedup: Any, act: Any) -> None:
    server = grpc.aio.server(interceptors=[dedup.aio_interceptor()])
    _serve(server, dedup, act, _aio_control)
    await server.start()
    await server.wait_for_termination()


def _serve(server: Any, dedup: Any, act: Any, control: Any) -> None:
    methods = {
        "Act": grpc.unary_unary_rpc_method_handler(act),
        "Control": grpc.unary_unary_rpc_method_handler(control),
    }
    handler = grpc.method_handlers_generic_handler("faults.Drivers", methods)
    server.add_generic_rpc_handlers((handler,))
    dedup.add_to_server(server)
    port = server.add_insecure_port("127.0.0.1:0")
    sys.stdout.write(f"port {port}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
