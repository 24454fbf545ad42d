"""A client's search for the leader: DESIGN §7, the client path."""

from __future__ import annotations

from curp._core.leader_search import LeaderSearch


def test_rounds_follow_until_a_replica_says_that_it_leads() -> None:
    """A hung one is not waited for, and one that follows ends nothing (DESIGN §7)."""
    search = LeaderSearch()
    assert not search.begins(0.0)
    assert search.rest_s(0.0) is None
    search.missed(0.0)
    assert search.begins(0.0)
    assert not search.begins(0.05)
    assert search.rest_s(0.05) == 0.05
    assert not search.told(4, serves=False)
    assert search.begins(0.1)
    assert search.told(5, serves=True)
    assert search.rest_s(0.2) is None
    assert not search.begins(0.3)


def test_a_leader_of_before_is_not_the_one_that_is_looked_for() -> None:
    """What it said may have been long on its way (DESIGN §7)."""
    search = LeaderSearch()
    search.missed(0.0)
    assert search.told(5, serves=True)
    search.missed(1.0)
    assert not search.told(4, serves=True)
    assert search.begins(1.0)
    assert search.told(5, serves=True)


def test_a_group_that_has_no_leader_is_not_asked_for_ever() -> None:
    """Ten seconds after the last call that missed it (DESIGN §7)."""
    search = LeaderSearch()
    search.missed(0.0)
    search.missed(5.0)
    assert search.begins(14.9)
    assert not search.begins(15.0)
    assert search.rest_s(15.0) is None
