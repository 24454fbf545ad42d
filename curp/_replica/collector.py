"""Tells witnesses what is synced, and runs what is stuck on them (invariant 12)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from curp._core.collecting import Collecting, Relist, Tell
from curp._core.collection import Collectable
from curp._core.recovery import WitnessedCall
from curp._core.rest import Rest
from curp._core.state import GroupState
from curp._core.witness_table import WitnessVerdict
from curp._replica.arrival import Arrival
from curp._replica.group_store import GroupStore
from curp._replica.services import Services
from curp._replica.witnesses import Witnesses
from rifl._log import get_logger
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.later import Later
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.serving import HandlerResult, execute
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import RiflError

_log = get_logger("curp.replica")
_POLICY = MethodPolicy()
_MOST_THREADS = 16


class Collector:
    """Threads of a leadership, which carry out what ``Collecting`` decides.

    As many as there are witnesses, so that one which hangs holds up no other.

    ``relist`` is called with the number under which a witness turns out to have
    forgotten what it held.
    """

    def __init__(
        self,
        store: GroupStore,
        services: Services,
        witnesses: Witnesses,
        state: GroupState,
        relist: Callable[[int], None],
    ) -> None:
        self._store = store
        self._services = services
        self._witnesses = witnesses
        self._state = state
        self._relist = relist
        self._condition = threading.Condition()
        self._collecting = Collecting()
        self._stopping = False
        self._witness_count = 0
        self._started = False
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin."""
        with self._condition:
            self._started = True
            self._begin_threads()

    def stop(self) -> None:
        """End; what was not told stays on the witnesses."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    def serve(self, configuration: int, witnesses: Sequence[str]) -> None:
        """Tell these from now on, which begin with nothing."""
        with self._condition:
            self._collecting.serve(configuration, witnesses)
            self._witness_count = len(witnesses)
            self._begin_threads()

    def synced(self, collectable: list[Collectable]) -> None:
        """Take requests that are in the log; any thread."""
        with self._condition:
            if self._collecting.synced(collectable, self._store.now()):
                # Who waits until something else is due takes this then, too.
                self._condition.notify()

    def _begin_threads(self) -> None:
        while (
            self._started
            and not self._stopping
            and len(self._threads) < min(self._witness_count, _MOST_THREADS)
        ):
            thread = threading.Thread(target=self._run, name="curp-collector", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self) -> None:
        while (step := self._next()) is not None:
            try:
                if isinstance(step, Tell):
                    self._tell(step)
                else:
                    self._relist(step.configuration)
            except RiflError as error:
                _log.warning("collection_failed", error=str(error))
            except Exception:  # noqa: BLE001 - logged with its traceback; the next one may work
                _log.exception("collection_failed")

    def _next(self) -> Tell | Relist | None:
        """Wait until there is something to do; None when stopped."""
        with self._condition:
            while not self._stopping:
                step = self._collecting.next(self._store.now())
                if not isinstance(step, Rest):
                    # Another one waits for what is due next, meanwhile.
                    self._condition.notify()
                    return step
                self._condition.wait(step.seconds)
        return None

    def _tell(self, tell: Tell) -> None:
        verdict: WitnessVerdict | None = None
        stuck: list[WitnessedCall] = []
        try:
            reply = self._witnesses.collect(tell.witness, tell.configuration, tell.requests)
            if reply is not None:
                verdict, stuck = reply
        finally:
            with self._condition:
                self._collecting.told(tell, verdict, self._store.now())
        if verdict is not None and verdict is not WitnessVerdict.ACCEPTED:
            _log.warning("witness_forgot", witness=tell.witness, verdict=verdict.name)
        for witnessed in stuck:
            self._stuck(witnessed, tell.configuration)

    def _stuck(self, witnessed: WitnessedCall, configuration: int) -> None:
        """See to a request that stays on a witness: run it, or have it dropped."""
        call = witnessed.call
        with self._store.work:
            found = self._state.witnessed(call)
        _log.info("stuck_request", call=str(call.rpc_id), method=call.method, found=found.value)
        with self._condition:
            run = self._collecting.stuck(witnessed, found, self._store.now())
            self._condition.notify()
        if run:
            self._run_again(witnessed, configuration)

    def _run_again(self, witnessed: WitnessedCall, configuration: int) -> None:
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
                self._drive(execute(self._store, decision.attempt), witnessed)
        except RiflError as error:
            # Its client is gone: once that is in the log, the request is dropped.
            _log.info("stuck_request_refused", call=str(call.rpc_id), reason=error.reason)

    def _drive(self, steps: Any, witnessed: WitnessedCall) -> None:
        value: Any = None
        try:
            while True:
                step = steps.send(value)
                if isinstance(step, Attempt):
                    value = HandlerResult(self._services.run(step.call, witnessed.request))
                elif isinstance(step, Later):
                    value = step.wait()
                else:
                    return
        except StopIteration:
            return
