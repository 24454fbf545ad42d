"""Driver of the product's ``GroupAttempt``: a client's way to a group, by events."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

from chaos.sim.loop import Process, Timer
from chaos.sim.network import Network, Rpc
from chaos.sim.service import METHODS, decode
from chaos.sim.witness import FIRST_WITNESS
from curp._core.group_call import AttemptStep
from curp.client._attempt import OVER, GroupAttempt
from curp.client._caller_keys import CallerKeys
from curp.client._group_knowledge import GroupKnowledge
from curp.client._messages import RECORD_TIMEOUT_S
from curp.v1 import curp_pb2 as pb

__all__ = ["AttemptShell", "GroupPath"]

_ASK_TIMEOUT_S = 1.0


class GroupPath:
    """What one client knows of its group; see ``curp.client._attempt.Path``."""

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
        self.process = process
        self.current = current
        self.knowledge = GroupKnowledge("fast", clock=process.clock)
        find = _elsewhere if misled else _account
        self.keys = CallerKeys(dict.fromkeys(METHODS, find))
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

    def unrecorded(self, header: tuple[str, bytes]) -> tuple[str, bytes]:
        """Return the header of a call that goes to the leader alone: it has no number."""
        return header


class AttemptShell:
    """Drives one attempt: at the leader, and on all witnesses at once."""

    def __init__(
        self,
        path: GroupPath,
        attempt: GroupAttempt,
        target: int,
        method: str,
        body: bytes,
        timeout_s: float | None,
        on_end: Callable[[Any, Any], None],
    ) -> None:
        self._path = path
        self._attempt = attempt
        self._on_end = on_end
        self._status: Any = None
        self._reply: Any = None
        self._over = False
        self._asked = False
        self._timer: Timer | None = None
        self._unheard = set(attempt.view.witnesses)
        limit_s = RECORD_TIMEOUT_S if timeout_s is None else min(timeout_s, RECORD_TIMEOUT_S)
        call = partial(path.network.call, path.process)
        self._rpcs: list[Rpc] = [
            call(
                FIRST_WITNESS + int(address.removeprefix("witness").partition(":")[0]),
                "record",
                "/curp.v1.Witness/Record",
                (),
                attempt.record,
                limit_s,
                partial(self._recorded, address),
            )
            for address in attempt.view.witnesses
        ]
        self._rpcs.append(
            call(target, "call", method, (attempt.entry,), body, timeout_s, self._answered)
        )

    def cancel(self) -> None:
        """Give the attempt up; no process is told."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        for rpc in self._rpcs:
            self._path.network.cancel(rpc)

    def _recorded(self, witness: str, status: Any, reply: Any) -> None:
        if self._over:
            return
        self._unheard.discard(witness)
        if status.code() is grpc.StatusCode.OK:
            verdict = pb.RecordReply.FromString(reply).verdict
            step = self._attempt.witness_answered(witness, verdict)
        else:
            step = self._attempt.witness_failed(witness)
        self._attempt.look()
        self._take(step)

    def _answered(self, status: Any, reply: Any) -> None:
        if self._over:
            return
        self._status, self._reply = status, reply
        step = self._attempt.leader_answered(status)
        if step is AttemptStep.WAIT:
            patience_s = self._attempt.patience_s()
            self._timer = self._path.process.after(patience_s, self._patience_over)
        self._take(step)

    def _patience_over(self) -> None:
        if not self._over:
            self._take(self._attempt.patience_over(self._unheard))

    def _take(self, step: AttemptStep) -> None:
        if step is AttemptStep.SYNC:
            self._ask()
        elif step in OVER:
            self._end(step)

    def _ask(self) -> None:
        if self._asked:
            return
        self._asked = True
        request, left_s = self._attempt.ask()

        def ended(status: Any, reply: Any) -> None:
            answered = status.code() is grpc.StatusCode.OK
            if not self._over:
                told = pb.SyncReply.FromString(reply) if answered else None
                self._take(self._attempt.sync_answered(told))

        self._rpcs.append(
            self._path.network.call(
                self._path.process,
                self._path.current(),
                "group",
                "/curp.v1.Group/Sync",
                (),
                request.SerializeToString(),
                left_s,
                ended,
            )
        )

    def _end(self, step: AttemptStep) -> None:
        self.cancel()
        self._attempt.end(step)
        status = self._attempt.error(step, self._status) or self._status
        final = step is AttemptStep.FINAL and status.code() is grpc.StatusCode.OK
        self._on_end(status, self._reply if final else None)


def _account(request: bytes) -> list[str]:
    return [decode(request).account]


def _elsewhere(request: bytes) -> list[str]:
    return ["elsewhere"]
