"""Driver of the product's ``WitnessHandlers``: a witness process, over the network."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import Any

import grpc

from chaos.sim.faults import Fault, Point
from chaos.sim.loop import Process
from chaos.sim.network import Rpc
from chaos.sim.world import World
from curp._core.garbage_collection import Collectable
from curp._core.witness_asking import AskFreeze, AskStart, Serves, WitnessUnanswered
from curp._core.witness_table import WitnessMode, WitnessTable, WitnessVerdict, group_of_log
from curp._replica.witnesses import read_status
from curp._wire.witnessed_calls import collected_to_message
from curp.v1 import curp_pb2 as pb
from curp.witness._handlers import WitnessHandlers
from rifl._client.answers import FinalStatus
from rifl._grpc.codes import STATUS_CODES
from rifl._server.reply import Reply
from rifl.core._shared.errors import RiflError

__all__ = ["FIRST_WITNESS", "GROUP", "Witness"]

GROUP = "group"

# Witnesses are hosts of the network from this index on.
FIRST_WITNESS = 100
_OK = FinalStatus(grpc.StatusCode.OK)
_TIMEOUT_S = 0.6
_NONE = 0


class _Journal:
    """The highest number that a witness knew, on its disk."""

    def __init__(self) -> None:
        self.group = ""
        self.highest = _NONE

    def write(self, group: str, number: int) -> None:
        """Remember a number, durably."""
        self.group, self.highest = group, number


class Witness:
    """One witness, through all its lives."""

    def __init__(self, world: World, index: int, random: Random) -> None:
        self.world = world
        self.name = f"witness{index}"
        self.target = FIRST_WITNESS + index
        self._random = random
        self._journal = _Journal()
        # The start that it took last, for one like it to come late.
        self._started = b""
        self.rpcs: dict[Rpc, None] = {}
        self.process = Process(world.loop, self.name)
        self._begin()

    def _begin(self) -> None:
        if self.world.over:
            return
        self.process = Process(self.world.loop, self.name)
        self.rpcs = {}
        journal = self._journal
        self.table = WitnessTable(highest=journal.highest, group=journal.group)
        self._handlers = WitnessHandlers(self.table, journal)  # type: ignore[arg-type]  # its one method
        self.world.network.hosts[self.target] = self

    def restart(self, seconds: float, *, keeps_journal: bool) -> None:
        """Die, and begin anew with nothing but the number, or without that, too."""
        if not self.process.alive:
            return
        point = Point.HOLDING if len(self.table) else Point.IDLE
        self.world.coverage.hit(Fault.WITNESS_CRASH, point)
        self.world.trace(self.name, f"dies, holding {len(self.table)}")
        self.process.kill()
        self.world.network.hosts.pop(self.target, None)
        self.world.network.host_died(self)
        if not keeps_journal:
            self._journal = _Journal()
        self.world.loop.after(seconds, self._begin)
        if not keeps_journal and self._started:
            late = pb.StartRequest.FromString(self._started)
            late.configuration -= 1
            self.world.loop.after(seconds, self._start_late, late)

    def _start_late(self, request: pb.StartRequest) -> None:
        """Take a start of an earlier leader's, which was in flight all the time."""
        if request.configuration and self.process.alive:
            self.world.trace(self.name, "takes a late start")
            self._handlers.start(request.SerializeToString())

    def is_claimed(self) -> None:
        """Take a start and a freeze of another group of the same name, of another log."""
        group, number = group_of_log(GROUP, 0xBAD), self.table.configuration
        if not self.process.alive or self.table.mode is WitnessMode.UNLISTED:
            return
        self.world.trace(self.name, "is claimed by another group of the same name")
        list(
            self._handlers.freeze(
                pb.FreezeRequest(group=group, configuration=number).SerializeToString()
            )
        )
        secrets = pb.SecretsPut(secrets=[pb.SecretsPut.Secret(key_id=1, secret=bytes(32))])
        start = pb.StartRequest(group=group, configuration=number + 3, secrets=secrets)
        self._handlers.start(start.SerializeToString())

    def remembers(self, number: int) -> bool:
        """Whether it has everything that it accepted under a number."""
        table = self.table
        listed = table.mode is not WitnessMode.UNLISTED and table.configuration == number
        return self.process.alive and listed

    def receive(self, rpc: Rpc) -> None:
        """Take a request."""
        method = rpc.method.rpartition("/")[2]
        try:
            if method == "Record":
                reply: Any = self._handlers.record(rpc.request, bytes)
            elif method == "Freeze":
                reply = list(self._handlers.freeze(rpc.request))
            elif method == "Start":
                reply = self._handlers.start(rpc.request)
                if not pb.StartRequest.FromString(rpc.request).refresh:
                    self._started = rpc.request
            elif method == "Status":
                reply = self._handlers.status()
            else:
                reply = self._handlers.collect(rpc.request)
        except RiflError as error:
            status = Reply(None, error).status()
            self.world.network.reply(
                rpc,
                FinalStatus(
                    STATUS_CODES[status.code], status.details, (), status.trailing_metadata
                ),
                None,
            )
            return
        if self.world.loop.tracing:
            self.world.trace(self.name, f"{method} of {rpc.source.name}: holds {len(self.table)}")
        self.world.network.reply(rpc, _OK, reply)

    # -- what a replica asks -----------------------------------------------------------------

    def drive(
        self,
        source: Process,
        rule: Generator[Any, Any, Any],
        group: str,
        done: Callable[[Any], None],
        started: pb.StartRequest | None = None,
    ) -> None:
        """Carry out a rule of asking it; ``done`` is given what came of it, None if nothing.

        ``started``: what a start has beside the number.
        """

        def go_on(reply: Any, error: Exception | None = None) -> None:
            try:
                step = rule.send(reply) if error is None else rule.throw(error)
            except StopIteration as stop:
                done(stop.value)
            except WitnessUnanswered:
                done(None)
            else:
                self._ask_step(source, step, group, started, ended_of(step))

        def ended_of(step: Any) -> Callable[[Any, Any], None]:
            def ended(status: Any, reply: Any) -> None:
                if status.code() is grpc.StatusCode.OK:
                    go_on(_reply_to(step, reply))
                else:
                    go_on(None, WitnessUnanswered())

            return ended

        go_on(None)

    def _ask_step(
        self,
        source: Process,
        step: Any,
        group: str,
        started: pb.StartRequest | None,
        ended: Callable[[Any, Any], None],
    ) -> None:
        if isinstance(step, AskFreeze):
            frozen = pb.FreezeRequest(group=group, configuration=step.configuration)
            self._ask(source, "Freeze", frozen, ended)
        elif isinstance(step, AskStart):
            request = pb.StartRequest()
            request.CopyFrom(started or pb.StartRequest())
            request.group, request.configuration = group, step.configuration
            request.refresh = step.refresh
            self._ask(source, "Start", request, ended)
        else:
            self._ask(source, "Status", pb.WitnessStatusRequest(), ended)

    def status(self, source: Process, done: Callable[[Serves | None], None]) -> None:
        """Ask how it is; ``done`` is told what it says, None if it does not answer."""

        def ended(status: Any, reply: Any) -> None:
            answered = status.code() is grpc.StatusCode.OK
            done(read_status(pb.WitnessStatusReply.FromString(reply)) if answered else None)

        self._ask(source, "Status", pb.WitnessStatusRequest(), ended)

    def collect(
        self,
        source: Process,
        group: str,
        number: int,
        synced: Sequence[Collectable],
        done: Callable[[Any], None],
    ) -> None:
        """Tell it what is synced; ``done`` is given its verdict and what is stuck."""

        def ended(status: Any, reply: Any) -> None:
            if status.code() is not grpc.StatusCode.OK:
                done(None)
                return
            message = pb.CollectReply.FromString(reply)
            done((WitnessVerdict(message.verdict), list(message.stuck)))

        told = [collected_to_message(each) for each in synced]
        request = pb.CollectRequest(group=group, configuration=number, synced=told)
        self._ask(source, "Collect", request, ended)

    def _ask(
        self, source: Process, method: str, request: Any, ended: Callable[[Any, Any], None]
    ) -> None:
        self.world.network.call(
            source,
            self.target,
            "witness",
            f"/curp.v1.Witness/{method}",
            (),
            request.SerializeToString(),
            _TIMEOUT_S,
            ended,
        )


def _reply_to(step: Any, reply: Any) -> Any:
    """Read a reply as ``WitnessClient`` does."""
    if isinstance(step, AskFreeze):
        replies = [pb.FreezeReply.FromString(chunk) for chunk in reply]
        held = [call for each in replies for call in each.calls]
        return WitnessVerdict(replies[-1].verdict if replies else 0), held
    if isinstance(step, AskStart):
        return WitnessVerdict(pb.StartReply.FromString(reply).verdict)
    return read_status(pb.WitnessStatusReply.FromString(reply))
