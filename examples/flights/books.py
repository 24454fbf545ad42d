"""The bookkeeping service as a process: ``python -m examples.flights.books``.

Prints ``listening <port>`` and serves until its standard input closes.
"""

from __future__ import annotations

import argparse
import collections
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc

import rifl
from examples.flights.v1 import flights_pb2, flights_pb2_grpc

__all__ = ["Books"]


class Books(flights_pb2_grpc.BooksServicer):
    """Every call of ``Post`` is an entry, whether or not the flight is in the books."""

    def __init__(self, *, by_flight: bool = True) -> None:
        """Empty books; without ``by_flight`` entries are only counted."""
        self._by_flight = by_flight
        self._lock = threading.Lock()
        self._entries: collections.Counter[tuple[int, str, int]] = collections.Counter()
        self._count = 0
        self._miles = 0

    def Post(self, request: flights_pb2.Flight, context: grpc.ServicerContext) -> flights_pb2.Entry:
        """Book a flight."""
        with self._lock:
            if self._by_flight:
                self._entries[request.departs.seconds, request.carrier, request.number] += 1
            self._count += 1
            self._miles += request.miles
            return flights_pb2.Entry(entry=self._count)

    def Totals(
        self, request: flights_pb2.TotalsRequest, context: grpc.ServicerContext
    ) -> flights_pb2.TotalsReply:
        """Count the entries."""
        with self._lock:
            return flights_pb2.TotalsReply(
                entries=self._count, flights=len(self._entries), miles=self._miles
            )


def main() -> int:
    """Serve, with or without rifl in front."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", help="of completion records; without it rifl is left out")
    parser.add_argument("--max-keys", type=int, default=2_000_000, help="of one session")
    parser.add_argument("--count-only", action="store_true", help="keep no table of flights")
    options = parser.parse_args()
    books = Books(by_flight=not options.count_only)
    if options.store is None:
        server = grpc.server(ThreadPoolExecutor(8))
        flights_pb2_grpc.add_BooksServicer_to_server(books, server)
        return _serve(server)
    methods = {"/flights.v1.Books/Totals": None}
    # One session holds a whole day's, or year's, flights.
    with rifl.Deduplicator(
        options.store,
        methods=methods,
        bounds=rifl.Bounds(max_keys=options.max_keys, max_key_bytes=options.max_keys << 10),
    ) as dedup:
        server = grpc.server(ThreadPoolExecutor(8), interceptors=[dedup.interceptor()])
        flights_pb2_grpc.add_BooksServicer_to_server(books, server)
        dedup.add_to_server(server)
        dedup.add_reflection(server, "flights.v1.Books")
        return _serve(server)


def _serve(server: grpc.Server) -> int:
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"listening {port}", flush=True)
    sys.stdin.read()
    server.stop(2).wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
