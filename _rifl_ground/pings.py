"""Options of gRPC servers: pings of idle clients, and how much of its connections; without gRPC.

A client that pings (``grpc.keepalive_time_ms``) keeps a NAT or a balancer from forgetting its
connection. By default gRPC servers hang up on pings that come more often than each five minutes,
or two hours if no call runs (GOAWAY, ``too_many_pings``).
"""

from __future__ import annotations

__all__ = ["OWN_SERVER_OPTIONS", "SERVER_OPTIONS"]

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)
# Of the servers that our commands start. A connection has to say within that time that it is
# one of HTTP/2; beyond its streams a client's calls wait for others of its own to end.
OWN_SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *SERVER_OPTIONS,
    # Two servers on one port would each get some of the calls.
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", 2_000),
    ("grpc.max_allowed_incoming_connections", 10_000),
    ("grpc.server_handshake_timeout_ms", 10_000),
)
