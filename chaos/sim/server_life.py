"""Driver of the product's engine: one life of a server, and what is noted of its answers."""

from __future__ import annotations

from typing import Any, Protocol

import grpc

from chaos.check.history import read_value
from chaos.sim.faults import Point
from chaos.sim.known_clients import KnownClients
from chaos.sim.loop import Process
from chaos.sim.network import Rpc
from chaos.sim.service import Operation
from chaos.sim.shell import Shell
from chaos.sim.world import World
from lease_server._authority import Authority
from rifl._client.answers import FinalStatus
from rifl._grpc.codes import STATUS_CODES
from rifl._server.call_engine import CallEngine
from rifl._server.reply import Reply
from rifl._stores.base import Store
from rifl.core._serving.answer import Answer
from rifl.core._shared.call import Call
from rifl.core._shared.errors import LeaseExpired, RiflError

__all__ = ["Opened", "ServerLife"]

_OK = FinalStatus(grpc.StatusCode.OK)


class Opened(Protocol):
    """What a deployment gives a new process: its store, and who knows about leases."""

    @property
    def store(self) -> Store:
        """Where its records live."""

    @property
    def authority(self) -> Authority:
        """Who knows about leases."""

    def commit(self, context: Any, reply: bytes) -> None:
        """Commit an atomic handler's transaction, with its record by ``rifl.record``."""

    def crash(self, *, flushed: bool) -> None:
        """Leave what the death of the process leaves."""

    def close(self) -> None:
        """Close in order."""


class ServerLife:
    """What the parts of a server share, from a start to the death after it."""

    def __init__(
        self,
        world: World,
        process: Process,
        opened: Opened,
        engine: CallEngine,
        clients: KnownClients,
    ) -> None:
        self.world = world
        self.name = process.name
        self.process = process
        self.opened = opened
        self.engine = engine
        self.clients = clients
        self.events = world.events(process)
        self.shell = Shell(process, engine)

    @property
    def tracing(self) -> bool:
        """Whether anybody reads what happens."""
        return self.world.loop.tracing

    def trace(self, text: str) -> None:
        """Add a line to the log of events."""
        self.world.trace(self.name, text)

    def reply(self, rpc: Rpc, response: Any) -> None:
        """Answer with OK."""
        self.world.network.reply(rpc, _OK, response)

    def refuse(self, rpc: Rpc, error: RiflError) -> None:
        """Answer a request that is no call with a refusal."""
        self.refused(rpc, None, None, error)
        status = Reply(None, error).status()
        code = STATUS_CODES[status.code]
        final = FinalStatus(code, status.details, status.initial_metadata, status.trailing_metadata)
        self.world.network.reply(rpc, final, None)

    def refused(
        self, rpc: Rpc, operation: Operation | None, call: Call | None, error: RiflError
    ) -> None:
        """Write down a refusal that leaves."""
        if self.tracing:
            subject = f"{rpc.kind} of {rpc.source.name}"
            if operation is not None:
                subject = f"call {operation.call}"
            copy = " (copy)" if rpc.copy else ""
            self.trace(f"{subject}{copy}: {error.reason}: {error}")
        if isinstance(error, LeaseExpired):
            if call is not None:
                self.clients.told_as_expired(self.opened.store, call.client_id)
            self.shell.reach(Point.EXPIRED)

    def deadline(self, rpc: Rpc) -> float | None:
        """Return until when the answer is waited for, by this process's clock."""
        if rpc.deadline_s is None:
            return None
        # gRPC sends how much is left, not when: no two clocks are compared.
        left = rpc.deadline_s - rpc.source.clock()
        return self.process.clock() + max(left, 0.0)

    def note(self, rpc: Rpc, operation: Operation, call: Call, answer: Answer) -> None:
        """Write down an answer that leaves."""
        world = self.world
        record, outcome = answer
        # What a group's leader may answer first is not final by itself; what came without
        # a number is (invariant 1). And a read leaves no record.
        final = not hasattr(self.opened, "machine") or (
            (bool(call.marks) or not call.configuration) and operation.behaviour != "read"
        )
        if final and not record.reason and outcome.value in ("executed", "replayed"):
            world.history.answer(
                world.loop.now,
                operation.call,
                outcome.value,
                STATUS_CODES[record.code].name,
                read_value(record.response),
            )
        if self.tracing:
            self.trace(
                f"call {operation.call} attempt {call.attempt}{' (copy)' if rpc.copy else ''}: "
                f"{outcome.value} {record.response or record.details!r}",
            )
