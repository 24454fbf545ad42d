"""The sync client: its state, the thread that keeps its lease, its timers."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from rifl._client.lease_keeper import LeaseKeeper
from rifl._client.settings import Settings
from rifl._client.state import ClientState
from rifl._client.sync_timers import Timers
from rifl._log import get_logger

_log = get_logger("rifl.client")


class SyncClient(ClientState):
    """One client id's owner on a sync channel; shared by all that was made of it.

    Stubs keep it alive, as gRPC's keep their channel. Any thread.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        settings: Settings,
        connect: Callable[[str], grpc.Channel] | None = None,
    ) -> None:
        super().__init__(settings, getattr(channel, "router", None), connect)
        self.channel = channel
        self.timers = Timers()
        self._keeper = LeaseKeeper(channel)

    def look_at_lease(self) -> None:
        """Have the lease looked after now."""
        self._keeper.look(self)

    def stop(self) -> None:
        """End: waiting calls are cancelled, an idle client id is given back."""
        if not self.closed and not self.forked:
            self._keeper.stop(self.close_waiters())
            if self.path is not None:
                self.path.close()

    def leave(self, work: Callable[[], None]) -> None:
        """Have ``work`` done soon, by a thread of the client's. Finalizers call this.

        It takes no lock: a collection may come while this thread holds any. ``work``
        must not block, nor raise.
        """
        # The timers' thread may run callbacks of the application's; heartbeats may not
        # wait for those.
        self._keeper.leave(lambda: self._soon(work))

    def _soon(self, work: Callable[[], None]) -> None:
        self.timers.call_at(self.now(), work)

    @staticmethod
    def call_back(callback: Callable[[], None]) -> None:
        """Run an application's callback; what it raises is logged, as gRPC does."""
        try:
            callback()
        except Exception:  # noqa: BLE001 - the application's own
            _log.exception("callback_raised")
