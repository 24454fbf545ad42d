"""The clients of one shard: the simulator's, and how often each second they did what."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import grpc

from chaos.sim.client_exchange import ClientExchange
from chaos.sim.client_life import ClientLife
from chaos.sim.faults import Coverage
from chaos.sim.loop import Loop, Process
from chaos.sim.network import Network, Rpc
from chaos.sim.planned import PlannedCall
from lease_server.v1 import lease_server_pb2 as pb
from rifl._client.routing import Router
from rifl._client.settings import Settings
from rifl.core._calling.targets import Targets

__all__ = ["Counts", "Crowd"]

_METHOD = "/bench.v1.Bench/Call"


class Counts:
    """By the second: requests of leases, attempts, calls begun, and those answered in time."""

    def __init__(self) -> None:
        self.renewals: Counter[int] = Counter()
        self.attempts: Counter[int] = Counter()
        # Attempts by target.
        self.shares: Counter[int] = Counter()
        self.begun: Counter[int] = Counter()
        self.answered: Counter[int] = Counter()


class _CountingNetwork(Network):
    """Notes what clients send."""

    def __init__(self, loop: Loop, dice: Random, counts: Counts) -> None:
        super().__init__(loop, dice, Coverage())
        self._counts = counts

    def begin(self, rpc: Rpc, timeout_s: float | None) -> None:
        """See ``Network``."""
        counted = self._counts.renewals
        if rpc.kind != "lease":
            counted = self._counts.attempts
            self._counts.shares[rpc.target] += 1
        counted[int(self._loop.now)] += 1
        super().begin(rpc, timeout_s)


class Crowd:
    """Clients that each begin at a target of their own, or all at the first, and know all."""

    def __init__(self, seed: int, servers: int, *, at_first: bool = False) -> None:
        # What each client would tell its operator, for all of them.
        logging.disable(logging.CRITICAL)
        self.dice = Random(f"crowd {seed}")  # noqa: S311 - repeatable, not secret
        self.loop = Loop()
        self.counts = Counts()
        self.network: Network = _CountingNetwork(self.loop, self.dice, self.counts)
        self.lives: list[ClientLife] = []
        # A call that nothing else holds would be collected.
        self._exchanges: set[ClientExchange] = set()
        self._firsts = 1 if at_first else servers
        self._names = [f"server{at}:1" for at in range(servers)]
        self._settings = Settings()
        self._world: Any = SimpleNamespace(loop=self.loop, network=self.network)
        self._number = 0

    def begin(self, clients: int, within_s: float, grant: Callable[[], pb.GrantReply]) -> None:
        """Have clients begin, one after another; ``grant``: of the lease of each."""
        for at in range(clients):
            self.loop.after(within_s * at / clients, self._begin, at, grant)

    def _begin(self, at: int, grant: Callable[[], pb.GrantReply]) -> None:
        process = Process(self.loop, f"client{at}")
        router = Router(Targets(self._names), process.clock)
        router.targets.current = at % self._firsts
        life = ClientLife(self._world, process, self.dice, self._settings, router)
        # One thread has all clients: no lock must know its owner.
        router._lock = life.state.lock = threading.RLock()  # type: ignore[assignment]
        self.lives.append(life)
        life.state.granted(grant(), self.loop.now)
        life.keeper.look()

    def in_turn(self) -> int:
        """Return how many clients send their calls to several servers in turn."""
        return sum(len(each.state.in_turn) > 1 for each in self.lives)

    def call_on(self, until: float, calls_s: float, deadline_s: float) -> None:
        """Have clients make so many calls a second in all, until a time; beside any before."""
        loop = self.loop
        if loop.now < until:
            self._call(self.dice.choice(self.lives), deadline_s)
            pause_s = self.dice.expovariate(calls_s)
            loop.after(pause_s, self.call_on, until, calls_s, deadline_s)

    def _call(self, life: ClientLife, deadline_s: float) -> None:
        self._number += 1
        began = self.loop.now
        planned = PlannedCall(
            number=self._number,
            client=0,
            at=began,
            method=_METHOD,
            op="call",
            account="",
            amount=0,
            behaviour="",
            work_s=0.0,
            deadline_s=deadline_s,
            resolves=False,
        )

        def finished(exchange: ClientExchange) -> None:
            self._exchanges.discard(exchange)
            status: Any = exchange.status
            self.counts.answered[int(began)] += status.code() is grpc.StatusCode.OK

        self.counts.begun[int(began)] += 1
        exchange = ClientExchange(life, planned, finished)
        self._exchanges.add(exchange)
        exchange.begin()
