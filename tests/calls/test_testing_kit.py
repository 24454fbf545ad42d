"""The published test kit, used as its users do (rifl.testing)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

import rifl
import rifl.aio
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


def _banked(path: Path) -> Any:
    """An atomic method: its effect and its answer in one commit, in one of two ways."""

    def bump(request: bytes, context: Any) -> bytes:
        with rifl.transaction(context) as connection:
            connection.execute("INSERT INTO effect VALUES (1)")
            rifl.record(context, b"done", connection)
        return b"done"

    async def bump_async(request: bytes, context: Any) -> bytes:
        async with rifl.aio.transaction(context) as connection:
            connection.execute("INSERT INTO effect VALUES (1)")
            await rifl.aio.record(context, b"done", connection)
        return b"done"

    def count() -> int:
        with closing(sqlite3.connect(path)) as database:
            (found,) = database.execute("SELECT count(*) FROM effect").fetchone()
        return int(found)

    def adder(behavior: Any) -> Any:
        handler = grpc.unary_unary_rpc_method_handler(behavior)
        served = grpc.method_handlers_generic_handler("t.Counter", {"Bump": handler})
        return lambda server: server.add_generic_rpc_handlers((served,))

    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE effect (one INTEGER)")
    return adder(bump), adder(bump_async), count


async def test_a_crash_after_an_atomic_commit_leaves_one_effect(tmp_path: Path) -> None:
    """The retry gets the answer that was committed, from the next process (DESIGN §6)."""
    add, add_async, count = _banked(tmp_path / "a.db")
    options: Any = {"url": f"sqlite:///{tmp_path}/a.db", "methods": {BUMP: "atomic"}}
    with testing.serve(add, **options) as service:
        service.faults.arm(Fault.KILL_AFTER_COMMIT, method=BUMP)
        assert service.channel.unary_unary(BUMP)(b"x", timeout=60) == b"done"
        assert (service.faults.struck(Fault.KILL_AFTER_COMMIT), service.restarts) == (1, 1)
    assert count() == 1
    async with testing.aio_serve(add_async, **options) as aio_service:
        aio_service.faults.arm(Fault.KILL_AFTER_COMMIT)
        assert await aio_service.channel.unary_unary(BUMP)(b"x", timeout=60) == b"done"
        assert aio_service.restarts == 1
    assert count() == 2


def test_a_fault_that_can_never_strike_is_refused(tmp_path: Path) -> None:
    """It is told as it is armed, with the one that does; not as a test that passes (§6)."""
    add, _, _ = _banked(tmp_path / "a.db")
    url = f"sqlite:///{tmp_path}/a.db"
    with testing.serve(add, url=url, methods={BUMP: "atomic", "/t.Other/*": "plain"}) as service:
        with pytest.raises(ValueError, match="KILL_AFTER_COMMIT"):
            service.faults.arm(Fault.KILL_AFTER_EFFECT, method=BUMP)
        # Of others it can.
        service.faults.arm(Fault.KILL_AFTER_EFFECT)
        service.faults.arm(Fault.KILL_AFTER_COMMIT)
        with pytest.raises(ValueError, match="never"):
            service.faults.arm("kill-after-commit", method="/t.Other/M")
    for methods, method in (({BUMP: None}, BUMP), ({"*": None}, None)):
        with testing.serve(Counter().add, methods=methods) as service:
            for fault in (Fault.STORE_DOWN, *(each for each in Fault if "KILL" in each.name)):
                with pytest.raises(ValueError, match=f"{fault.name} .* deduplicated$"):
                    service.faults.arm(fault, method=method)
            service.faults.arm(Fault.DROP_ANSWER, method=method)
    with testing.serve(add, url=url, methods={"*": "atomic"}) as service:
        with pytest.raises(ValueError, match="KILL_AFTER_COMMIT"):
            service.faults.arm(Fault.KILL_AFTER_EFFECT)
        service.faults.arm(Fault.DROP_ANSWER)
    with (
        testing.serve(Counter().add) as service,
        pytest.raises(ValueError, match="KILL_AFTER_EFFECT"),
    ):
        service.faults.arm(Fault.KILL_AFTER_COMMIT)
