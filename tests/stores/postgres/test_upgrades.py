"""Functions that a newer release brings under load, beside replicas of this one (§6).

The newer one is made up: its functions have the next number. A claim has a parameter more, and so
a number of its own; the claim of this release hands on to it. Another body is written anew.
"""

from __future__ import annotations

import itertools
import random
import re
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from _rifl_ground.refusals import Outcome
from rifl._stores import StoreUnreachable
from rifl._stores.postgres import backend, request_statements, schema
from rifl._stores.postgres.request_statements import RequestStatements
from rifl._stores.postgres.statements import Statement
from rifl.core._serving.answer import HandlerResult
from rifl.core._serving.policy import Kind, MethodPolicy
from rifl.core._serving.serving import serve
from rifl.core._shared.errors import InProgress, RecordPending
from rifl.core._shared.record import CompletionRecord
from tests.stores.postgres.unclaimed_runs import RAISED, UNCLAIMED, drive
from tests.stores.redis.replica import ATOMIC, IDEMPOTENT, PLAIN, Replica, call

pytestmark = pytest.mark.faults

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('rifl schema rifl', 0))"
_OLD = schema.FUNCTIONS
_NEW = _OLD + 1
_SWITCHES = 4
_CLIENTS = 3
_BETWEEN_S = 0.2
# Nobody is taken for dead.
_OPTIONS = "beat_s=0.2&dead_after_s=30"
_POLICIES = (ATOMIC, UNCLAIMED, IDEMPOTENT, PLAIN)


class NewerStatements(RequestStatements):
    """What a replica of the newer release sends."""

    claims = 0

    def __init__(self, schema: str, store_id: str) -> None:
        super().__init__(schema, store_id)
        types = f"{request_statements._CLAIM_TYPES} text"
        self.claim = Statement(schema, "claim_2", types, request_statements._CLAIM_RESULTS)

    def pack(self, request: Any, beats: int) -> request_statements.Packed:
        """Say of a claim which release sends it."""
        statement, arguments = super().pack(request, beats)
        if statement is not self.claim:
            return statement, arguments
        NewerStatements.claims += 1
        return statement, (*arguments, "newer")


def _newer(functions: str) -> str:
    """Make the functions of the newer release from those of this one."""
    begins = functions.index("CREATE OR REPLACE FUNCTION rifl.claim_1(")
    ends = functions.index("$$;", functions.index("END $$;", begins)) + len("$$;")
    claim = functions[begins:ends]
    parameters = claim[claim.index("(") : claim.index("LANGUAGE")]
    names = ", ".join(re.findall(r"(?<!\w)p_\w+", parameters))
    handed_on = (
        f"CREATE OR REPLACE FUNCTION rifl.claim_1{parameters}LANGUAGE sql AS "
        f"$$ SELECT * FROM rifl.claim_2({names}, 'older') $$;"
    )
    fresh = _replaced(claim, "claim_1(", "claim_2(")
    fresh = _replaced(fresh, "OUT o_found", "p_release text, OUT o_found")
    functions = _replaced(functions, claim, f"{fresh}\n{handed_on}")
    finishing = "p_what IN ('finish', 'unknown', 'left')"
    functions = _replaced(functions, finishing, "p_what NOT IN ('abandon', 'look')")
    return _replaced(functions, f"('functions', '{_OLD}')", f"('functions', '{_NEW}')")


def _replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


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
    """Return the URL of a database of its own with a store as this release leaves it."""
    with shared_server.connect(autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS upgraded")
        connection.execute("CREATE DATABASE upgraded")
    url = shared_server.url().replace("/postgres", "/upgraded")
    Replica(url).close()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE effects (client bigint, seq bigint)")
    return url


@pytest.fixture
def newer(where, replicas, monkeypatch):
    """Make any number of replicas of the newer release over the store."""
    functions = _newer(schema.functions("rifl"))

    def make(more: str = ""):
        with monkeypatch.context() as release:
            release.setattr(schema, "FUNCTIONS", _NEW)
            release.setattr(schema, "functions", lambda _: functions + more)
            release.setattr(backend, "RequestStatements", NewerStatements)
            return replicas(f"{where}?{_OPTIONS}")

    return make


def test_functions_change_under_load_and_back_and_calls_have_one_effect(where, replicas, newer):
    """Whichever a call meets, and an older replica that goes on, and comes back, too (§6)."""

    def older():
        return replicas(f"{where}?{_OPTIONS}")

    NewerStatements.claims = 0
    with Load(where, [older(), older()]) as load:
        for _ in range(_SWITCHES):
            assert _functions(where) == _OLD
            # One of two is replaced by a newer one, which brings its functions.
            load.serving = (load.serving[1], newer())
            assert _functions(where) == _NEW
            threading.Event().wait(_BETWEEN_S)
            # An older one takes its place again, and calls the newer functions.
            load.serving = (load.serving[0], older())
            assert _functions(where) == _NEW
            threading.Event().wait(_BETWEEN_S)
            _put_back(where)
            threading.Event().wait(_BETWEEN_S)
    with psycopg.connect(where) as connection:
        found = connection.execute("SELECT client, seq FROM effects")
        effects = Counter((int(client), int(seq)) for client, seq in found)
    assert effects == load.done
    assert len(load.done) > 50
    assert NewerStatements.claims > 10


def test_functions_are_brought_up_to_date_beside_calls_that_are_under_way(where, newer):
    """They hold locks on the tables, and would be met in a deadlock, or locked out (§6)."""
    with psycopg.connect(where) as calling:
        calling.execute("ALTER DATABASE upgraded SET lock_timeout = '2s'")
        calling.commit()
        tables = "SELECT string_agg(oid::regclass::text, ', ') FROM pg_class WHERE relkind = 'r' "
        row = calling.execute(tables + "AND relnamespace = 'rifl'::regnamespace").fetchone()
        calling.execute(f"LOCK TABLE {row[0]} IN ROW EXCLUSIVE MODE")
        newer()
        assert _functions(where) == _NEW


def test_functions_are_brought_up_to_date_all_or_none(where, replicas, newer):
    """A replica that fails at it leaves the store as it was, and older ones serve it (§6)."""
    with pytest.raises(StoreUnreachable, match="division by zero"):
        newer("SELECT 1 / 0;")
    assert _functions(where) == _OLD
    with psycopg.connect(where) as connection:
        row = connection.execute("SELECT to_regproc('rifl.claim_2')").fetchone()
    assert row == (None,)
    older = replicas(where)
    older.begin(call(older.client(), 1))


def _functions(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT value FROM rifl.meta WHERE name = 'functions'").fetchone()
        assert row is not None
        return int(row[0])


def _put_back(url: str) -> None:
    """Have the functions of this release, as an administrator of it would."""
    with psycopg.connect(url) as connection:
        connection.execute(_LOCK)
        connection.execute(schema.functions("rifl").encode())
