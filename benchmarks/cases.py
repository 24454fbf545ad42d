"""What is measured: each case is one side beside another, and what is to be reached.

A side is a server and a way to call it. To measure something else, give
``benchmarks.server`` another ``--store`` or ``--kind``, or ``benchmarks.sides``
another client, and add a line here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Case", "Side", "cases"]

_CALLERS = (1, 16, 64)


class Side(NamedTuple):
    """A server over ``store`` ("none": plain grpcio) and who calls it.

    ``kind`` is how the method is declared. ``client``: "rifl", "plain" grpcio, grpcio
    with a "header" as long as ours, grpcio with its own "retry" policy, or a "replay"
    of one call again and again.
    """

    store: str
    kind: str
    client: str


PLAIN = Side("none", "plain", "plain")
HEADER = Side("none", "plain", "header")


class Case(NamedTuple):
    """A figure: ``ours`` to ``theirs``.

    ``target`` is the least throughput ratio. ``fsyncs`` is, instead, how many
    measured fsyncs more than theirs our latency may be.
    """

    name: str
    callers: int
    ours: Side
    theirs: Side = PLAIN
    target: float | None = None
    fsyncs: float | None = None


def cases() -> Iterator[Case]:
    """Yield every case; each is measured on sync and aio servers and clients."""
    memory = Side("memory:", "plain", "rifl")
    for callers in _CALLERS:
        aimed = callers < 64
        yield Case("memory", callers, memory, PLAIN, 0.90 if aimed else None)
        yield Case("memory, same header", callers, memory, HEADER, 0.95 if aimed else None)
    for kind, commits, ratio in (
        ("idempotent", "one commit", 0.80),
        ("atomic", "its own commit", 0.80),
        ("plain", "two commits", 0.65),
    ):
        for callers in _CALLERS:
            yield Case(
                f"sqlite {kind}, {commits}",
                callers,
                Side("sqlite:///{}", kind, "rifl"),
                PLAIN,
                ratio if callers > 1 else None,
                (2.3 if kind == "plain" else 1.3) if callers == 1 else None,
            )
    yield Case("replayed answers", 1, Side("memory:", "plain", "replay"), PLAIN, 1 / 1.3)
    yield Case("gRPC's retry policy", 1, Side("none", "plain", "retry"))
    yield Case("gRPC's retry policy", 16, Side("none", "plain", "retry"))
