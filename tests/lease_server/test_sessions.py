"""Named sessions."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lease_server import BadHeader, SessionClosed, SessionPolicy, TooManySessions
from lease_server._session_table import SessionTable
from lease_server._sessions import SessionRow, SessionState

POLICY = SessionPolicy(refuse_for_s=100.0)


def row(client_id, name="job", peer=b"", retention_s=10.0):
    return SessionRow(client_id, name, peer, SessionState.OPEN, retention_s, 0.0)


def test_the_same_name_and_peer_is_the_same_session():
    """A name finds its session again, of its own peer only (§5)."""
    table = SessionTable(POLICY)
    assert table.find(b"", "job", 0.0) is None
    table.put(row(1), 0.0)
    assert table.find(b"", "job", 1.0) == row(1)
    assert table.find(b"p", "job", 1.0) is None
    assert table.alive(1, 1.0)
    assert table.holds(1)


def test_retention_counts_from_the_last_opening_or_renewal():
    """Each opening and renewal restarts the retention; its end is final (§5)."""
    table = SessionTable(POLICY)
    table.put(row(1), 0.0)
    table.find(b"", "job", 9.0)
    assert table.renew(1, 18.0)
    assert table.expire(27.0, 0.0) == ([], [])
    assert not table.alive(1, 28.0)
    with pytest.raises(SessionClosed):
        table.find(b"", "job", 28.0)
    assert not table.renew(1, 28.0)
    expired, forgotten = table.expire(28.0, 500.0)
    assert expired == [replace(row(1), state=SessionState.EXPIRED, changed_at_unix_s=500.0)]
    assert forgotten == []
    assert table.expire(28.0, 500.0) == ([], [])


def test_a_closed_name_is_refused_for_the_stated_time():
    """A closed name gets no new id until it is forgotten, `refuse_for_s` later (§5)."""
    table = SessionTable(POLICY)
    table.put(row(1), 0.0)
    table.put(replace(row(1), state=SessionState.CLOSED), 5.0)
    table.put(row(1), 6.0)
    assert table.expire(104.9, 0.0) == ([], [])
    with pytest.raises(SessionClosed):
        table.find(b"", "job", 104.9)
    assert table.expire(105.0, 0.0) == ([], [1])
    assert table.find(b"", "job", 105.0) is None
    assert not table.holds(1)
    assert len(table) == 0


def test_a_restart_gives_full_retention_and_counts_refusals_by_the_wall_clock():
    """Open sessions start over at a restart; refused names go on counting (§5: late is safe)."""
    table = SessionTable(POLICY)
    closed = replace(row(2, "done"), state=SessionState.CLOSED, changed_at_unix_s=1000.0)
    ahead = replace(closed, client_id=3, name="ahead", changed_at_unix_s=9000.0)
    table.load([row(1), closed, ahead], 0.0, 1060.0)
    assert table.alive(1, 9.9)
    assert table.expire(39.9, 0.0)[1] == []
    assert table.expire(40.0, 0.0)[1] == [2]
    assert table.expire(99.9, 0.0)[1] == []
    assert table.expire(100.0, 0.0)[1] == [3]


def test_sessions_are_bounded():
    """Open sessions and names are bounded for each peer and in total (§9)."""
    policy = SessionPolicy(
        refuse_for_s=100.0, max_open=3, max_open_per_peer=2, max_names=5, max_names_per_peer=3
    )
    table = SessionTable(policy)
    for client_id in (1, 2):
        table.require_room(b"a")
        table.put(row(client_id, str(client_id), b"a"), 0.0)
    with pytest.raises(TooManySessions):
        table.require_room(b"a")
    table.put(row(3, "3", b"b"), 0.0)
    with pytest.raises(TooManySessions):
        table.require_room(b"c")
    for client_id in (1, 2):
        table.put(replace(row(client_id, str(client_id), b"a"), state=SessionState.CLOSED), 0.0)
    table.require_room(b"a")
    table.put(row(4, "4", b"a"), 0.0)
    with pytest.raises(TooManySessions):
        table.require_room(b"a")
    table.put(row(5, "5", b"b"), 0.0)
    with pytest.raises(TooManySessions):
        table.require_room(b"c")
    table.expire(1000.0, 0.0)
    table.expire(2000.0, 0.0)
    assert len(table) == 0
    assert not table._names_of
    assert not table._open_of


def test_an_address_has_a_part_of_what_is_nobodys():
    """A quarter, or what is given; nothing is left of it when its names are forgotten (§9)."""
    policy = SessionPolicy(
        refuse_for_s=100.0, max_open_per_peer=8, max_names_per_peer=16, max_names_per_source=3
    )
    table = SessionTable(policy)
    for client_id in (1, 2):
        table.require_room(b"", "here")
        table.put(replace(row(client_id, str(client_id)), source="here"), 0.0)
    with pytest.raises(TooManySessions):
        table.require_room(b"", "here")
    table.require_room(b"", "there")
    closed = replace(row(1, "1"), source="here", state=SessionState.CLOSED)
    table.put(closed, 0.0)
    table.require_room(b"", "here")
    table.put(replace(row(3, "3"), source="here"), 0.0)
    table.put(replace(row(2, "2"), source="here", state=SessionState.CLOSED), 0.0)
    with pytest.raises(TooManySessions):
        table.require_room(b"", "here")
    table.expire(1000.0, 0.0)
    table.expire(2000.0, 0.0)
    assert len(table) == 0
    assert not table._open_from
    assert not table._names_from


def test_a_name_passed_on_by_another_server_is_taken_over():
    """A row with a new id for a known name replaces the old one (§6: shared storage)."""
    table = SessionTable(POLICY)
    table.put(row(1), 0.0)
    table.put(row(2), 0.0)
    assert not table.holds(1)
    assert table.get(b"", "job") == row(2)
    assert table.expire(10.0, 0.0)[0][0].client_id == 2
    assert len(table) == 1


@pytest.mark.parametrize("name", ["", "x" * 257])
def test_names_are_bounded(name):
    """A name has 1 to 256 characters (proto)."""
    with pytest.raises(BadHeader):
        SessionTable.check_name(name)


def test_policy_is_cross_checked():
    """Contradicting numbers are refused when built (§9); retention is clamped."""
    for numbers in (
        {"default_retention_s": 0.0},
        {"default_retention_s": 9.0, "max_retention_s": 8.0},
        {"refuse_for_s": 0.0},
        {"max_open_per_source": 0},
        {"max_names_per_source": 0},
        {"max_open": 5},
        {"max_names": 10},
    ):
        with pytest.raises(ValueError, match=r"need|must"):
            SessionPolicy(**numbers)
    policy = SessionPolicy(default_retention_s=5.0, max_retention_s=20.0)
    assert [policy.retention_s(asked) for asked in (0, 1.5, 99)] == [5.0, 1.5, 20.0]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["open", "renew", "close", "expire"]), st.integers(0, 3), st.floats(0, 40)
    ),
    max_size=40,
)


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_a_name_has_one_id_and_a_refused_one_none(steps):
    """In any history a name keeps its id, and after its end gets no other in the stated time."""
    table = SessionTable(POLICY)
    now, next_id = 0.0, 1
    alive_until, refused_until, ids = {}, {}, {}
    for action, number, step in steps:
        now += step
        name = str(number)
        for known, until in alive_until.items():
            if now >= until:
                refused_until.setdefault(known, float("inf"))
        if action == "open":
            try:
                found = table.find(b"", name, now)
            except SessionClosed:
                assert name in refused_until
                continue
            assert name not in refused_until
            if found is None:
                table.put(row(next_id, name), now)
                ids[name] = next_id
                next_id += 1
            else:
                assert found.client_id == ids[name]
            alive_until[name] = now + 10.0
        elif action == "renew" and name in ids:
            assert table.renew(ids[name], now) is (name not in refused_until)
            if name not in refused_until:
                alive_until[name] = now + 10.0
        elif action == "close" and name in ids and name not in refused_until:
            table.put(replace(row(ids[name], name), state=SessionState.CLOSED), now)
            refused_until[name] = now + 100.0
        elif action == "expire":
            expired, forgotten = table.expire(now, 0.0)
            for ended in expired:
                assert refused_until[ended.name] == float("inf")
                refused_until[ended.name] = now + 100.0
            for client_id in forgotten:
                gone = next(name for name, held in ids.items() if held == client_id)
                assert now >= refused_until.pop(gone)
                del ids[gone], alive_until[gone]
