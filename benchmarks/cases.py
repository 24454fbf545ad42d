"""Cases that are measured: one side beside another, and its targets.

A side is a server and a way to call it. To measure something else, give
``benchmarks.behaviors`` another kind, or ``benchmarks.sides`` another client, and add a
line here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Case", "Side", "Targets", "cases"]

_CALLERS = (1, 16, 64)
_BOTH = ("sync", "aio")
# Those whose library has no asynchronous form for a handler.
_SYNC = ("sync",)


class Side(NamedTuple):
    """A server with a database and who calls it.

    ``store``: none, memory, sqlite, redis or postgres. ``kind``: how the method is
    declared to rifl, or what guards it in rifl's place (``benchmarks.behaviors``).
    ``client``: "rifl"; "plain" grpcio; grpcio with a "header" as long as rifl's, with an
    idempotency key for each call ("keyed"), or with gRPC's own "retry" policy. Also a
    "replay" of one call again and again, or a "crowd" of a thousand clients in turn.
    ``idle``: how many clients the server holds besides.
    """

    store: str
    kind: str = "plain"
    client: str = "plain"
    idle: int = 0


class Targets(NamedTuple):
    """The targets of a case; None: no target.

    ``throughput`` is the least ratio; ``latency``, ``client_cpu`` and ``server_cpu``
    are the largest ones. ``fsyncs``: how many measured fsyncs more than theirs our latency may be.
    """

    throughput: float | None = None
    latency: float | None = None
    client_cpu: float | None = None
    server_cpu: float | None = None
    fsyncs: float | None = None


class Case(NamedTuple):
    """A figure: ``ours`` to ``theirs``, at so many callers, on servers of these flavors."""

    name: str
    callers: int
    ours: Side
    theirs: Side
    targets: Targets = Targets()
    flavors: tuple[str, ...] = _BOTH


PLAIN = Side("none")
HEADER = Side("none", client="header")


def cases() -> Iterator[Case]:
    """Yield every case."""
    yield from _memory()
    yield from _sqlite()
    yield Case(
        "replayed answers",
        1,
        Side("memory", client="replay"),
        PLAIN,
        Targets(latency=1.3),
    )
    yield Case(
        "a million clients, to a thousand",
        16,
        Side("memory", client="crowd", idle=999_000),
        Side("memory", client="crowd"),
        # The same, as far as pairs can tell.
        Targets(server_cpu=1.05),
        _SYNC,
    )
    for callers in (1, 16):
        yield Case("gRPC's retry policy", callers, Side("none", client="retry"), PLAIN)
    yield from _redis()
    yield from _postgres()
    for callers in (1, 16):
        yield Case(
            "sqlite plain, to DBOS",
            callers,
            Side("sqlite", "plain", "rifl"),
            Side("sqlite", "dbos", "keyed"),
            flavors=_SYNC,
        )


def _memory() -> Iterator[Case]:
    memory = Side("memory", client="rifl")
    for callers in _CALLERS:
        targets = Targets(throughput=0.90 if callers < 64 else None)
        yield Case("memory", callers, memory, PLAIN, targets)
    for callers in _CALLERS:
        targets = Targets(
            throughput=0.95 if callers < 64 else None,
            latency=1.05 if callers == 1 else None,
            client_cpu=1.15,
        )
        yield Case("memory, to the same header", callers, memory, HEADER, targets)


def _sqlite() -> Iterator[Case]:
    for kind, commits, ratio in (
        ("idempotent", "one commit", 0.80),
        ("plain", "two commits", 0.65),
        ("atomic", "its own commit", 0.80),
        ("shared", "atomic, one commit for many", 0.80),
    ):
        for callers in _CALLERS:
            targets = Targets(
                throughput=ratio if callers > 1 else None,
                fsyncs=(2.3 if kind == "plain" else 1.3) if callers == 1 else None,
            )
            ours = Side("sqlite", kind, "rifl")
            yield Case(f"sqlite {kind}, {commits}", callers, ours, PLAIN, targets)
    # What a commit of SQLite's costs a call, by rifl or by the handler.
    for callers in _CALLERS:
        ours = Side("sqlite", "transaction")
        yield Case("sqlite, the own transaction without us", callers, ours, PLAIN)
    # The commits of handlers follow each other with and without us.
    for callers in (1, 16):
        ours = Side("sqlite", "atomic", "rifl")
        theirs = Side("sqlite", "transaction")
        targets = Targets(latency=1.15 if callers == 1 else None)
        yield Case("sqlite atomic, to the own transaction", callers, ours, theirs, targets)
    # Calls of rifl share a commit.
    for callers, ratio in ((16, 3.0), (64, 5.0)):
        ours = Side("sqlite", "shared", "rifl")
        theirs = Side("sqlite", "transaction")
        targets = Targets(throughput=ratio)
        yield Case("sqlite shared, to the own transactions", callers, ours, theirs, targets)


def _redis() -> Iterator[Case]:
    ours = Side("redis", client="rifl")
    for callers in _CALLERS:
        yield Case("redis", callers, ours, PLAIN)
    for callers in _CALLERS:
        guard = Side("redis", "guard", "keyed")
        yield Case("redis, to a hand-written guard", callers, ours, guard, Targets(throughput=1.0))
    # One message a call, where the guard has two: what it may do is less (policies.md).
    for callers in _CALLERS:
        unclaimed = Side("redis", "unclaimed", "rifl")
        guard = Side("redis", "guard", "keyed")
        yield Case("redis, never claimed, to a hand-written guard", callers, unclaimed, guard)
    for callers in _CALLERS:
        powertools = Side("redis", "powertools", "keyed")
        yield Case(
            "redis, to Powertools", callers, ours, powertools, Targets(throughput=1.0), _SYNC
        )


def _postgres() -> Iterator[Case]:
    for callers in _CALLERS:
        yield Case("postgres", callers, Side("postgres", client="rifl"), PLAIN)
    for callers in _CALLERS:
        ours = Side("postgres", "atomic", "rifl")
        theirs = Side("postgres", "transaction")
        yield Case("postgres atomic, to the own transaction", callers, ours, theirs)
    for callers in _CALLERS:
        ours = Side("postgres", "atomic", "rifl")
        by_hand = Side("postgres", "inserted", "keyed")
        targets = Targets(latency=1.05 if callers == 1 else 1.1)
        yield Case("postgres atomic, to a lock and insert by hand", callers, ours, by_hand, targets)
