"""Functions that a newer release corrects under load, beside replicas of the one before (§6)."""

from __future__ import annotations

import itertools
import random
import re
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rifl._stores.postgres import schema
from rifl.core._serving.answer import HandlerResult
from rifl.core._serving.policy import Kind, MethodPolicy
from rifl.core._serving.serving import serve
from rifl.core._shared.errors import InProgress, RecordPending
from rifl.core._shared.outcome import Outcome
from rifl.core._shared.record import CompletionRecord
from tests.compat.dumping import load_postgres
from tests.stores.postgres.unclaimed_runs import RAISED, UNCLAIMED, drive
from tests.stores.redis.replica import ATOMIC, IDEMPOTENT, PLAIN, call

_STORE = Path(__file__).parents[2] / "compat" / "postgres_1_12.sql"
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('rifl schema rifl', 0))"
_OLD = 12
_SWITCHES = 4
_CLIENTS = 3
_BETWEEN_S = 0.2
# Nobody is taken for dead.
_OPTIONS = "beat_s=0.2&dead_after_s=30"
_POLICIES = (ATOMIC, UNCLAIMED, IDEMPOTENT, PLAIN)


class Load:
    """Clients whose calls each arrive at two replicas at once, and once more when answered.

    Inside of it; at its end those that are under way end, and what was wrong with any is raised.
    """

    def __init__(self, url: str, serving: Sequence[Any]) -> None:
        self._url = url
        # Replaced as a whole.
        self.serving = tuple(serving)
        self._over = threading.Event()
        self.done: Counter[tuple[int, int]] = Counter()

    def __enter__(self) -> Load:
        self._pool = ThreadPoolExecutor(_CLIENTS)
        self._sessions = [
            self._pool.submit(self._session, self.serving[0].client(), seed)
            for seed in range(_CLIENTS)
        ]
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._pool.shutdown()
        for session in self._sessions:
            session.result()

    def _session(self, client: int, seed: int) -> None:
        dice = random.Random(seed)
        with ThreadPoolExecutor(2) as pool:
            for seq in itertools.count(1):
                if self._over.is_set():
                    return
                policy = dice.choice(_POLICIES)
                first = max(1, seq - dice.randrange(4))
                copies = [
                    pool.submit(self._serve, each, client, seq, first, policy)
                    for each in dice.sample(self.serving, 2)
                ]
                answers = [each.result(60) for each in copies]
                answers.append(self._serve(dice.choice(self.serving), client, seq, first, policy))
                assert len({each.record.response for each in answers}) == 1, answers
                assert {each.outcome for each in answers} <= {Outcome.EXECUTED, Outcome.REPLAYED}
                assert answers[-1].outcome is Outcome.REPLAYED
                self.done[client, seq] = 1

    def _serve(self, replica: Any, client: int, seq: int, first: int, policy: MethodPolicy) -> Any:
        def run(attempt: Any) -> HandlerResult:
            reply = CompletionRecord(response=b"%d" % random.getrandbits(60))
            transactions = replica.store.transactions
            atomic = policy.kind is Kind.ATOMIC
            with psycopg.connect(self._url) as connection:
                if atomic:
                    transactions.begin(connection)
                connection.execute("INSERT INTO effects VALUES (%s, %s)", (client, seq))
                if not atomic:
                    return HandlerResult(reply)
                try:
                    transactions.commit(attempt, reply, connection)
                except Exception:  # noqa: BLE001 - a copy's commit was first
                    transactions.rollback(connection)
                    return HandlerResult(RAISED, raised=True, undone=True)
            return HandlerResult(reply)

        arriving = call(client, seq, first=first)
        while True:
            try:
                return drive(serve(replica.store, arriving, policy), replica.store, run)
            except (InProgress, RecordPending):
                arriving = replace(arriving, attempt=arriving.attempt + 1)


@pytest.fixture
def where(shared_server):
    """Return the URL of a database of its own with the store as the release before left it."""
    with shared_server.connect(autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS upgraded")
        connection.execute("CREATE DATABASE upgraded")
    url = shared_server.url().replace("/postgres", "/upgraded")
    load_postgres(url, _STORE.read_text())
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE effects (client bigint, seq bigint)")
    return url


def test_functions_change_under_load_and_back_and_calls_have_one_effect(
    where, replicas, monkeypatch
):
    """Whichever a call meets, and an older replica that goes on, and comes back, too (§6)."""

    def older():
        with monkeypatch.context() as before:
            before.setattr(schema, "FUNCTIONS", _OLD)
            return replicas(f"{where}?{_OPTIONS}")

    with Load(where, [older(), older()]) as load:
        for _ in range(_SWITCHES):
            assert _functions(where) == _OLD
            # One of two is replaced by a newer one, which brings its functions.
            load.serving = (load.serving[1], replicas(f"{where}?{_OPTIONS}"))
            assert _functions(where) == schema.FUNCTIONS
            threading.Event().wait(_BETWEEN_S)
            # An older one takes its place again, and calls the newer functions.
            load.serving = (load.serving[0], older())
            assert _functions(where) == schema.FUNCTIONS
            threading.Event().wait(_BETWEEN_S)
            _put_back(where)
            threading.Event().wait(_BETWEEN_S)
    with psycopg.connect(where) as connection:
        found = connection.execute("SELECT client, seq FROM effects")
        effects = Counter((int(client), int(seq)) for client, seq in found)
    assert effects == load.done
    assert len(load.done) > 50


def test_functions_are_brought_up_to_date_beside_calls_that_are_under_way(where, replicas):
    """They hold locks on our tables, and would be met in a deadlock, or locked out (§6)."""
    with psycopg.connect(where) as calling:
        calling.execute("ALTER DATABASE upgraded SET lock_timeout = '2s'")
        calling.commit()
        tables = "SELECT string_agg(oid::regclass::text, ', ') FROM pg_class WHERE relkind = 'r' "
        row = calling.execute(tables + "AND relnamespace = 'rifl'::regnamespace").fetchone()
        calling.execute(f"LOCK TABLE {row[0]} IN ROW EXCLUSIVE MODE")
        replicas(where)
        assert _functions(where) == schema.FUNCTIONS


def _functions(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT value FROM rifl.meta WHERE name = 'functions'").fetchone()
        assert row is not None
        return int(row[0])


def _put_back(url: str) -> None:
    """Have the functions of before, as an administrator of that release would."""
    text = _STORE.read_text()
    functions = text[text.index("CREATE OR REPLACE FUNCTION") : text.index("\nDELETE FROM rifl.")]
    # Columns and indexes are there: what would make them locks the tables.
    functions = re.sub(r"^(ALTER TABLE|CREATE INDEX)[^;]*;", "", functions, flags=re.MULTILINE)
    with psycopg.connect(url) as connection:
        connection.execute(_LOCK)
        connection.execute(functions.encode())
