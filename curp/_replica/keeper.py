"""Keeps a leadership's lease running at the engine."""

from __future__ import annotations

import threading
from collections.abc import Callable

from curp._core.read_lease import ReadLease
from curp._replica.clock import boottime
from curp.log._engine import LogEngine
from curp.log._errors import LogError, may_pass

_RENEWALS_PER_TERM = 4


class LeaseKeeper:
    """A thread that renews from when the number was taken until ``stop``.

    Also through a recovery, however long that takes. ``refused`` is called, in the
    thread and once, when another number is current. While the engine cannot be asked
    it goes on trying, and the read lease runs out by itself (invariant 10).
    """

    def __init__(
        self,
        engine: LogEngine,
        configuration: int,
        read_lease: ReadLease,
        *,
        term_s: float,
        refused: Callable[[Exception], None],
    ) -> None:
        self._engine = engine
        self.configuration = configuration
        self.read_lease = read_lease
        # Called before a lease that was over runs again: it was renewed in time by nobody else.
        self.resuming: Callable[[], None] = lambda: None
        self._term_s = term_s
        self._refused = refused
        self._stopping = threading.Event()
        # Held while a renewal is under way: the number changes in between.
        self.renewing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="curp-lease", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Renew no more."""
        self._stopping.set()
        self.read_lease.end()
        if threading.current_thread() is not self._thread and self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._term_s / _RENEWALS_PER_TERM):
            try:
                with self.renewing:
                    sent_at = boottime()
                    self._engine.renew_leadership(self.configuration, term_s=self._term_s)
                if not self._stopping.is_set():
                    if self.read_lease.over(boottime()):
                        self.resuming()
                    self.read_lease.renewed(sent_at)
            except LogError as error:
                if may_pass(error):
                    continue
                self.read_lease.end()
                self._refused(error)
                return
