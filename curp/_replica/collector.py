"""The collector of a leadership: tells witnesses what is synced, and runs what is stuck on them.

DESIGN §7, invariant 12; CURP §3.5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from _rifl_ground.log import get_logger
from curp._core.garbage_collection import (
    Collectable,
    GarbageCollection,
    LookUp,
    Relist,
    RunAgain,
    TellWitness,
    collect,
)
from curp._core.state import GroupState
from curp._core.steps import ReportFailure
from curp._core.witnessed_call import WitnessedCall
from curp._replica.arrival import Arrival
from curp._replica.driver import Loop, Nested, Rule, report
from curp._replica.parts import Parts
from rifl.core._serving.answer import HandlerResult
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.later import Later
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.serving import execute
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import RiflError

_log = get_logger("curp.replica")
_POLICY = MethodPolicy()
_MOST_LOOPS = 16


class Collector:
    """Loops of a leadership, which carry ``collect`` out.

    As many as there are witnesses, so that one which hangs holds up no other.

    ``relist`` is given the number under which a witness turns out to have forgotten what it
    held; what it returns is carried out.
    """

    def __init__(
        self, parts: Parts, state: GroupState, relist: Callable[[int], Nested | None]
    ) -> None:
        self._store = parts.store
        self._services = parts.services
        self._witnesses = parts.witnesses
        self._driver = parts.driver
        self._state = state
        self._relist = relist
        self._work = parts.driver.work()
        self._collecting = GarbageCollection()
        self._witness_count = 0
        self._started = False
        self._loops: list[Loop] = []

    def start(self) -> None:
        """Begin."""
        with self._work:
            self._started = True
            self._begin_loops()

    def stop(self) -> list[Later]:
        """End; what was not told stays on the witnesses. Each is done when a loop has ended."""
        with self._work:
            self._collecting.over = True
            self._work.notify_all()
            return [loop.ended() for loop in self._loops]

    def serve(self, configuration: int, witnesses: Sequence[str]) -> None:
        """Tell these from now on, which begin with nothing."""
        with self._work:
            self._collecting.serve(configuration, witnesses)
            self._witness_count = len(witnesses)
            self._begin_loops()

    def synced(self, collectable: list[Collectable]) -> None:
        """Take requests that are in the log; any thread."""
        with self._work:
            if self._collecting.synced(collectable, self._store.now()):
                # Who waits until something else is due takes this then, too.
                self._work.notify()

    def _begin_loops(self) -> None:
        while (
            self._started
            and not self._collecting.over
            and len(self._loops) < min(self._witness_count, _MOST_LOOPS)
        ):
            rule = collect(self._collecting, self._store.now)
            loop = self._driver.loop(
                "curp-collector", rule, self._step, self._work, lambda error: None
            )
            self._loops.append(loop)
            loop.start()

    def _step(self, step: Any) -> Any:
        # Another one waits for what is due next, meanwhile.
        with self._work:
            self._work.notify()
        if isinstance(step, TellWitness):
            return self._witnesses.collect(step.witness, step.configuration, step.requests)
        if isinstance(step, Relist):
            return self._relist(step.configuration)
        if isinstance(step, LookUp):
            return self._look_up(step.witnessed)
        if isinstance(step, RunAgain):
            return Nested(
                self._running_again(step.witnessed, step.configuration),
                lambda wanted: self._run(wanted, step.witnessed),
            )
        if isinstance(step, ReportFailure):
            return report(step)
        raise RuntimeError(f"no such step: {step!r}")

    def _look_up(self, witnessed: WitnessedCall) -> Any:
        call = witnessed.call
        with self._store.work:
            found = self._state.witnessed(call)
        _log.info("stuck_request", call=str(call.rpc_id), method=call.method, found=found.value)
        return found

    def _running_again(self, witnessed: WitnessedCall, configuration: int) -> Rule:
        call = witnessed.call
        facts = self._services.facts(call.method)
        if facts is None:
            return
        call.configuration = configuration
        call.extra = Arrival(
            witnessed.request,
            witnessed.keys,
            call.configuration,
            1,
            (),
            deterministic=not facts.conflicts.synced,
        )
        try:
            decision = self._store.claim(call, _POLICY)
            if (
                decision.verdict is Verdict.NEW
                and decision.attempt is not None
                and decision.record is None
                and not (decision.attempt.ended or decision.attempt.call is not call)
            ):
                yield from execute(self._store, decision.attempt)
        except RiflError as error:
            # Its client is gone: once that is in the log, the request is dropped.
            _log.info("stuck_request_refused", call=str(call.rpc_id), reason=error.reason)

    def _run(self, wanted: Any, witnessed: WitnessedCall) -> Any:
        if isinstance(wanted, Attempt):
            return HandlerResult(self._services.run(wanted.call, witnessed.request))
        if isinstance(wanted, Later):
            return wanted
        raise RuntimeError(f"no such step: {wanted!r}")
