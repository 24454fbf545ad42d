"""Rules of runs without a claim, broken on purpose (DESIGN §4, step 6)."""

from __future__ import annotations

import unittest.mock
from contextlib import AbstractContextManager
from typing import Any

from chaos.sim import shared_data
from rifl._stores.shared.requests import Finished
from rifl._stores.shared.store import SharedStore

__all__ = [
    "ends_without_asking",
    "finish_overwrites",
    "resolved_means_not_executed",
    "unclaimed_acknowledged",
    "unclaimed_overwrites",
]


def unclaimed_acknowledged() -> AbstractContextManager[Any]:
    # As if it were judged before another record has come and gone.
    return unittest.mock.patch.object(
        shared_data.SharedData, "_was_acknowledged", return_value=False
    )


def unclaimed_overwrites() -> AbstractContextManager[Any]:
    original = shared_data.SharedData._record_unclaimed

    def record(self: Any, request: Any) -> Finished:
        client = self.clients.get(request.call.client_id)
        if client is not None:
            client.done.pop(request.call.identity, None)
            client.running.pop(request.call.identity, None)
        return original(self, request)

    return unittest.mock.patch.object(shared_data.SharedData, "_record_unclaimed", record)


def finish_overwrites() -> AbstractContextManager[Any]:
    original = shared_data.SharedData._finish_unclaimed

    def finish(self: Any, request: Any) -> Finished:
        client = self.clients.get(request.call.client_id)
        if client is not None:
            client.done.pop(request.call.identity, None)
        return original(self, request)

    return unittest.mock.patch.object(shared_data.SharedData, "_finish_unclaimed", finish)


def resolved_means_not_executed() -> AbstractContextManager[Any]:
    # No record says that such a call has run, so nothing did.
    return unittest.mock.patch.object(
        SharedStore, "may_have_run", lambda self, attempt: attempt.ran
    )


def ends_without_asking() -> AbstractContextManager[Any]:
    original = SharedStore._not_committed

    def not_committed(self: Any, attempt: Any) -> Any:
        # By the handler's word: its transaction was rolled back.
        attempt.call.asked = True
        return original(self, attempt) if attempt.refused else None

    return unittest.mock.patch.object(SharedStore, "_not_committed", not_committed)
