"""A TCP path with a delay: ``python -m benchmarks.delay --to HOST:PORT --delay-ms 5``.

Bytes arrive so much later, in order, in both directions. Prints its own address; ends
when its standard input closes. A process of its own, so that its work is not charged
to what is measured. Threads that sleep, since an event loop's timers are rounded up
to a millisecond, on each of four hops of a call.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import socket
import sys
import threading
import time

__all__ = ["main"]


def _read(source: socket.socket, waiting: queue.SimpleQueue[tuple[float, bytes]], s: float) -> None:
    data = b"..."
    while data:
        try:
            data = source.recv(1 << 16)
        except OSError:
            data = b""
        waiting.put((time.monotonic() + s, data))


def _write(to: socket.socket, waiting: queue.SimpleQueue[tuple[float, bytes]]) -> None:
    with contextlib.suppress(OSError):
        while True:
            due, data = waiting.get()
            if (left := due - time.monotonic()) > 0:
                time.sleep(left)
            if not data:
                to.shutdown(socket.SHUT_WR)
                return
            to.sendall(data)


def _carry(source: socket.socket, to: socket.socket, delay_s: float) -> None:
    waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(source, waiting, delay_s), daemon=True).start()
    threading.Thread(target=_write, args=(to, waiting), daemon=True).start()


def _serve(listener: socket.socket, host: str, port: int, delay_s: float) -> None:
    while True:
        near, _ = listener.accept()
        try:
            far = socket.create_connection((host, port))
        except OSError:
            near.close()
            continue
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _carry(near, far, delay_s)
        _carry(far, near, delay_s)


def main() -> int:
    """Carry bytes until standard input closes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delay", description=__doc__)
    parser.add_argument("--to", required=True, metavar="HOST:PORT")
    parser.add_argument("--delay-ms", type=float, required=True, help="each way")
    options = parser.parse_args()
    host, _, port = options.to.rpartition(":")
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"127.0.0.1:{listener.getsockname()[1]}", flush=True)
    threading.Thread(
        target=_serve, args=(listener, host, int(port), options.delay_ms / 1000), daemon=True
    ).start()
    os.read(0, 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
