"""Leases and sessions in the SQLite store's file are written in turn with its commits (§5, §6).

SQLite's lock has no queue: it is never waited for here, so that what has a turn needs none.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lease_server import LeaseAuthority, StorageUnavailable
from rifl._stores.pending import Pending
from rifl._stores.sqlite import journal, lease_storage, write_queue
from rifl._stores.sqlite.journal_entries import JournalEntry
from tests.helpers.waiting import until
from tests.stores.conformance import FIRST, wait
from tests.stores.shared_calls import Calls, Place


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """A store whose leases never wait for SQLite's lock, nor transactions end for their age."""
    monkeypatch.setattr(write_queue, "OPEN_S", 60.0)
    calls = Calls(Place(tmp_path / "store.db"))
    calls.store.leases._connection.execute("PRAGMA busy_timeout=0")
    yield calls
    calls.opened.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads of callers."""
    with ThreadPoolExecutor(8) as pool:
        yield pool


def _authority(calls: Calls) -> LeaseAuthority:
    authority: LeaseAuthority = calls.opened.authority
    return authority


def _entry(seq: int) -> JournalEntry:
    row = (7, seq, b"f", "/m", None, b"r")
    return JournalEntry(JournalEntry.RECORD, row, patient=False, failure=RuntimeError)


class _Held:
    """A journal whose next commit ends when it is told to."""

    def __init__(self, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
        self.journal: Any = calls.store._main.journal
        self.began, self.goes_on = threading.Event(), threading.Event()
        # What was done, in its order.
        self.order: list[str] = []
        commit: Callable[..., Any] = self.journal._writer.commit

        def held(batch: list[JournalEntry], *given: Any, **more: Any) -> Any:
            self.began.set()
            assert self.goes_on.wait(60)
            self.order += [f"entry {each.rows[0][1]}" for each in batch if each.rows]
            return commit(batch, *given, **more)

        monkeypatch.setattr(self.journal._writer, "commit", held)

    def guests(self) -> int:
        """How many wait for their turn."""
        return len(self.journal._guests)


def test_leases_are_read_whoever_writes(calls: Calls) -> None:
    """A secret's rotation, and what has ended, is looked for under any load (§5)."""
    leases = calls.store.leases
    with contextlib.closing(sqlite3.connect(calls.store._main.path)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert leases.secrets()
        assert leases.load_sessions() == []
        assert leases.known_clients() == [calls.client]
        assert leases.store_id() == _authority(calls).store
        # Written it cannot be.
        with pytest.raises(StorageUnavailable, match="locked"):
            leases.reserve_ids(1)


def test_a_session_has_its_turn_between_handlers(calls: Calls, pool: ThreadPoolExecutor) -> None:
    """Whoever came before is committed first, whoever comes later does not overtake (§6)."""
    first, later = calls.begin(), calls.begin()
    with calls.enter(first) as connection:
        opening = pool.submit(_authority(calls).open_session, "q", secret=b"s" * 32)
        until(lambda: calls.waiting() == 1, "the session waits")
        lasting = pool.submit(calls.act, later)
        until(lambda: calls.waiting() == 2, "a handler waits behind it")
        calls.store.transactions.record(first, FIRST, connection)
    assert opening.result().created
    lasting.result()
    assert first.shared.group is not later.shared.group  # type: ignore[union-attr]


def test_a_session_has_its_turn_between_commits_of_the_journal(
    calls: Calls, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before what is queued later, and behind what was queued before (§6)."""
    held = _Held(calls, monkeypatch)
    first = held.journal.submit(_entry(1))
    assert held.began.wait(60)
    opening = pool.submit(_authority(calls).open_session, "q", secret=b"s" * 32)
    opening.add_done_callback(lambda _: held.order.append("session"))
    until(lambda: held.guests() == 1, "the session waits")
    last = held.journal.submit(_entry(2))
    held.goes_on.set()
    assert opening.result().created
    wait(first)
    wait(last)
    assert held.order[0] == "entry 1"
    assert sorted(held.order) == ["entry 1", "entry 2", "session"]


def test_what_waits_already_is_committed_before_a_session(calls: Calls) -> None:
    """Also where nobody commits just then: who comes again and again starves no call (§6)."""
    journal = calls.store._main.journal
    queued = journal.submit(_entry(1), awaited=True)
    # Its caller has not begun to wait.
    assert not queued.done
    _authority(calls).open_session("q", secret=b"s" * 32)
    assert queued.done


def test_a_turn_that_does_not_come_in_time_is_told(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written, all goes on, and asking again helps (§5)."""
    held = _Held(calls, monkeypatch)
    queued = held.journal.submit(_entry(1))
    assert held.began.wait(60)
    authority = _authority(calls)
    with monkeypatch.context() as patched:
        patched.setattr(lease_storage, "_PATIENCE_S", 0.05)
        with pytest.raises(StorageUnavailable, match="turn"):
            authority.open_session("q", secret=b"s" * 32)
    assert held.guests() == 0
    held.goes_on.set()
    wait(queued)
    assert _authority(calls).open_session("q", secret=b"s" * 32).created


@pytest.mark.parametrize("had_it", [False, True])
def test_a_signal_takes_no_turn_away_from_others(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, had_it: bool
) -> None:
    """Its exception may come before the turn does, or just behind (§6)."""
    held = _Held(calls, monkeypatch)

    class Interrupted(Pending):
        def wait_for(self, limit_s: float) -> bool:
            if had_it:
                held.goes_on.set()
                assert super().wait_for(limit_s)
            raise KeyboardInterrupt

    monkeypatch.setattr(journal, "Pending", Interrupted)
    queued = held.journal.submit(_entry(1))
    assert held.began.wait(60)
    with pytest.raises(KeyboardInterrupt):
        _authority(calls).open_session("q", secret=b"s" * 32)
    held.goes_on.set()
    wait(queued)
    wait(held.journal.submit(_entry(2)))
