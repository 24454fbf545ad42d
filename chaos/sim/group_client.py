"""A client's group path: the product's rules of an attempt, with events for futures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from chaos.sim.loop import Process, Timer
from chaos.sim.machine import Machine
from chaos.sim.network import Network, Rpc
from chaos.sim.witness import FIRST_WITNESS
from curp._core.conflict_keys import keys_of_values
from curp._core.group_call import GroupCall, LeaderAnswer, Step, SyncVerdict
from curp._core.witness_table import WitnessVerdict
from curp.client._errors import lost_answer, unknown_refusal
from curp.client._group import GroupKnowledge, GroupView
from curp.client._requests import (
    RECORD_TIMEOUT_S,
    read_leader_answer,
    sync_request,
    synced_number,
    with_number,
)
from curp.v1 import curp_pb2 as pb
from rifl._wire.header import HEADER_KEY
from rifl.core._shared.outcome import Outcome

__all__ = ["GroupAttempt", "GroupPath"]

_ASK_TIMEOUT_S = 1.0
_MACHINE = Machine()
_End = Callable[[Any, Any], None]


class GroupPath:
    """What one client knows of its group."""

    def __init__(
        self,
        network: Network,
        process: Process,
        current: Callable[[], int],
        *,
        misled: bool = False,
    ) -> None:
        """``misled``: its callable finds other conflict keys than the server's."""
        self.network = network
        self.misled = misled
        self.process = process
        self.current = current
        self.knowledge = GroupKnowledge()
        self.refresh()

    def refresh(self) -> None:
        """Ask for the configuration, unless that was just done."""
        if not self.knowledge.may_ask(self.process.clock()):
            return

        def ended(status: Any, reply: Any) -> None:
            answered = status.code() is grpc.StatusCode.OK
            self.knowledge.asked(pb.GroupConfiguration.FromString(reply) if answered else None)

        self.network.call(
            self.process,
            self.current(),
            "group",
            "/curp.v1.Group/Configuration",
            (),
            pb.ConfigurationRequest().SerializeToString(),
            _ASK_TIMEOUT_S,
            ended,
        )

    def view_for(self, method: str) -> GroupView | None:
        """Return the view to record a call under, None to send it to the leader alone."""
        view = self.knowledge.view_for(method)
        if view is None and self.knowledge.view is None:
            self.refresh()
        return view

    def unrecorded(self, header: tuple[str, bytes]) -> tuple[str, bytes]:
        """Return the header of a call that goes to the leader alone: it has no number."""
        return header


class GroupAttempt:
    """One attempt: at the leader, and on all witnesses at once."""

    def __init__(
        self,
        path: GroupPath,
        view: GroupView,
        target: int,
        method: str,
        header: bytes,
        body: bytes,
        timeout_s: float | None,
        on_end: _End,
    ) -> None:
        self._path = path
        self._view = view
        self._header = header
        self._on_end = on_end
        self._rule = GroupCall(len(view.witnesses))
        process = path.process
        self._began = process.clock()
        self._timeout_s = timeout_s
        self._status: Any = None
        self._reply: Any = None
        self._over = False
        self._asked = False
        self._answer: LeaderAnswer | None = None
        self._timer: Timer | None = None
        keys = keys_of_values(["elsewhere"]) if path.misled else _MACHINE.keys(method, body)
        numbered = with_number(header, view.number_field, keys)
        call = pb.WitnessedCall(
            header=numbered,
            method=method,
            request=body,
            conflict_keys=sorted(keys),
        )
        record = pb.RecordRequest(
            configuration=view.number, call=call, log=view.log
        ).SerializeToString()
        limit = RECORD_TIMEOUT_S if timeout_s is None else min(timeout_s, RECORD_TIMEOUT_S)
        network = path.network
        self._rpcs: list[Rpc] = [
            network.call(
                process,
                FIRST_WITNESS + int(address.removeprefix("witness").partition(":")[0]),
                "record",
                "/curp.v1.Witness/Record",
                (),
                record,
                limit,
                self._recorded,
            )
            for address in view.witnesses
        ]
        self._rpcs.append(
            network.call(
                process,
                target,
                "call",
                method,
                ((HEADER_KEY, numbered),),
                body,
                timeout_s,
                self._answered,
            )
        )

    def cancel(self) -> None:
        """Give the attempt up; nobody is told."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        for rpc in self._rpcs:
            self._path.network.cancel(rpc)

    def _recorded(self, status: Any, reply: Any) -> None:
        verdict = None
        if status.code() is grpc.StatusCode.OK:
            verdict = WitnessVerdict(pb.RecordReply.FromString(reply).verdict)
        if not self._over:
            self._take(self._rule.witness_answered(verdict))

    def _answered(self, status: Any, reply: Any) -> None:
        if self._over:
            return
        self._status, self._reply = status, reply
        rule = self._rule
        if status.code() is grpc.StatusCode.OK:
            number = synced_number(status.trailing_metadata())
            if number is not None and number != self._view.number:
                rule.refresh = True
            answer = LeaderAnswer(Outcome.EXECUTED, number is not None)
        else:
            answer = read_leader_answer(status, self._header)
        if answer.outcome is None or answer.outcome is Outcome.NOT_EXECUTED:
            rule.refresh = True
        self._answer = answer
        step = rule.leader_answered(answer)
        if step is Step.WAIT:
            patience_s = self._path.knowledge.patience_s(self._path.process.clock() - self._began)
            self._timer = self._path.process.after(patience_s, self._patience_over)
        self._take(step)

    def _patience_over(self) -> None:
        if not self._over:
            self._take(self._rule.patience_over())

    def _take(self, step: Step) -> None:
        if step is Step.SYNC:
            self._ask()
        elif step is Step.FINAL:
            self._end(step, self._status)
        elif step is Step.UNKNOWN:
            self._end(step, unknown_refusal(self._status))
        elif step is Step.AGAIN:
            self._end(step, lost_answer("the leader's answer is not known to be in the log"))

    def _ask(self) -> None:
        if self._asked:
            return
        self._asked = True
        process = self._path.process
        left_s = None
        if self._timeout_s is not None:
            left_s = max(self._began + self._timeout_s - process.clock(), 0.0)

        def ended(status: Any, reply: Any) -> None:
            verdict = None
            if status.code() is grpc.StatusCode.OK:
                verdict = SyncVerdict(pb.SyncReply.FromString(reply).verdict)
            if not self._over:
                self._take(self._rule.sync_answered(verdict))

        self._rpcs.append(
            self._path.network.call(
                process,
                self._path.current(),
                "group",
                "/curp.v1.Group/Sync",
                (),
                sync_request(self._view.number, self._header).SerializeToString(),
                left_s,
                ended,
            )
        )

    def _end(self, step: Step, status: Any) -> None:
        self.cancel()
        if self._rule.refresh:
            self._path.refresh()
        answer = self._answer
        if step is Step.FINAL and answer is not None and answer.outcome is not None:
            self._path.knowledge.count(fast=self._rule.fast, asked=self._asked)
        final = step is Step.FINAL and status.code() is grpc.StatusCode.OK
        self._on_end(status, self._reply if final else None)
