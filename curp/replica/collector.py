"""Tells witnesses what is synced, and runs what is stuck on them (invariant 12)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from curp.core.collection import Collectable, Collection
from curp.core.recovery import WitnessedCall
from curp.core.state import GroupState, Witnessed
from curp.core.witness_table import WitnessVerdict
from curp.replica.group_store import Arrival, GroupStore
from curp.replica.services import Services
from curp.replica.witnesses import Witnesses
from lease_server.log import get_logger
from rifl.core.client_table import Attempt
from rifl.core.errors import RiflError
from rifl.core.later import Later
from rifl.core.policy import MethodPolicy
from rifl.core.serving import HandlerResult, execute

__all__ = ["Collector"]

_log = get_logger("curp.replica")
_ROUND_S = 0.02
_MAX_TOLD = 1000
_RETRY_S = 0.2
_POLICY = MethodPolicy()


class Collector:
    """One thread of a leadership. Rounds follow what is synced; no timer collects.

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
        self._collection = Collection(())
        self._configuration = 0
        self._pending = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="curp-collector", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; what was not told stays on the witnesses."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join()

    def serve(self, configuration: int, witnesses: Sequence[str]) -> None:
        """Tell these from now on, which begin with nothing."""
        with self._condition:
            self._configuration = configuration
            self._collection = Collection(witnesses)

    def synced(self, collectable: list[Collectable]) -> None:
        """Take requests that are in the log; any thread."""
        with self._condition:
            for one in collectable:
                self._collection.synced(one)
            self._pending = True
            self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._pending or self._stopping)
                # Some more come soon: a round each would make every call look stuck.
                self._condition.wait_for(lambda: self._stopping, _ROUND_S)
                if self._stopping:
                    return
                self._pending = False
                collection, configuration = self._collection, self._configuration
            try:
                if not self._round(collection, configuration):
                    with self._condition:
                        self._condition.wait_for(lambda: self._stopping, _RETRY_S)
                        self._pending = True
            except RiflError as error:
                _log.warning("collection_failed", error=str(error))
            except Exception:  # noqa: BLE001 - logged with its traceback; the next round may work
                _log.exception("collection_failed")

    def _round(self, collection: Collection, configuration: int) -> bool:
        """Tell each witness once; False if one could not be told."""
        told = True
        forgot = False
        for address in collection.witnesses:
            with self._condition:
                taken = collection.take(address, _MAX_TOLD)
            if not taken:
                continue
            reply = self._witnesses.collect(address, configuration, taken)
            if reply is None:
                with self._condition:
                    collection.not_told(address, taken)
                told = False
                continue
            verdict, stuck = reply
            if verdict is not WitnessVerdict.ACCEPTED:
                _log.warning("witness_forgot", witness=address, verdict=verdict.name)
                forgot = True
            for witnessed in stuck:
                self._stuck(witnessed)
            with self._condition:
                if collection.waiting(address):
                    self._pending = True
        with self._condition:
            current = collection is self._collection and not self._stopping
        if forgot and current:
            self._relist(configuration)
        return told

    def _stuck(self, witnessed: WitnessedCall) -> None:
        """See to a request that stays on a witness: run it, or have it dropped."""
        call = witnessed.call
        with self._store.work:
            found = self._state.witnessed(call)
        _log.info("stuck_request", call=str(call.rpc_id), method=call.method, found=found.value)
        if found is Witnessed.RUNNING:
            return
        if found is Witnessed.FRESH:
            self._run_again(witnessed)
            return
        self.synced([Collectable(call.client_id, call.seq, call.key, witnessed.keys)])

    def _run_again(self, witnessed: WitnessedCall) -> None:
        call = witnessed.call
        facts = self._services.facts(call.method)
        if facts is None:
            return
        call.configuration = self._configuration
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
                decision.attempt is not None
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
