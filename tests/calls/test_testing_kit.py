"""The published test kit, used as its users do (rifl.testing)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

import rifl
from rifl import testing
from rifl.core import OutcomeUnknown
from rifl.testing import FakeClock, Fault


class Counter:
    """A servicer that counts its effects."""

    def __init__(self) -> None:
        self.effects: list[bytes] = []

    def bump(self, request: bytes, context: Any) -> bytes:
        self.effects.append(request)
        return b"%d" % len(self.effects)

    async def bump_async(self, request: bytes, context: Any) -> bytes:
        return self.bump(request, context)

    def add(self, server: Any) -> None:
        self._add(server, self.bump)

    def add_async(self, server: Any) -> None:
        self._add(server, self.bump_async)

    def _add(self, server: Any, behavior: Any) -> None:
        handler = grpc.unary_unary_rpc_method_handler(behavior)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("t.Counter", {"Bump": handler}),)
        )


BUMP = "/t.Counter/Bump"


@pytest.mark.parametrize("fault", [Fault.DROP_ANSWER, Fault.DUPLICATE_REQUEST, "store-down"])
def test_faults_on_the_way_leave_one_effect(fault: Fault | str) -> None:
    """A dropped answer, a doubled request, a store that is down: one effect (DESIGN §1)."""
    counter = Counter()
    with testing.serve(counter.add) as service:
        service.faults.arm(fault)
        assert service.channel.unary_unary(BUMP)(b"x", timeout=10) == b"1"
        assert service.faults.struck(fault) == 1
    assert counter.effects == [b"x"]


@pytest.mark.parametrize("fault", [Fault.DROP_ANSWER, Fault.DUPLICATE_REQUEST])
async def test_faults_on_the_way_leave_one_effect_aio(fault: Fault) -> None:
    """The same for coroutines (DESIGN §1)."""
    counter = Counter()
    async with testing.aio_serve(counter.add_async) as service:
        service.faults.arm(fault, method=BUMP)
        assert await service.channel.unary_unary(BUMP)(b"x", timeout=10) == b"1"
        assert service.faults.struck(fault) == 1
    assert counter.effects == [b"x"]


def test_a_kill_after_the_effect_is_a_lasting_unknown(tmp_path: Path) -> None:
    """Plain, and killed between effect and record: unknown, never run again (DESIGN §1)."""
    counter = Counter()
    with testing.serve(counter.add, url=f"sqlite:///{tmp_path}/s.db") as service:
        bump = service.channel.unary_unary(BUMP)
        assert bump(b"first", timeout=10) == b"1"
        service.faults.arm(Fault.KILL_AFTER_EFFECT)
        with pytest.raises(OutcomeUnknown) as caught:
            bump(b"x", timeout=15)
        assert caught.value.outcome is rifl.Outcome.UNKNOWN
        assert service.restarts == 1
    assert counter.effects == [b"first", b"x"]


def test_a_kill_after_the_record_is_replayed(tmp_path: Path) -> None:
    """Once the record is durable, a crash costs nothing (DESIGN §4, step 7)."""
    counter = Counter()
    with testing.serve(counter.add, url=f"sqlite:///{tmp_path}/s.db") as service:
        service.faults.arm(Fault.KILL_AFTER_RECORD)
        assert service.channel.unary_unary(BUMP)(b"x", timeout=15) == b"1"
        assert service.restarts == 1
    assert counter.effects == [b"x"]


def test_time_passes_when_it_is_told_to() -> None:
    """Leases end by the fake clock alone (DESIGN §5)."""
    clock = FakeClock()
    with testing.serve(Counter().add, clock=clock, term_s=60.0) as service:
        grant = service.dedup._engine.authority.grant()
        assert service.dedup._engine.authority.alive(grant.client_id)
        clock.advance(61.0)
        assert not service.dedup._engine.authority.alive(grant.client_id)
    with pytest.raises(ValueError, match="monotonic"):
        clock.advance(-1.0)
