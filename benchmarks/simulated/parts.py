"""Troubles of shards in virtual time: what happens to servers, and what is found of it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from _rifl_ground.log import UNHEARD
from benchmarks.simulated.crowd import Crowd
from benchmarks.simulated.shard import TERM_S, Shard
from rifl._client import routing

__all__ = ["TRIGGERS", "Size", "calls", "renewals", "start"]

_ZONES = 3
_DEADLINE_S = 2.0
# When it begins, once all clients have their lease; and how long it is looked at afterwards.
_CALM_S, _AFTER_S = 30.0, 30.0
# Back: so much of what is begun is answered in time, for so many seconds on end.
_BACK, _FOR_S = 0.9, 5
# Garbage is looked for seldom: almost all that is there stays, and took a third of the time.
_COLLECT = (100_000, 20, 100)


class Size(NamedTuple):
    """Of one shard: its clients, servers, and calls a second."""

    clients: int = 10_000
    servers: int = 10
    calls_s: float = 1_000.0


@contextmanager
def _collecting_seldom() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*_COLLECT)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _began(seed: int, size: Size, within_s: float) -> tuple[Crowd, Shard]:
    crowd = Crowd(seed, size.servers)
    shard = Shard(crowd.loop, crowd.network, crowd.dice, servers=size.servers)
    crowd.begin(size.clients, within_s, shard.grant)
    return crowd, shard


# All shards: renewals, and the loss of a zone.


def renewals(shards: int, size: Size) -> dict[str, Any]:
    """Return the renewals of so many shards' idle clients, before and after a zone is lost.

    Shards share no server: each is simulated by itself, on the same clock, in a process of its own,
    whose end frees what a collection would have to look for.
    """
    began, spent = time.perf_counter(), _children_s()
    with multiprocessing.Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        found = pool.map(partial(_zone_lost, size), range(shards), chunksize=1)
    # Seconds in which all have their lease, and nothing has happened.
    lost_at = _lost_at()
    sent: Counter[int] = Counter()
    for each in found:
        sent.update(each.sent)
    calm = [sent[at] for at in range(int(lost_at - TERM_S / 3), int(lost_at))]
    after = [sent[at] for at in range(int(lost_at), int(lost_at + TERM_S))]
    return {
        "clients": shards * size.clients,
        "servers": shards * size.servers,
        "renewals_s": round(sum(calm) / len(calm)),
        "busiest_s": max(calm),
        "servers_lost": shards * _of_a_zone(size),
        "clients_moved": sum(each.moved for each in found),
        "requests_a_renewal_after": round(sum(after) / sum(each.renewed for each in found), 3),
        "busiest_s_after": max(after),
        "back_s": round(max(each.back_s for each in found), 1),
        "leases_lost": sum(each.leases_lost for each in found),
        "took_s": round(time.perf_counter() - began, 1),
        "cpu_s": round(_children_s() - spent, 1),
    }


def _children_s() -> float:
    spent = os.times()
    return spent.children_user + spent.children_system


class _Zone(NamedTuple):
    """One shard's: requests by the second; renewals, and clients that moved, after the loss."""

    sent: Mapping[int, int]
    renewed: int
    moved: int
    back_s: float
    leases_lost: int


def _lost_at() -> float:
    return TERM_S


def _of_a_zone(size: Size) -> int:
    return len(range(0, size.servers, _ZONES))


def _zone_lost(size: Size, seed: int) -> _Zone:
    gc.disable()
    # It costs as much to find that no handler hears.
    routing._log = UNHEARD  # type: ignore[assignment]
    crowd, shard = _began(seed, size, TERM_S / 3)
    lost_at = _lost_at()
    crowd.loop.run(lost_at)
    lost = range(0, size.servers, _ZONES)
    moving = [each for each in crowd.lives if _target(each) in lost]
    shard.watch_from = lost_at
    for at in lost:
        shard.servers[at].die()
    crowd.loop.run(lost_at + TERM_S)
    ids = [each.state.session.lease for each in moving]
    back = [shard.renewed_at.get(each.client_id, float("inf")) if each else lost_at for each in ids]
    return _Zone(
        crowd.counts.renewals,
        shard.renewed,
        len(moving),
        max(back, default=lost_at) - lost_at,
        shard.leases.next_id - 1 - size.clients,
    )


def _target(life: Any) -> int:
    found: int = life.state.router.targets.current
    return found


# One shard: every call, through what happens to it.


@_collecting_seldom()
def calls(trigger: str, size: Size) -> dict[str, Any]:
    """Return what became of calls, through one of ``TRIGGERS``."""
    began = time.perf_counter()
    crowd, shard = _began(1, size, _CALM_S / 2)
    loop, counts = crowd.loop, crowd.counts
    at = _CALM_S + 10.0
    ends = at + TRIGGERS[trigger](crowd, shard, size, at)
    until = ends + _AFTER_S
    in_turn: list[int] = []
    loop.at(_CALM_S, None, lambda: in_turn.append(crowd.in_turn()))
    loop.at(_CALM_S, None, crowd.call_on, until, size.calls_s, _DEADLINE_S)
    loop.run(until + _DEADLINE_S)
    before, during = range(int(_CALM_S), int(at)), range(int(at), int(ends))
    back = _back(counts.begun, counts.answered, int(ends), int(until))
    span = range(int(at), int(until))
    return {
        "clients": size.clients,
        "clients_in_turn": in_turn[0],
        "calls": sum(counts.begun.values()),
        "goodput_s_before": round(_mean(counts.answered, before)),
        "goodput_s": round(_mean(counts.answered, during)),
        "goodput_s_least": min(counts.answered[each] for each in during),
        "attempts_a_call": round(_mean(counts.attempts, span) / _mean(counts.begun, span), 3),
        "attempts_s_most": max(counts.attempts.values()),
        "lease_requests_s_most": max(counts.renewals[each] for each in span),
        "back_s": back,
        "doubled": shard.doubled,
        "took_s": round(time.perf_counter() - began, 1),
    }


@_collecting_seldom()
def start(size: Size) -> dict[str, Any]:
    """Return what is asked of leases, and of which server, when all clients begin together.

    Within a second, and at the first of the servers, as all were given the same list.
    """
    began = time.perf_counter()
    crowd = Crowd(1, size.servers, at_first=True)
    shard = Shard(crowd.loop, crowd.network, crowd.dice, servers=size.servers)
    crowd.begin(size.clients, 1.0, shard.grant)
    crowd.loop.at(1.0, None, crowd.call_on, _CALM_S, size.calls_s, _DEADLINE_S)
    crowd.loop.run(_CALM_S + _DEADLINE_S)
    counts = crowd.counts
    return {
        "clients": size.clients,
        "clients_in_turn": crowd.in_turn(),
        "goodput_s": round(_mean(counts.answered, range(1, int(_CALM_S)))),
        "lease_requests_s_most": max(counts.renewals.values()),
        "largest_share": round(max(counts.shares.values()) / sum(counts.shares.values()), 3),
        "took_s": round(time.perf_counter() - began, 1),
    }


def _mean(counted: Mapping[int, int], seconds: range) -> float:
    return sum(counted[each] for each in seconds) / len(seconds)


def _back(
    begun: Mapping[int, int], answered: Mapping[int, int], ends: int, until: int
) -> int | None:
    """Return the seconds until calls are answered in time again; None: they are not."""
    for at in range(ends, until - _FOR_S + 1):
        if all(answered[each] >= _BACK * begun[each] for each in range(at, at + _FOR_S)):
            return at - ends
    return None


def _restart(crowd: Crowd, shard: Shard, size: Size, at: float) -> float:
    """Kill all servers; they start again after 5 seconds, and give each client a full term."""
    del size
    away_s = 5.0

    def start() -> None:
        shard.leases.recover(range(1, shard.leases.next_id), crowd.loop.now)
        for each in shard.servers:
            each.start()

    for each in shard.servers:
        crowd.loop.at(at, None, each.die)
    crowd.loop.at(at + away_s, None, start)
    return away_s


def _silent_store(crowd: Crowd, shard: Shard, size: Size, at: float) -> float:
    """Have the store answer nothing for 10 seconds."""
    del size
    silent_s = 10.0

    def begin() -> None:
        shard.silent_until = at + silent_s

    crowd.loop.at(at, None, begin)
    return silent_s


def _upgrade(crowd: Crowd, shard: Shard, size: Size, at: float) -> float:
    """Have one server after another drain, end after half a second, and come back two later."""
    del size
    each_s = 4.0
    for number, server in enumerate(shard.servers):
        begins = at + number * each_s
        crowd.loop.at(begins, None, server.drain)
        crowd.loop.at(begins + 0.5, None, server.die)
        crowd.loop.at(begins + 2.5, None, server.start)
    return each_s * len(shard.servers)


def _doubled(crowd: Crowd, shard: Shard, size: Size, at: float) -> float:
    """Have twice as many calls come for 20 seconds."""
    del shard
    more_s = 20.0
    crowd.loop.at(at, None, crowd.call_on, at + more_s, size.calls_s, _DEADLINE_S)
    return more_s


# What happens at a time; each returns for how long.
TRIGGERS: Mapping[str, Callable[[Crowd, Shard, Size, float], float]] = {
    "the shard restarts": _restart,
    "its store is silent": _silent_store,
    "a rolling upgrade": _upgrade,
    "load is doubled": _doubled,
}
