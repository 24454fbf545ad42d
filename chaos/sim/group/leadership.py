"""Driver of the product's ``LeaderLoops``, whose lease no thread waits for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from curp._core.state import GroupState
from curp._replica.group_store import GroupStore
from curp._replica.leading import LeaderLoops
from curp._replica.lease_storage import LogLeaseStorage
from curp.log._errors import LogError
from lease_server._errors import StorageUnavailable
from lease_server._lease_authority import LeaseAuthority
from rifl._stores.pending import Pending

__all__ = ["SimulatedLeading"]


class SimulatedLeading(LeaderLoops):
    """A leadership whose appends can be made now, for who would block until they are."""

    def lease_storage(self, store: GroupStore, state: GroupState) -> LogLeaseStorage:
        """Return where the lease server of this leadership keeps clients and sessions."""
        return _Storage(store, state, self._parts.picture.store_id, self.flush)

    def lease_authority(self, storage: LogLeaseStorage) -> LeaseAuthority:
        """Return the lease server of this leadership, by the process's clocks."""
        process = self._driver.process  # type: ignore[attr-defined]  # a simulated one
        return LeaseAuthority(
            storage,
            term_s=self._settings.tuning.client_term_s,
            clock=process.clock,
            wall_clock=process.wall_clock,
            id_block=16,
            randbits=process.dice().getrandbits,
        )

    def flush(self) -> None:
        """Append everything that waits, now, if the engine answers."""
        if self._appender is not None:
            self._appender.loop.flush()  # type: ignore[attr-defined]  # a course

    def crash(self) -> None:
        """Let the append in flight arrive at the engine, though no caller hears of it."""
        appending = self._store.appending
        if self._appender is not None and appending is not None and appending.under_way is not None:
            with contextlib.suppress(LogError):
                self._appender.append(appending.under_way)


class _Storage(LogLeaseStorage):
    """Where the product blocks until an entry is in the log, it is appended at once."""

    def __init__(
        self, store: GroupStore, state: GroupState, store_id: int, flush: Callable[[], None]
    ) -> None:
        super().__init__(store, state, store_id)
        self._flush = flush

    def _await(self, pending: Pending | None) -> None:
        if pending is None:
            return
        self._flush()
        if not pending.done or pending.error is not None:
            raise StorageUnavailable("it is not in the log yet")
