"""A TCP path with a delay: ``python -m benchmarks.delay --to HOST:PORT --delay-ms 5``.

Bytes arrive so much later, in order, in both directions. Prints its own address; ends
when its standard input closes. A process of its own, so that its work is not charged
to what is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys

__all__ = ["main"]


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float
) -> None:
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            due, data = await waiting.get()
            if (left := due - loop.time()) > 0:
                await asyncio.sleep(left)
            if not data:
                writer.close()
                return
            writer.write(data)

    delivering = asyncio.create_task(deliver())
    try:
        while data := await reader.read(1 << 16):
            waiting.put_nowait((loop.time() + delay_s, data))
    except ConnectionError:
        pass
    waiting.put_nowait((loop.time(), b""))
    await delivering


async def _serve(host: str, port: int, delay_s: float) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        for end in (writer, far_writer):
            end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.gather(
            _carry(reader, far_writer, delay_s), _carry(far_reader, writer, delay_s)
        )

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, os.read, 0, 1)


def main() -> int:
    """Carry bytes until standard input closes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delay", description=__doc__)
    parser.add_argument("--to", required=True, metavar="HOST:PORT")
    parser.add_argument("--delay-ms", type=float, required=True, help="each way")
    options = parser.parse_args()
    host, _, port = options.to.rpartition(":")
    asyncio.run(_serve(host, int(port), options.delay_ms / 1000))
    return 0


if __name__ == "__main__":
    sys.exit(main())
