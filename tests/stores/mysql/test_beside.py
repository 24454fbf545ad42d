"""Rows of players, lease servers and logs beside the calls over MariaDB (DESIGN §6)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

import sharedlog
from rifl._stores import open_lease_storage
from rifl._stores.rows import Move, RowCall
from rifl.core._shared.errors import StaleRpc
from rifl.core._shared.record import CompletionRecord
from tests.stores.redis.replica import ATOMIC


def test_rows_move_from_what_they_are_only(replicas):
    """All or none, whoever moves them at the same time (DESIGN §6)."""
    one, two = replicas(), replicas()
    rows, barrier = [one.store.rows, two.store.rows], threading.Barrier(2)
    assert rows[0].move([Move("a", None, b"1"), Move("ä", None, b"1")]).wait()
    assert not rows[1].move([Move("a", b"1", b"2"), Move("ä", b"0", b"2")]).wait()
    assert rows[1].get(["a", "ä", "c"]) == {"a": b"1", "ä": b"1", "c": None}

    def move(which):
        barrier.wait()
        moves = [Move("new", None, b"%d" % which), Move("a", b"1", b"3")]
        return rows[which].move(moves).wait()

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(move, range(2))) == [False, True]
    assert rows[0].get(["a"]) == {"a": b"3"}
    assert rows[0].store_id == rows[1].store_id
    assert 0 not in rows[0].beats([one.store.owner, two.store.owner])


@pytest.mark.parametrize("moved", [False, True])
def test_a_row_moves_in_a_handlers_own_transaction(replicas, database, effects, moved):
    """In the record's place: where it moved meanwhile the effect rolls back, too (DESIGN §6)."""
    one = replicas()
    rows = one.store.rows
    assert rows.move([Move("k", None, b"1")]).wait()
    attempt = rows.begin(RowCall("/s/M", b"name", [Move("k", b"1", b"2")]), ATOMIC)
    transactions = one.store.transactions
    transactions.begin(database)
    with database.cursor() as cursor:
        cursor.execute("INSERT INTO effects VALUES ('x')")
    if moved:
        assert rows.move([Move("k", b"1", b"9")]).wait()
        with pytest.raises(StaleRpc):
            transactions.commit(attempt, CompletionRecord(), database)
        assert transactions.rollback(database)
    else:
        transactions.commit(attempt, CompletionRecord(), database)
    rows.end(attempt)
    assert effects() == (not moved)
    assert rows.get(["k"]) == {"k": b"9" if moved else b"2"}


def test_an_error_of_the_handlers_connection_is_known_as_its(replicas, database):
    """A statement that is wrong counts, one of another connection is in doubt (DESIGN-LOG §14)."""
    judge = replicas().store.rows.judge
    with database.cursor() as cursor, pytest.raises(Exception, match="nothing") as of_none:
        cursor.execute("SELECT nothing FROM effects")
    database.rollback()
    replicas().store.transactions.begin(database)
    with database.cursor() as cursor, pytest.raises(Exception, match="syntax") as its_own:
        cursor.execute("SELEC")
    assert (judge(of_none.value), judge(its_own.value), judge(KeyError())) == (None, True, True)


def test_a_lease_server_stands_alone(url):
    """``rifl lease-server`` needs the storage only (DESIGN §5)."""
    with closing(open_lease_storage(url)) as storage:
        assert storage.reserve_ids(3) == (1, 3)
        assert storage.secrets() == storage.secrets()


def test_no_log_is_in_mariadb(url, database, tmp_path):
    """``append_in``, an outbox and a log's own URL say so by their types (DESIGN-LOG §12)."""
    with pytest.raises(sharedlog.LogError):
        sharedlog.open(url)
    with sharedlog.create(f"sqlite:///{tmp_path / 'app.db'}") as log:
        log.stream("orders", substreams=1)
        with pytest.raises(sharedlog.WrongTransaction):
            log.append_in(database, "orders", b"one")
        with pytest.raises(sharedlog.WrongTransaction):
            sharedlog.create_outbox(database, log)
