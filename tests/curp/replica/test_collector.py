"""Telling witnesses what is synced, in the threads of a leadership (DESIGN §7, invariant 12)."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any, cast

from curp._core.garbage_collection import Collectable
from curp._core.witness_table import WitnessVerdict
from curp._replica.collector import Collector
from curp._replica.driver import Driver
from tests.helpers.waiting import until


class _Witnesses:
    """Two of which one hangs until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.told: list[str] = []

    def collect(self, address: str, configuration: int, synced: Any) -> Any:
        if address == "hung":
            self.let_go.wait(60.0)
        self.told.append(address)
        return WitnessVerdict.ACCEPTED, []


def test_a_hung_witness_keeps_no_other_from_being_told() -> None:
    """Or the others would be full of what is synced while one is waited for (invariant 12)."""
    witnesses = _Witnesses()
    parts: Any = SimpleNamespace(
        store=SimpleNamespace(now=time.monotonic),
        services=None,
        witnesses=witnesses,
        driver=Driver(),
    )
    collector = Collector(parts, cast("Any", None), lambda number: None)
    collector.serve(1, ["hung", "good"])
    collector.start()
    try:
        for seq in range(1, 4):
            collector.synced([Collectable(7, seq, None, frozenset({seq}))])
            until(lambda seq=seq: witnesses.told.count("good") >= seq, "it is told", 20.0)  # type: ignore[misc]
        assert "hung" not in witnesses.told
    finally:
        witnesses.let_go.set()
        for ended in collector.stop():
            ended.wait()
    assert not [each for each in threading.enumerate() if each.name == "curp-collector"]
