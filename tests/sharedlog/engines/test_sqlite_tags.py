"""Tags of a SQLite log, their cost counted: pages, and steps of SQLite's machine."""

import contextlib
import sqlite3

import pytest

from sharedlog._core.commit import Commit, NewEntry
from sharedlog._core.errors import CorruptLog
from sharedlog._engines.sqlite import SqliteEngine, create, rows
from sharedlog._engines.sqlite.tags import UNINDEXED

PAGE, FRAME = 4096, 24


@pytest.fixture
def made(tmp_path):
    """Makes a log of entries that have the tag ``rare`` every so often, and ``common`` else."""
    with contextlib.ExitStack() as stack:

        def make(count, every, body=b"body"):
            path = tmp_path / f"{count}-{every}.db"
            create(path)
            engine = stack.enter_context(contextlib.closing(SqliteEngine(path)))
            for first in range(0, count, 5000):
                numbers = range(first, min(count, first + 5000))
                tags = [("rare" if number % every == 0 else "common",) for number in numbers]
                engine.commit(Commit(entries=tuple(NewEntry(body, each) for each in tags)))
            return path, engine

        yield make


def steps(path, act):
    """How many steps of its machine SQLite takes for it, in a transaction."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        count = 0

        def step():
            nonlocal count
            count += 1

        act(connection)
        connection.set_progress_handler(step, 1)
        act(connection)
        connection.set_progress_handler(None, 1)
        return count


def test_a_tagged_read_finds_all_in_the_index_and_behind_it(tmp_path):
    """Exactly the entries with the tag, in order, wherever it begins and the index ends (L5)."""
    create(tmp_path / "log.db")
    with contextlib.closing(SqliteEngine(tmp_path / "log.db")) as engine:
        written = []
        for number in range(2 * UNINDEXED + 50):
            tags = tuple(dict.fromkeys((f"t{number % 3}", f"t{number % 5}")))
            entries = tuple(NewEntry(b"%d" % each, tags) for each in range(1 + number % 2))
            engine.commit(Commit(entries=entries))
            written += [tags] * len(entries)
            if number % 97 == 0:
                compare(engine, written, 0)
        engine.remove(UNINDEXED + 7)
        compare(engine, written, UNINDEXED + 7)
        engine.remove(len(written) - 3)
        compare(engine, written, len(written) - 3)


def compare(engine, written, removed):
    """Hold what is read by tags against what was written."""
    for tag in ("t0", "t4", "t", "none"):
        wanted = [lsn for lsn, tags in enumerate(written, 1) if tag in tags and lsn > removed]
        for after in {removed, max(removed, len(written) - 5), max(removed, len(written) // 2)}:
            for limit in (1, 10, 1000):
                found = engine.read(after, limit, tag).rows
                assert [row.lsn for row in found] == [n for n in wanted if n > after][:limit]


def test_a_tagged_read_costs_what_it_returns(made):
    """Not what the log holds beside it (L5)."""
    few, many = made(100, 1), made(20_000, 200)

    def read(connection):
        found, _ = rows.read_tagged(connection, "rare", 0, 100, rows.head_of(connection))
        assert len(found) == 100

    assert steps(many[0], read) < 1.2 * steps(few[0], read)


def test_opening_a_log_costs_the_same_whatever_it_holds(made):
    """Where it stands is looked up, not counted."""
    few, many = made(100, 1), made(20_000, 200)

    def look(connection):
        rows.check(connection, "the log")
        rows.head_of(connection)

    assert steps(many[0], look) == steps(few[0], look)


def test_an_append_of_one_message_writes_its_row_and_nothing_else(made):
    """One page a commit; the index follows for many at once (§18)."""
    path, engine = made(1, 1)
    wal = path.with_name(path.name + "-wal")
    written = []
    for _ in range(60):
        before = wal.stat().st_size
        engine.commit(Commit(entries=(NewEntry(b"body", ("rare", "common")),)))
        written.append((wal.stat().st_size - before) / (PAGE + FRAME))
    assert sorted(written)[30] == 1


@pytest.mark.parametrize("indexed", [False, True])
def test_tags_that_are_damaged_are_never_believed(tmp_path, indexed):
    """Neither by whoever reads them nor by the index (L5)."""
    create(tmp_path / "log.db")
    with contextlib.closing(SqliteEngine(tmp_path / "log.db")) as engine:
        for tag in ("t", "u", "t"):
            engine.commit(Commit(entries=(NewEntry(b"body", (tag,)),)))
        if indexed:
            engine.commit(Commit(entries=(NewEntry(b"body", ("t",)),) * UNINDEXED))
        with contextlib.closing(sqlite3.connect(tmp_path / "log.db")) as connection, connection:
            connection.execute("UPDATE sharedlog_entry SET tags = 't' WHERE lsn = 2")
            connection.execute("UPDATE sharedlog_entry SET tags = 'u' WHERE lsn = 3")
        for tag in ("t", "u"):
            with pytest.raises(CorruptLog):
                engine.read(0, 1000, tag)
        if not indexed:
            with pytest.raises(CorruptLog):
                engine.commit(Commit(entries=(NewEntry(b"body", ("t",)),) * UNINDEXED))


def test_two_processes_index_what_either_wrote(tmp_path):
    """What one remembers of its own appends is not all that the index is to have (L5)."""
    create(tmp_path / "log.db")
    with (
        contextlib.closing(SqliteEngine(tmp_path / "log.db")) as one,
        contextlib.closing(SqliteEngine(tmp_path / "log.db")) as other,
    ):
        written = []
        for number in range(2 * UNINDEXED + 50):
            tags = (f"t{number % 5}",)
            # By turns of several lengths: the index is written by either.
            (one, other)[number // 7 % 3 == 0].commit(Commit(entries=(NewEntry(b"body", tags),)))
            written.append(tags)
        compare(one, written, 0)
        compare(other, written, 0)


def test_a_seldom_tag_is_found_by_few_rows_of_the_index(tmp_path):
    """Not by one for each of its entries; what is trimmed of such a row is not read (L5)."""
    create(tmp_path / "log.db")
    with contextlib.closing(SqliteEngine(tmp_path / "log.db")) as engine:

        def append(passes):
            for _ in range(passes):
                rest = (NewEntry(b"body", ("common",)),) * (UNINDEXED - 1)
                engine.commit(Commit(entries=(NewEntry(b"body", ("rare",)), *rest)))

        def found(after):
            return [row.lsn for row in engine.read(after, 1000, "rare").rows]

        wanted = [1 + UNINDEXED * number for number in range(110)]
        append(100)
        assert found(0) == wanted[:100]
        assert rows_of(tmp_path / "log.db", "rare") == 2
        engine.remove(wanted[10])
        assert found(wanted[10]) == wanted[11:100]
        append(10)
        assert found(wanted[10]) == wanted[11:]
        engine.remove(wanted[90])
        assert found(wanted[90]) == wanted[91:]
        engine.remove(wanted[-1] + 1)
        assert found(wanted[-1] + 1) == []
        assert rows_of(tmp_path / "log.db", "rare") == 0


def test_an_append_leaves_a_damaged_row_of_the_index_to_its_readers(tmp_path):
    """It is no reason to refuse the append, and is not written over (L5)."""
    create(tmp_path / "log.db")
    entries = (NewEntry(b"body", ("rare",)), *((NewEntry(b"body", ("common",)),) * UNINDEXED))
    with contextlib.closing(SqliteEngine(tmp_path / "log.db")) as engine:
        engine.commit(Commit(entries=entries))
        with contextlib.closing(sqlite3.connect(tmp_path / "log.db")) as connection, connection:
            connection.execute("UPDATE sharedlog_tag SET below = x'00' WHERE tag = 'rare'")
        engine.commit(Commit(entries=entries))
        assert rows_of(tmp_path / "log.db", "rare") == 2
        with pytest.raises(CorruptLog):
            engine.read(0, 1000, "rare")


def rows_of(path, tag):
    """How many rows of the index a tag has."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        sql = "SELECT count(*) FROM sharedlog_tag WHERE tag = ?"
        return connection.execute(sql, (tag,)).fetchone()[0]
