"""Threads that strike a run's faults, each by its own clock: none waits for another's end."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from chaos.run.deployment import Deployment
from chaos.run.faults import KILLING, strike
from chaos.run.strikes import Strike

__all__ = ["FaultThreads", "Struck"]


@dataclass(frozen=True, kw_only=True)
class Struck:
    """A fault as it was: ``began`` and ``ended`` by the machine's monotonic clock."""

    fault: Strike
    target: str
    began: float
    ended: float


class FaultThreads:
    """Strikes from ``start`` on, from threads of its own."""

    def __init__(self, deployment: Deployment, faults: Iterable[Strike]) -> None:
        self._deployment = deployment
        self._given_up = threading.Event()
        self._lock = threading.Lock()
        self._began = 0.0
        self._processes = {name: threading.Lock() for name in deployment.members}
        self._threads = [
            threading.Thread(target=self._run, args=(fault,), name=str(fault)) for fault in faults
        ]
        # Those that were mended again, in that order.
        self.struck: list[Struck] = []
        # Those that could not be struck, or mended, and why.
        self.problems: list[str] = []

    def start(self) -> None:
        """Begin; the faults' times count from now."""
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()

    @property
    def over(self) -> bool:
        """Whether every fault was struck and mended."""
        return not any(thread.is_alive() for thread in self._threads)

    def give_up(self) -> None:
        """Mend what stands, and strike nothing any more; returns when that is done."""
        self._given_up.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _run(self, fault: Strike) -> None:
        if self._given_up.wait(max(0.0, self._began + fault.at - time.monotonic())):
            return
        try:
            target = self._deployment.find(fault.target)
            # Who is being started again is not killed before it is there.
            with self._processes[target] if fault.kind in KILLING else contextlib.nullcontext():
                began = time.monotonic()
                mend = strike(self._deployment, fault, target)
                self._given_up.wait(fault.lasts)
                mend()
        except Exception as error:  # noqa: BLE001 - told with the result
            with self._lock:
                self.problems.append(f"{fault} failed: {type(error).__name__}: {error}")
            return
        struck = Struck(fault=fault, target=target, began=began, ended=time.monotonic())
        with self._lock:
            self.struck.append(struck)
