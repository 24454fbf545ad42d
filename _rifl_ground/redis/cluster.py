"""redis-py's clients of a cluster, whose errors are those of other clients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import redis
import redis.asyncio
import redis.cluster

from _rifl_ground.redis.bounded import bound


class ClusterClient(redis.cluster.RedisCluster):
    """For threads. Raises ConnectionError where redis-py says that it finds no cluster, or slot.

    redis-py's own error for that is no RedisError, and would end the threads that ask.
    """

    def __init__(self, **options: Any) -> None:
        with _as_lost():
            super().__init__(**options)

    def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        """See redis-py."""
        with _as_lost():
            return super().execute_command(*args, **kwargs)  # type: ignore[no-untyped-call]

    def bound(self) -> None:
        """Have all connections be bounded, also to nodes that are found later."""
        manager: Any = self.nodes_manager
        make = manager.create_redis_node

        def create_redis_node(*args: Any, **kwargs: Any) -> Any:
            client = make(*args, **kwargs)
            bound(client.connection_pool)
            return client

        # redis-py takes no class of connections here.
        manager.create_redis_node = create_redis_node
        for node in manager.nodes_cache.values():
            if node.redis_connection is not None:
                bound(node.redis_connection.connection_pool)
                # Without those that it has made.
                node.redis_connection.connection_pool.disconnect()
                node.redis_connection.connection_pool.reset()


class AioClusterClient(redis.asyncio.RedisCluster):
    """The same for event loops."""

    async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        """See redis-py."""
        with _as_lost():
            return await super().execute_command(*args, **kwargs)


@contextlib.contextmanager
def _as_lost() -> Iterator[None]:
    try:
        yield
    except redis.exceptions.RedisClusterException as error:
        raise redis.ConnectionError(f"{type(error).__name__}: {error}") from error
