"""gRPC servers that permit pings of idle clients; without gRPC.

A client that pings (``grpc.keepalive_time_ms``) keeps a NAT or a balancer from forgetting its
connection. By default gRPC servers hang up on pings that come more often than each five minutes,
or two hours if no call runs (GOAWAY, ``too_many_pings``).
"""

from __future__ import annotations

__all__ = ["SERVER_OPTIONS"]

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)
