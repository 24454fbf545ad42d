"""Event loops and the pools that live on them (rifl._stores.postgres; DESIGN §9)."""

from __future__ import annotations

import asyncio
import socket
import threading

from _rifl_ground.postgres.connections import Pools
from rifl._stores.postgres.store_address import store_address
from tests.helpers.waiting import DEADLINE_S


def test_a_loop_ends_although_its_pool_is_connecting():
    """A program that forgets to close is not held up for ever by a database that is silent."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        pools = Pools(store_address(f"postgresql://somebody@127.0.0.1:{port}/rifl"))

        async def program() -> None:
            await pools.awaiting()
            # Now a worker of the pool has begun to connect.
            connection, _ = await asyncio.to_thread(silent.accept)
            connections.append(connection)

        connections: list[socket.socket] = []
        silent.settimeout(DEADLINE_S)
        running = threading.Thread(target=asyncio.run, args=(program(),), daemon=True)
        running.start()
        running.join(DEADLINE_S)
        assert not running.is_alive()
        for connection in connections:
            connection.close()
