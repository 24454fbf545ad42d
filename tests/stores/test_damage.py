"""A store that is damaged, newer or taken says so by type when it is opened (DESIGN §6)."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
import sys

import pytest

import rifl
from rifl._stores import (
    StoreCorrupt,
    StoreLocked,
    StoreSchemaTooNew,
    StoreUnreachable,
    UnsupportedStore,
)
from rifl.core._shared.errors import RecordPending
from rifl.core._shared.record import CompletionRecord
from tests.stores.conformance import Opened, call, keyed

pytestmark = pytest.mark.faults

_DATABASES = 60


class _Place:
    durable = True

    def __init__(self, file):
        self.url = f"sqlite:///{file}"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A store that was closed well, with a little of everything in it."""
    file = tmp_path_factory.mktemp("whole") / "store.db"
    opened = Opened(_Place(file), window=100)
    client = opened.client()
    for seq in range(1, 40):
        opened.complete(call(client, seq), CompletionRecord(response=b"r" * 400))
    opened.complete(keyed(client, b"key"))
    opened.complete(call(client, 50, first=3, completed=[(9, 12)]))
    opened.authority.open_session("session")
    opened.close()
    return file


@pytest.fixture
def copy(whole, tmp_path):
    """A copy to be damaged."""
    return shutil.copy(whole, tmp_path / "store.db")


def _open(file):
    rifl.Deduplicator(f"sqlite:///{file}", lock_timeout_s=0.2).close()


@pytest.mark.parametrize("seed", range(_DATABASES))
def test_random_bytes_are_typed_or_harmless(copy, seed):
    """Bytes overwritten anywhere: StoreCorrupt, or the damage is in no page we read (§6)."""
    chance = random.Random(seed)
    size = os.path.getsize(copy)
    count = chance.choice([1, 16, 512, 4096])
    with open(copy, "r+b") as file:
        file.seek(chance.randrange(0, size - count))
        file.write(chance.randbytes(count))
    for _ in range(2):
        with contextlib.suppress(StoreCorrupt):
            _open(copy)


@pytest.mark.parametrize("offset", [16, 100, 4096, 8192])
def test_a_page_of_noise_is_corrupt(copy, offset):
    """A page of random bytes where our tables are is StoreCorrupt, every time (§6)."""
    with open(copy, "r+b") as file:
        file.seek(offset)
        file.write(random.Random(offset).randbytes(4096))
    for _ in range(2):
        with pytest.raises(StoreCorrupt):
            _open(copy)


@pytest.mark.parametrize("left", [1, 50, 100, 512, 4095, 4096, 5000, 8192, 12288])
def test_a_truncated_file_is_corrupt(copy, left):
    """A file cut anywhere is StoreCorrupt (§6)."""
    os.truncate(copy, left)
    with pytest.raises(StoreCorrupt):
        _open(copy)


@pytest.mark.parametrize(
    "content",
    [b"not a database, just text\n" * 50, b"\x00" * 5000, b"SQLite format 3\x00"],
    ids=repr,
)
def test_no_database_is_corrupt(tmp_path, content):
    """A file that is no database is StoreCorrupt, and is left as it was (§6)."""
    file = tmp_path / "store.db"
    file.write_bytes(content)
    with pytest.raises(StoreCorrupt):
        _open(file)
    assert file.read_bytes() == content


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE rifl_meta SET value='abc' WHERE name='schema_version'",
        "UPDATE rifl_meta SET value='abc' WHERE name='incarnation'",
        "UPDATE rifl_meta SET value=x'00' WHERE name='next_client_id'",
        "UPDATE rifl_meta SET value=1 WHERE name='next_client_id'",
        "UPDATE rifl_meta SET value=1 WHERE name='store_id'",
        "DELETE FROM rifl_meta",
        "UPDATE rifl_secret SET value=x'00'",
        "UPDATE rifl_session SET state='zzz'",
        "UPDATE rifl_session SET retention_s='zzz'",
        "UPDATE rifl_session SET name=x'ff'",
        "UPDATE rifl_client SET completed=x'0000'",
        "UPDATE rifl_client SET completed='text'",
        "UPDATE rifl_client SET first_incomplete='x'",
        "UPDATE rifl_client SET client_id=0",
        "UPDATE rifl_call SET identity=1.5 WHERE identity=30",
        "DROP TABLE rifl_call",
        "DROP TABLE rifl_session",
        "ALTER TABLE rifl_client RENAME COLUMN completed TO other",
    ],
)
def test_values_that_make_no_sense_are_corrupt(copy, statement):
    """Damage that the pages do not show is StoreCorrupt, never another error (§6)."""
    with sqlite3.connect(copy) as connection:
        connection.execute(statement)
    connection.close()
    with pytest.raises(StoreCorrupt):
        _open(copy)


def test_an_unreadable_record_is_not_run_again(copy):
    """A record whose bytes are damaged is answered as unknown, never run anew (§4)."""
    with sqlite3.connect(copy) as connection:
        (client,) = connection.execute("SELECT client_id FROM rifl_client").fetchone()
        connection.execute("UPDATE rifl_call SET record=x'ffff'")
    connection.close()
    opened = Opened(_Place(copy), window=100)
    with pytest.raises(RecordPending):
        opened.answer(call(client, 20))
    opened.close()


def test_a_newer_schema_is_refused(copy):
    """A store of a newer release is StoreSchemaTooNew, and is not touched (§6)."""
    with sqlite3.connect(copy) as connection:
        connection.execute("UPDATE rifl_meta SET value=99 WHERE name='schema_version'")
    connection.close()
    with pytest.raises(StoreSchemaTooNew, match="99"):
        _open(copy)
    with sqlite3.connect(copy) as connection:
        assert connection.execute("SELECT count(*) FROM rifl_call").fetchone()[0] > 30
    connection.close()


def test_places_that_cannot_be_opened_are_said(tmp_path):
    """No such folder, a folder, no such store: a typed error each (§6)."""
    for file in (tmp_path / "no" / "such" / "store.db", tmp_path):
        with pytest.raises(StoreUnreachable):
            _open(file)
    for url in ("sqlite:", "sqlite://", "sqlite:///", "nonsense", "", "memory"):
        with pytest.raises(UnsupportedStore):
            rifl.Deduplicator(url)


_OWNER = """
import sys, rifl
with rifl.Deduplicator(sys.argv[1]):
    print("open", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_told_who_owns_the_store(tmp_path):
    """While a process owns the store another is StoreLocked and told its pid (§6)."""
    url = f"sqlite:///{tmp_path}/store.db"
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        try:
            assert owner.stdout.readline() == b"open\n"
            with pytest.raises(StoreLocked, match=str(owner.pid)):
                rifl.Deduplicator(url, lock_timeout_s=0.2)
            with pytest.raises(StoreLocked, match=str(owner.pid)):
                rifl.Deduplicator(
                    f"sqlite:///{tmp_path}/mine.db",
                    methods={"/s.S/M": rifl.MethodPolicy(kind=rifl.Kind.ATOMIC, database=url)},
                    lock_timeout_s=0.2,
                )
        finally:
            # However it ends, the store is free.
            owner.kill()
            owner.wait()
    rifl.Deduplicator(url, lock_timeout_s=0.2).close()


def test_a_second_owner_waits_its_time(tmp_path):
    """A process that lets go in time is succeeded without an error (§6)."""
    url = f"sqlite:///{tmp_path}/store.db"
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        try:
            assert owner.stdout.readline() == b"open\n"
            owner.stdin.close()
            rifl.Deduplicator(url, lock_timeout_s=20).close()
        finally:
            owner.kill()
            owner.wait()
