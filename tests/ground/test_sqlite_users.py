"""Harms to a SQLite file, each noticed by all who keep something in it (DESIGN §6)."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from _rifl_ground.sqlite import long_wal, opening
from _rifl_ground.sqlite.failures import Stopped
from tests.ground.sqlite_users import USERS, SqliteUser, outcome
from tests.helpers.pages import page
from tests.helpers.processes import started
from tests.helpers.waiting import until


@pytest.fixture(params=USERS)
def user(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqliteUser]:
    """One who has a file open."""
    made = USERS[request.param](tmp_path)
    yield made
    made.close()


def _refused(user: SqliteUser) -> None:
    """It says so, and goes on saying so."""
    for _ in range(2):
        assert outcome(user.write) in user.refused


def _older(user: SqliteUser) -> bytes:
    """Write, and return the file as a backup of before would have it."""
    user.write()
    user.close()
    older = user.file.read_bytes()
    user.open()
    for _ in range(3):
        user.write()
    user.close()
    user.open()
    user.write()
    return older


@pytest.mark.parametrize("name", USERS)
def test_a_sync_that_failed_is_not_tried_again(tmp_path: Path, name: str) -> None:
    """The next one would succeed, and say that what is lost is on the disk (§6)."""
    with started(
        "tests.ground.sqlite_users", name, str(tmp_path), log=tmp_path / "errors"
    ) as process:
        synced, *told = [process.line(60) for _ in range(5)]
    # Without a WAL a commit is the removal of a name, which the folder keeps.
    assert synced.split()[-1] == ("main.db-wal" if USERS[name].wal else "data")
    assert told[0] != "ok"
    assert set(told[1:3]) <= set(USERS[name].refused), told
    # What the kernel threw away is not read back from its WAL into the file.
    assert told[3] == f"closed {USERS[name].wal}"


@pytest.mark.parametrize("name", USERS)
def test_a_forked_child_does_not_open_what_its_parent_has_open(tmp_path: Path, name: str) -> None:
    """SQLite would take the parent's locks for the child's (§6)."""
    with started(
        "tests.ground.sqlite_users", name, str(tmp_path), "fork", log=tmp_path / "errors"
    ) as process:
        assert process.line(60) in (*USERS[name].refused, "StoreLocked", "ForkedProcess")


def test_a_file_that_an_older_one_was_copied_over_is_noticed(user: SqliteUser) -> None:
    """In place: its names, and the files that they are of, stay as they were (§6)."""
    user.file.write_bytes(_older(user))
    _refused(user)


def _removed(file: Path) -> None:
    file.unlink()


def _renamed(file: Path) -> None:
    file.rename(file.with_name("elsewhere.db"))


def _renamed_over(file: Path) -> None:
    shutil.copy(file, file.with_name("copy.db"))
    file.with_name("copy.db").replace(file)


def _folder_renamed(file: Path) -> None:
    file.parent.rename(file.parents[1] / "other")


@pytest.mark.parametrize("harm", [_removed, _renamed, _renamed_over, _folder_renamed])
def test_a_file_that_is_gone_or_another_is_noticed(
    user: SqliteUser, harm: Callable[[Path], None]
) -> None:
    """What is written to it has no name any more (§6)."""
    user.write()
    harm(user.file)
    _refused(user)


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_a_file_beside_it_that_is_gone_is_noticed(user: SqliteUser, suffix: str) -> None:
    """What is committed without its ``-wal`` is nowhere after a restart (§6)."""
    if not user.wal:
        pytest.skip("it has none")
    user.write()
    os.unlink(f"{user.file}{suffix}")
    _refused(user)


@pytest.mark.parametrize("size", [0, 10, 32, 5000, -1])
def test_a_wal_that_was_cut_off_is_noticed(user: SqliteUser, size: int) -> None:
    """What SQLite writes beyond the hole is lost with a restart (§6)."""
    if not user.wal:
        pytest.skip("it has none")
    for _ in range(5):
        user.write()
    wal = Path(f"{user.file}-wal")
    os.truncate(wal, size if size >= 0 else wal.stat().st_size + size)
    _refused(user)


@pytest.mark.parametrize("name", ["store", "log", "group"])
def test_a_wal_is_bounded_while_somebody_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It would fill the disk; without the reader it is emptied, and all goes on (§6)."""
    bounds = {"LONG_WAL_BYTES": 200_000, "_WAL_STEP_BYTES": 50_000, "WAL_BYTES": 500_000}
    for bound, size in bounds.items():
        monkeypatch.setattr(long_wal, bound, size)
    user = USERS[name](tmp_path)
    user.write()
    with closing(sqlite3.connect(user.file)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
        told = next(said for said in iter(lambda: outcome(user.write), "") if said != "ok")
    assert told in ("StoreUnavailable", "LogFull", "LogFull")
    assert Path(f"{user.file}-wal").stat().st_size < 700_000
    until(lambda: outcome(user.write) == "ok", "it goes on")
    assert Path(f"{user.file}-wal").stat().st_size < 200_000
    user.close()


@pytest.mark.parametrize("name", ["consumer", "consumer-wal"])
@pytest.mark.parametrize("before", [0, 2])
def test_a_file_that_lost_its_wal_while_it_was_closed_is_noticed(
    tmp_path: Path, name: str, before: int
) -> None:
    """A consumer opens it again after an error, and may not find less than it left (§6)."""
    user = USERS[name](tmp_path)
    for _ in range(before):
        user.write()
        user.close()
    alone = user.file.read_bytes()
    user.write()
    user.close()
    user.file.write_bytes(alone)
    _refused(user)
    user.close()


def test_a_checkpoint_of_somebody_else_is_no_harm(user: SqliteUser) -> None:
    """Connections of the application's bring the WAL into the file, and vacuum it (§6)."""
    with closing(sqlite3.connect(user.file, isolation_level=None)) as other:
        for mode in ("PASSIVE", "FULL", "RESTART", "TRUNCATE") * 2:
            user.write()
            other.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        other.execute("CREATE TABLE dull AS SELECT randomblob(50000)")
        other.execute("DROP TABLE dull")
        other.execute("VACUUM")
        user.write()
    user.write()


def test_a_build_that_does_not_sync_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite tells how it was built (docs/reference/sqlite.md)."""
    monkeypatch.setattr(opening, "_WEAKENING", {"NO_SYNC", "SYSTEM_MALLOC"})
    with pytest.raises(Stopped, match="built with SYSTEM_MALLOC"):
        opening.connect(tmp_path / "a.db", opening.Connection, busy_s=1.0, create=True)
    assert outcome(lambda: USERS["log"](tmp_path)) == "LogStopped"


# They decide about a user's schema, room, memory and secrecy, or only read.
_LEFT = """
analysis_limit application_id auto_vacuum automatic_index cache_size cache_spill
case_sensitive_like cell_size_check collation_list compile_options count_changes
data_version database_list default_cache_size defer_foreign_keys empty_result_callbacks
encoding foreign_key_check foreign_key_list foreign_keys freelist_count
full_column_names function_list hard_heap_limit ignore_check_constraints
incremental_vacuum index_info index_list index_xinfo legacy_alter_table max_page_count
module_list optimize page_count page_size pragma_list recursive_triggers
reverse_unordered_selects schema_version secure_delete short_column_names shrink_memory
soft_heap_limit table_info table_list table_xinfo temp_store temp_store_directory
threads trusted_schema user_version
"""


def test_every_setting_of_sqlite_is_judged() -> None:
    """docs/reference/sqlite.md has each pragma that this SQLite knows, but for those left alone."""
    text = page("sqlite.md").read_text()
    with closing(sqlite3.connect(":memory:")) as connection:
        known = {name for (name,) in connection.execute("PRAGMA pragma_list")}
    assert {name for name in known - set(_LEFT.split()) if f"`{name}`" not in text} == set()
