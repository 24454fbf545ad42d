"""A dispatcher as most write it; ``python -m`` runs it, given DATABASE NAME=ADDRESS ...

It reads the orders' table, calls each service with each order until it answers, and notes in a
file, now and then, how far it is.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import threading
import time
from pathlib import Path
from typing import Any

import grpc

from examples.delivered_orders.services import naive_of

_NOTED_EVERY = 20
_IDLE_S, _RETRY_S = 0.05, 0.05


def main(database: Path, addresses: list[str]) -> None:
    """Dispatch until standard input closes."""
    for name, _, address in (each.partition("=") for each in addresses):
        threading.Thread(target=_dispatch, args=(database, name, address), daemon=True).start()
    print("listening 0", flush=True)
    sys.stdin.read()


def _dispatch(database: Path, name: str, address: str) -> None:
    noted = database.with_suffix(f".{name}")
    done = int(noted.read_text()) if noted.exists() else 0
    with grpc.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(naive_of(name))
        while True:
            waiting = _behind(database, done)
            for number, order in waiting:
                while True:
                    try:
                        call(order.encode(), timeout=5)
                    except grpc.RpcError:
                        time.sleep(_RETRY_S)
                    else:
                        break
                done = number
                if done % _NOTED_EVERY == 0:
                    _note(noted, done)
            if not waiting:
                _note(noted, done)
                time.sleep(_IDLE_S)


def _note(file: Path, done: int) -> None:
    part = file.with_name(f"{file.name}.part")
    part.write_text(str(done))
    part.replace(file)


def _behind(database: Path, done: int) -> list[tuple[int, str]]:
    with contextlib.closing(sqlite3.connect(database, timeout=30)) as connection:
        query = "SELECT number, name FROM sale WHERE number > ? ORDER BY number LIMIT 200"
        return connection.execute(query, (done,)).fetchall()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
