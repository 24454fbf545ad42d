"""The last tries of a replica that stops, at a store that does not answer (DESIGN §6)."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

from rifl._stores.shared.backend import BackendError
from rifl._stores.shared.heartbeat import Heartbeat
from rifl._stores.shared.requests import Beats, CountBeat
from tests.helpers.waiting import DEADLINE_S, until


class _Silent:
    """A backend that answers beats, and nothing else."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.came = threading.Event()
        self.over = threading.Event()

    def ask(self, request: Any) -> Any:
        if isinstance(request, CountBeat):
            return Beats({}, 1.0)
        self.asked.append(request)
        self.came.set()
        assert self.over.wait(DEADLINE_S)
        raise BackendError("no reply")


def test_a_silent_store_is_asked_once_more_at_most() -> None:
    """Not once for each call that waits for that: the wait for each would be as long."""
    backend: Any = _Silent()
    beating = Heartbeat("me", backend, 0.01, 60.0, lambda: None)

    def rule(number: int) -> Generator[Any, Any, None]:
        yield number

    for number in range(20):
        beating.insist(rule(number))
    beating.start()
    assert backend.came.wait(DEADLINE_S)
    stopping = threading.Thread(target=beating.stop)
    stopping.start()
    # It has said so before it waits for its threads.
    until(lambda: beating._stopping, "it stops")
    backend.over.set()
    stopping.join(DEADLINE_S)
    assert not stopping.is_alive()
    assert backend.asked == [0]
