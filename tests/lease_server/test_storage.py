"""Duties of every lease storage; the test's own durable one proves the suite."""

from dataclasses import replace

import pytest

from lease_server import MemoryLeaseStorage, SessionRow, SessionState, StorageUnavailable
from lease_server._storage import LeaseStorage

ROW = SessionRow(7, "job", b"peer", SessionState.OPEN, 60.0, 1.5)


def test_blocks_never_overlap(storage: LeaseStorage):
    """Each block lies above all before it, within 1 to 2^63 - 1 (§5)."""
    highest = 0
    for count in (1, 10, 1000, 1):
        first, last = storage.reserve_ids(count)
        assert first > highest
        assert last - first + 1 == count
        highest = last
    assert highest < 2**63


def test_secrets_last_and_rotate(storage: LeaseStorage):
    """The first secret is made once; rotating keeps two, newest first (§5)."""
    (first,) = storage.secrets()
    assert storage.secrets() == [first]
    second, kept = storage.rotate_secret()
    assert kept == first
    third, kept = storage.rotate_secret()
    assert kept == second
    assert storage.secrets() == [third, second]
    assert len({first.value, second.value, third.value}) == 3


def test_one_session_a_name(storage: LeaseStorage):
    """The row that stands wins, and an ended session does not open again (§5)."""
    assert storage.put_session(ROW) == ROW
    assert storage.put_session(replace(ROW, client_id=8)) == ROW
    other = replace(ROW, client_id=9, peer=b"other")
    assert storage.put_session(other) == other
    longer = replace(ROW, retention_s=90.0)
    assert storage.put_session(longer) == longer
    closed = replace(ROW, state=SessionState.CLOSED)
    assert storage.put_session(closed) == closed
    assert storage.put_session(ROW) == closed
    assert sorted(storage.load_sessions(), key=lambda row: row.client_id) == [closed, other]
    storage.forget_session(7)
    storage.forget_session(7)
    assert storage.put_session(replace(ROW, client_id=8)).client_id == 8


def test_sessions_open_by_another_secret_all_at_once(storage: LeaseStorage):
    """Open and ended ones, and nothing else of them; unknown ids are fine (§5)."""
    ended = replace(ROW, client_id=8, name="ended", state=SessionState.CLOSED)
    other = replace(ROW, client_id=9, name="other")
    for row in (ROW, ended, other):
        storage.put_session(row)
    storage.rekey_sessions([8, 7, 12345], b"another")
    rekeyed = [replace(row, secret=b"another") for row in (ROW, ended)]
    assert sorted(storage.load_sessions(), key=lambda row: row.client_id) == [*rekeyed, other]


def test_memory_ids_tell_their_incarnation():
    """Ids of another process's memory storage are told apart, small ones too (§5)."""
    mine, other = MemoryLeaseStorage(), MemoryLeaseStorage()
    while other.incarnation == mine.incarnation:
        other = MemoryLeaseStorage()
    first, last = mine.reserve_ids(5)
    assert first >> 39 == last >> 39 == mine.incarnation
    assert not mine.is_foreign(first)
    assert mine.is_foreign(other.reserve_ids(1)[0])
    assert mine.is_foreign(1)
    mine._counter = 2**39 - 2
    with pytest.raises(StorageUnavailable):
        mine.reserve_ids(2)
