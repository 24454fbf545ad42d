"""A replica that others may take for dead knows it by its own clock (DESIGN §6)."""

from __future__ import annotations

import contextlib
from typing import Any

from rifl._stores.shared.heartbeat import Heartbeat
from rifl._stores.shared.requests import Beats


def test_a_replica_is_overdue_from_when_its_last_counted_beat_was_sent() -> None:
    """Not from when the answer came: others may have seen the beat before (DESIGN §6)."""
    now_s = 100.0
    backend: Any = None
    beating = Heartbeat("me", backend, 0.1, 0.5, lambda: None, lambda: now_s)
    beat = beating.beat()
    next(beat)
    now_s = 100.25
    assert not beating.overdue()
    with contextlib.suppress(StopIteration):
        beat.send(Beats({}, 7.0))
    now_s = 100.49
    assert not beating.overdue()
    now_s = 100.5
    assert beating.overdue()
    lost = beating.beat()
    next(lost)
    assert beating.overdue()
    assert beating.lapses() == 0
    with contextlib.suppress(StopIteration):
        lost.send(Beats({}, 8.0))
    assert not beating.overdue()
    assert beating.lapses() == 1, "what began before must not go on"
