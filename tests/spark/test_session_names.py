"""Names of sessions, and when they close (DESIGN §8)."""

from __future__ import annotations

import itertools

import pytest

from lease_server._tokens import WRITER_BYTES
from rifl.spark._errors import IdentityError
from rifl.spark._session_names import (
    MicroBatch,
    batch_session,
    named_series,
    run_session,
)


def test_a_micro_batch_has_one_session_for_ever() -> None:
    """Query and batch name the session, whatever run asks (DESIGN §8)."""
    one = MicroBatch.of("q", "7")
    assert one == MicroBatch.of("q", "7")
    assert one.session == "spark/q#8"
    assert MicroBatch.of("q", "8").session != one.session
    assert MicroBatch.of("r", "7").session != one.session


def test_a_name_and_a_number_are_a_micro_batch_of_no_query() -> None:
    """Where Spark tells of none; a query with the same name has other sessions (DESIGN §8)."""
    series = named_series("each", "/m", "deposit")
    one, of_query = MicroBatch.named(series, 7), MicroBatch.of("q", "7", series, gaps=True)
    assert one.session == "spark/each/m/deposit/named#8"
    assert (one.closed_before, one.root, one.writer) == ("spark/each/m/deposit/named#6", None, b"")
    assert one.session != of_query.session


def test_a_commit_closes_only_what_came_before() -> None:
    """Close late: never the batch's own session, which Spark may run again (DESIGN §8)."""
    batches = [MicroBatch.of("q", str(number)) for number in range(5)]
    for batch in batches:
        assert batch.closed_by_commit != batch.session
    for before, batch in itertools.pairwise(batches):
        assert batch.closed_by_commit == before.session


def test_what_must_be_known_was_closed_by_the_commit_before() -> None:
    """Asking about it changes nothing in a series that is known (DESIGN §8)."""
    batches = [MicroBatch.of("q", str(number)) for number in range(5)]
    for before, batch in itertools.pairwise(batches):
        assert batch.closed_before == before.closed_by_commit
    assert batches[0].closed_before is None
    assert batches[0].root == batches[1].closed_before
    assert batches[1].root is None


def test_what_is_named_in_a_query_has_a_series_of_its_own() -> None:
    """Calls and writes of one method are told apart by their names (DESIGN §8)."""
    told = {
        MicroBatch.of("q", "7", series=named_series(kind, method, name), gaps=True).session
        for kind in ("call", "each")
        for method in ("/bank.v1.Bank/Deposit", f"/{'long' * 60}/Method")
        for name in ("first", "second")
    }
    assert len(told) == 8
    assert max(map(len, told)) <= 200


@pytest.mark.parametrize(
    ("query", "batch"), [(None, "1"), ("q", None), ("", "1"), ("q", ""), ("q", "-1"), ("q", "x")]
)
def test_without_both_ids_nothing_is_sent(query: str | None, batch: str | None) -> None:
    """A task that is not told which batch it belongs to raises (DESIGN §8)."""
    with pytest.raises(IdentityError, match="nothing was sent"):
        MicroBatch.of(query, batch)


def test_names_of_users_and_runs() -> None:
    """A user's name is no numbered session; two runs never share one (DESIGN §8)."""
    assert batch_session("daily-2026-11-20") == "daily-2026-11-20"
    for bad in ("", "x" * 201, "daily#5"):
        with pytest.raises(ValueError, match="session"):
            batch_session(bad)
    assert run_session() != run_session()


def test_a_writer_is_a_run_over_one_checkpoint() -> None:
    """Other runs and places are others; without a place copies are not told apart (§5, §8)."""
    first = MicroBatch("spark/q", 3, place="/a", run="one")
    restarted, moved = first._replace(run="two"), first._replace(place="/b")
    assert len({each.writer for each in (first, restarted, moved)}) == 3
    assert {len(each.writer) for each in (first, restarted, moved)} == {WRITER_BYTES}
    assert restarted.is_here(first.writer)
    assert not moved.is_here(first.writer)
    assert first._replace(batch=4).writer == first.writer
    assert len({each.followed(each.writer) for each in (first, restarted, moved)}) == 3
    assert first._replace(place="").writer == b""


def test_a_micro_batch_knows_its_query_unless_only_a_name_tells_it() -> None:
    """What a report says of it: Spark Connect tells no id within foreachBatch (DESIGN §8)."""
    assert MicroBatch.of("an-id", "3", series="spark/write/p.S/M/a/name").query == "an-id"
    assert MicroBatch.named("spark/write/p.S/M/a/name", 3).query is None
