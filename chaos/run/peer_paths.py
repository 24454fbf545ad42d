"""The paths between an etcd's nodes, by which one of them is cut off from the others.

A path that leads to a node does not do: what the others tell it comes by connections that it
opened itself. So all connections between nodes pass here, and whose each is stands in its
requests, by ``X-Server-From`` of etcd's rafthttp.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Coroutine
from functools import partial
from typing import Any, Self

from chaos.etcd_cluster import EtcdCluster

__all__ = ["PeerPaths"]

_FROM = re.compile(rb"\r\nX-Server-From: ([0-9a-f]+)\r\n")
# More than a header that the end of what was received cuts in two.
_OVERLAP = 64
_CHUNK = 64 << 10


class PeerPaths:
    """A port for each node, where its peers find it; any thread.

    To be entered before the cluster is, whose nodes have to be told.
    """

    def __init__(self, cluster: EtcdCluster) -> None:
        self._cluster = cluster
        # Nodes by their place in the cluster, and by the id that they call themselves.
        self._numbers: dict[bytes, int] = {}
        self._cut: set[int] = set()
        self._links: set[_Link] = set()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="peer-paths")

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def learn(self) -> None:
        """Ask the nodes how they call themselves; all of them run."""
        for number, node in enumerate(self._cluster.nodes):
            status = node.status()
            if status is None:
                raise RuntimeError(f"etcd {node.name} does not answer")
            self._numbers[b"%x" % status.header.member_id] = number

    def cut(self, number: int) -> None:
        """Close every connection between this node and another one, and accept none."""
        self._run(self._cut_off(number))

    def mend(self, number: int) -> None:
        """Accept them again."""
        self._run(self._take_back(number))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _listen(self) -> None:
        for number, node in enumerate(self._cluster.nodes):
            server = await asyncio.start_server(partial(self._serve, number), "127.0.0.1", 0)
            self._servers.append(server)
            node.advertised = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _stop(self) -> None:
        for server in self._servers:
            server.close()
        for link in self._links:
            link.abort()
        while self._links:
            await asyncio.sleep(0)

    async def _cut_off(self, number: int) -> None:
        self._cut.add(number)
        for link in self._links:
            # One that has not said yet whose it is may be the node's own: it comes again.
            if number in (link.to, link.of) or link.of is None:
                link.abort()

    async def _take_back(self, number: int) -> None:
        self._cut.discard(number)

    async def _serve(
        self, to: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        link = _Link(to, writer)
        self._links.add(link)
        try:
            if to in self._cut:
                return
            port = int(self._cluster.nodes[to].peer.rpartition(":")[2])
            answers, requests = await asyncio.open_connection("127.0.0.1", port)
            link.writers.append(requests)
            ways = [
                asyncio.ensure_future(self._pass_requests(link, reader, requests)),
                asyncio.ensure_future(_pass(answers, writer)),
            ]
            # Whichever side ends it ends both.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            link.abort()
            await asyncio.wait(ways)
        except OSError:
            # The node does not run, as its peers are told.
            pass
        finally:
            link.abort()
            self._links.discard(link)

    async def _pass_requests(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        before = b""
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                if link.of is None and (found := _FROM.search(before + data)):
                    link.of = self._numbers.get(found[1])
                    if link.of in self._cut:
                        return
                before = data[-_OVERLAP:]
                writer.write(data)
                await writer.drain()


class _Link:
    """One connection between two nodes: ``of`` is who opened it, once that is known."""

    def __init__(self, to: int, writer: asyncio.StreamWriter) -> None:
        self.to = to
        self.of: int | None = None
        self.writers = [writer]

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
