"""Sessions that were opened and never used go after a term, over every store (DESIGN §5)."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rifl
from lease_server import SessionClosed, SessionPolicy, SessionRow, SessionState
from lease_server._session_table import SessionTable
from rifl._server.sweeper import ClientSweeper, sweep
from rifl.core._serving.later import Later
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.call import Call
from rifl.core._shared.errors import LeaseExpired
from tests.helpers.waiting import until

_NUMBERS = itertools.count()
_TERM_S = 0.4
_NOW_S = [0.0]


@pytest.fixture(params=["memory", "sqlite", "redis", "postgresql", "mariadb"])
def dedup(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    name = f"unused{next(_NUMBERS)}"
    if request.param == "redis":
        url = request.getfixturevalue("shared_redis").url(namespace=name, beat_s=0.05)
    elif request.param == "postgresql":
        url = request.getfixturevalue("shared_postgres").url(schema=name, beat_s=0.1)
    elif request.param == "mariadb":
        url = request.getfixturevalue("shared_mariadb").url(prefix=f"{name}_", beat_s=0.1)
    else:
        url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 's.db'}"
    with opened(url) as made:
        yield made


@pytest.fixture(autouse=True)
def _swept_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread sweeps: what the machine does between two steps of a test ends no session."""
    monkeypatch.setattr(ClientSweeper, "start", lambda _: None)
    monkeypatch.setattr(ClientSweeper, "stop", lambda _: None)


def opened(url: str) -> Any:
    """Serve a store; that of one process has a clock which moves with each sweep."""
    return rifl.Deduplicator(url, term_s=_TERM_S, clock=lambda: _NOW_S[0])


def swept(dedup: Any) -> set[str]:
    """Sweep, and return the names that are left."""
    _NOW_S[0] += _TERM_S / 4
    sweep(dedup._store, dedup._authority)
    return names(dedup)


def use(dedup: Any, client_id: int) -> Verdict:
    """Have a call claimed in a session, and given up."""
    call = Call(client_id, b"", None, b"a key", method="/p.S/M", fingerprint=b"f")
    decision = dedup._store.claim(call, rifl.MethodPolicy())
    if isinstance(decision, Later):
        decision = decision.wait()
    pending = dedup._store.abandon(decision.attempt)
    if pending is not None:
        pending.wait()
    verdict: Verdict = decision.verdict
    return verdict


def names(dedup: Any) -> set[str]:
    return {row.name for row in dedup._store.leases.load_sessions()}


def test_a_session_that_was_never_used_goes_with_its_name(dedup: Any) -> None:
    """After a term nothing of it is left; used, renewed and closed ones stay (§5)."""
    leases = dedup._authority
    unused = leases.open_session("unused")
    assert unused.term_s == pytest.approx(_TERM_S)
    used = leases.open_session("used").client_id
    assert use(dedup, used) is Verdict.NEW
    closed = leases.open_session("closed").client_id
    assert leases.close_session("closed") == closed
    renewed = leases.open_session("renewed")

    def gone() -> bool:
        leases.heartbeat(renewed.client_id, renewed.token)
        return "unused" not in swept(dedup)

    until(gone, "the unused name is free")
    assert names(dedup) >= {"used", "closed", "renewed"}
    with pytest.raises(LeaseExpired):
        leases.heartbeat(unused.client_id, unused.token)
    with pytest.raises(SessionClosed):
        leases.open_session("closed")
    assert leases.open_session("used").client_id == used
    again = leases.open_session("unused")
    assert again.created
    assert again.client_id != unused.client_id
    assert leases.open_session("used").client_id == used


def test_redis_stopped_between_an_unused_session_and_its_name(
    shared_redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is over, not closed, before its name is free; the next sweep frees the name (§5)."""
    url = shared_redis.url(namespace=f"unused{next(_NUMBERS)}", beat_s=0.05)
    with opened(url) as dedup:
        storage, leases = dedup._store.leases, dedup._authority
        unused = leases.open_session("unused")
        stopped = threading.Event()
        with monkeypatch.context() as patch:
            patch.setattr(storage, "forget_session", lambda client_id: stopped.set())
            until(lambda: swept(dedup) and stopped.is_set(), "the session is over")
            assert "unused" in names(dedup)
            with pytest.raises(LeaseExpired):
                leases.heartbeat(unused.client_id, unused.token)
        until(lambda: "unused" not in swept(dedup), "the unused name is free")


def test_sessions_nobody_uses_do_not_keep_others_out_for_long() -> None:
    """What fills the bound is gone a term later, and after a restart as well (§5)."""
    policy = SessionPolicy(
        max_open_per_peer=2, max_open=2, max_names_per_peer=4, max_names=4, refuse_for_s=1000
    )

    def row(number: int) -> SessionRow:
        return SessionRow(number, f"s{number}", b"", SessionState.OPEN, 1000.0, 0.0)

    table = SessionTable(policy, unused_s=60.0)
    table.put(row(1), 0.0, used=False)
    table.put(row(2), 0.0, used=False)
    assert table.renew(1, 50.0, used=False)
    assert table.expire(60.0, 0.0) == ([], [2])
    assert table.renew(1, 100.0)
    assert table.expire(900.0, 0.0) == ([], [])
    table.require_room(b"")
    restarted = SessionTable(policy, unused_s=60.0)
    restarted.load([row(1), row(2)], 0.0, 0.0, used={1})
    assert restarted.expire(60.0, 0.0) == ([], [2])
    assert restarted.alive(1, 900.0)


def test_a_session_whose_first_call_was_running_at_a_crash_is_kept(tmp_path: Path) -> None:
    """It was used, durably, before the handler started: what it did is not denied (§5)."""
    path, copy = tmp_path / "s.db", tmp_path / "copy"
    copy.mkdir()
    idempotent = rifl.MethodPolicy(kind=rifl.Kind.IDEMPOTENT)
    with opened(f"sqlite:///{path}") as dedup:
        used = dedup._authority.open_session("used").client_id
        dedup._authority.open_session("unused")
        call = Call(used, b"", None, b"a key", method="/p.S/M", fingerprint=b"f")
        decision = dedup._store.claim(call, idempotent).wait()
        started = dedup._store.start(decision.attempt)
        assert started is not None
        started.wait()
        # The handler would run now. What a crash leaves is what is in the files.
        for file in tmp_path.glob("s.db*"):
            if not file.name.endswith(".lock"):
                shutil.copy(file, copy / file.name)
        dedup._store.abandon(decision.attempt)
    with opened(f"sqlite:///{copy / 's.db'}") as dedup:
        until(lambda: "unused" not in swept(dedup), "the unused name is free")
        assert dedup._authority.open_session("used").client_id == used
