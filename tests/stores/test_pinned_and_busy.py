"""A reader that stays and a writer that stays harm nobody for longer than they have to (§6)."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import rifl
from _rifl_ground.sqlite import long_wal
from rifl._stores import StoreLocked
from rifl._stores.sqlite import journal, schema
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import RecordPending, StoreUnavailable
from tests.echo import served
from tests.helpers.waiting import until
from tests.stores.conformance import FIRST, IDEMPOTENT, PLAIN, call, wait
from tests.stores.test_replaced_files import OneFile, _complete


@pytest.fixture(autouse=True)
def _without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that waits for a writer does so for an hour: what ends sooner has its deadline."""
    monkeypatch.setattr(journal, "BUSY_S", 3600.0)
    monkeypatch.setattr(schema, "_BUSY_TIMEOUT_S", 3600.0)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[OneFile]:
    """A store over a file."""
    files = OneFile(tmp_path)
    yield files
    files.store.close()


def _wal(files: OneFile) -> int:
    return os.path.getsize(f"{files.main}-wal")


# -- the WAL ------------------------------------------------------------------------------


def test_the_wal_is_bounded_while_somebody_reads_and_shrinks_after(
    files: OneFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the bound new calls are refused, not executed; without the reader all goes on (§6)."""
    bounds = {"LONG_WAL_BYTES": 200_000, "_WAL_STEP_BYTES": 50_000, "WAL_BYTES": 1_000_000}
    for name, value in bounds.items():
        monkeypatch.setattr(long_wal, name, value)
    files.store._main.journal._wal.tend_at = 200_000
    told: list[Any] = []
    files.store.on_refusal = told.append
    client = files.client()
    _complete(files, 1, client)
    reader = sqlite3.connect(files.main)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM rifl_call").fetchone()
    running = files.begin(call(client, 2), IDEMPOTENT)
    seqs = iter(range(3, 1000))
    with pytest.raises(StoreUnavailable, match="-wal"):
        all(_complete(files, seq, client) is None for seq in seqs)
    assert _wal(files) < 1_200_000
    assert isinstance(told[-1], StoreUnavailable), "health says so"
    wait(files.store.finish(running, FIRST))
    reader.close()
    until(lambda: told[-1] is None, "calls are taken again")
    assert _wal(files) < 200_000
    _complete(files, 1000, client)


def test_a_wal_that_other_connections_made_long_is_looked_at_too(
    files: OneFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweeper sees what an application's own transactions did to the WAL (§6)."""
    files.store._main.journal._wal.tend_at = 200_000
    writer = files.connect(files.main)
    reader = sqlite3.connect(files.main)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM rifl_call").fetchone()
    writer.execute("INSERT INTO effect VALUES (zeroblob(2000000))")
    writer.commit()
    files.store.expire_keys()
    assert _wal(files) > 2_000_000
    reader.close()

    def emptied() -> bool:
        files.store._main.journal._wal.tend_at = 200_000
        files.store.expire_keys()
        return _wal(files) == 0

    until(emptied, "it shrinks without a call")
    writer.close()


# -- a writer that stays ------------------------------------------------------------------


class _Writer:
    """An application's own transaction, held open."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("BEGIN IMMEDIATE")

    def end(self) -> None:
        """Let the lock go."""
        self._connection.execute("ROLLBACK")
        self._connection.close()


def _left(seconds: float) -> Callable[[], float]:
    until_s = time.monotonic() + seconds
    return lambda: until_s - time.monotonic()


def test_a_call_waits_for_a_writer_no_longer_than_its_deadline(files: OneFile) -> None:
    """Not begun: refused as not executed, and nothing of it is written later (§6)."""
    client = files.client()
    _complete(files, 1, client)
    attempt = files.store.claim(call(client, 2), PLAIN).attempt
    writer = _Writer(files.main)
    pending = files.store.start(attempt)
    with pytest.raises(StoreUnavailable, match="another connection"):
        pending.wait_for_call(_left(0.2))
    files.store.abandon(attempt)
    writer.end()
    _complete(files, 3, client)
    assert files.rows(files.main) == [1, 3]
    again = files.store.claim(call(client, 2), PLAIN)
    assert again.verdict is Verdict.NEW
    wait(files.store.start(again.attempt))
    wait(files.store.finish(again.attempt, FIRST))


@pytest.mark.parametrize("policy", [PLAIN, IDEMPOTENT], ids=["plain", "idempotent"])
def test_a_deadline_that_comes_while_a_commit_is_tried_is_kept_too(
    files: OneFile, monkeypatch: pytest.MonkeyPatch, policy: rifl.MethodPolicy
) -> None:
    """The try fails for the writer, and nobody waits for the next: not for half a minute (§6)."""
    client = files.client()
    _complete(files, 1, client)
    if policy is PLAIN:
        # The intent, without which it does not begin.
        start = files.store.start
        waits = files.store.claim(call(client, 2), PLAIN).attempt
        refusal: type[Exception] = StoreUnavailable
    else:
        start = lambda attempt: files.store.finish(attempt, FIRST)  # noqa: E731
        waits = files.begin(call(client, 2), IDEMPOTENT)
        refusal = RecordPending
    journal_ = files.store._main.journal
    given_up = threading.Event()
    give_up, commit = journal_.give_up, journal_._writer.commit

    def gives_up(entry: Any) -> None:
        give_up(entry)
        given_up.set()

    def tries(*args: Any, **options: Any) -> Exception | None:
        # What is tried is in nobody's queue when its deadline comes.
        assert given_up.wait(60)
        return commit(*args, **options)

    writer = _Writer(files.main)
    monkeypatch.setattr(journal_, "give_up", gives_up)
    monkeypatch.setattr(journal_._writer, "commit", tries)
    pending = start(waits)
    journal_.call()
    until(lambda: not journal_._queue, "it is being committed")
    with pytest.raises(refusal, match="another connection"):
        pending.wait_for_call(_left(0.2))
    writer.end()
    if policy is IDEMPOTENT:
        until(lambda: waits.ended, "the record is durable")
    else:
        files.store.abandon(waits)
    _complete(files, 3, client)
    assert files.rows(files.main) == ([1, 3] if policy is PLAIN else [1, 2, 3])


def test_a_record_that_waits_for_a_writer_is_written_later(files: OneFile) -> None:
    """The call ran: at its deadline it is pending, and then durable, with nobody waiting (§6)."""
    client = files.client()
    attempt = files.begin(call(client, 1), IDEMPOTENT)
    writer = _Writer(files.main)
    pending = files.store.finish(attempt, FIRST)
    with pytest.raises(RecordPending, match="another connection"):
        pending.wait_for_call(_left(0.2))
    assert files.store.claim(call(client, 1), IDEMPOTENT).verdict is Verdict.IN_PROGRESS
    writer.end()
    until(lambda: attempt.ended, "the record is durable")
    assert files.store.claim(call(client, 1), IDEMPOTENT).verdict is Verdict.COMPLETED


def test_calls_go_on_as_soon_as_the_writer_ends(files: OneFile) -> None:
    """A writer of some seconds refuses nothing: no call fails for it, and health stays (§6)."""
    told: list[Any] = []
    files.store.on_refusal = told.append
    client = files.client()
    _complete(files, 1, client)
    writer = _Writer(files.main)
    attempts = [files.begin(call(client, seq), IDEMPOTENT) for seq in range(2, 10)]
    threads = [
        threading.Thread(
            target=lambda attempt=attempt: files.store.finish(attempt, FIRST).wait_for_call(
                lambda: None
            )
        )
        for attempt in attempts
    ]
    for thread in threads:
        thread.start()
    journal_ = files.store._main.journal
    until(lambda: journal_._busy_since is not None, "they wait for the writer")
    writer.end()
    for thread in threads:
        thread.join(60)
    assert all(attempt.ended for attempt in attempts)
    assert told == []


def test_a_pool_thread_is_free_after_the_deadline(tmp_path: Path) -> None:
    """On a server of one thread the next call is answered, while the writer still writes (§6)."""
    url = f"sqlite:///{tmp_path / 's.db'}"
    ran: list[bytes] = []

    def handler(request: bytes, context: grpc.ServicerContext) -> bytes:
        ran.append(request)
        return request

    with (
        rifl.Deduplicator(url) as dedup,
        served(dedup, handler, threads=1) as target,
        rifl.connect(target) as channel,
        grpc.insecure_channel(target) as plain,
    ):
        once = channel.unary_unary("/test.Echo/Do")
        assert once(b"first", timeout=10) == b"first"
        writer = _Writer(tmp_path / "s.db")
        with pytest.raises(grpc.RpcError):
            once(b"second", timeout=1.0)
        # A call without an identity needs no store, but the one thread.
        assert plain.unary_unary("/test.Echo/Do")(b"bare", timeout=60) == b"bare"
        writer.end()
        assert once(b"third", timeout=10) == b"third"
    assert ran == [b"first", b"bare", b"third"]


def test_a_shared_transaction_waits_no_longer_than_its_call(files: OneFile) -> None:
    """``rifl.transaction`` gives up at the deadline, too, and nothing ran (§6)."""
    attempt = files.begin(call(files.client(), 1), rifl.MethodPolicy(kind=rifl.Kind.ATOMIC))
    writer = _Writer(files.main)
    with pytest.raises(StoreUnavailable), files.store.shared_blocks.block(attempt, 0.2):
        raise AssertionError("there is no turn")
    writer.end()


# -- hard links ---------------------------------------------------------------------------


def test_a_hard_link_is_no_second_store(files: OneFile, tmp_path: Path) -> None:
    """Each name would have a WAL of its own: refused while one is open, and after (§6)."""
    _complete(files, 1, files.client())
    (tmp_path / "b").mkdir()
    os.link(files.main, tmp_path / "b" / "main.db")
    with pytest.raises(StoreLocked, match="2 names"):
        OneFile(tmp_path / "b")
    files.store.close()
    for folder in (tmp_path, tmp_path / "b"):
        with pytest.raises(StoreLocked, match="2 names"):
            OneFile(folder)
    (tmp_path / "b" / "main.db").unlink()
    files.open()
