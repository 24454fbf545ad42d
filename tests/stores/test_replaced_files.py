"""Replaced files of a SQLite store: no answered call runs again (DESIGN §6)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import aiosqlite
import pytest

import rifl
from _rifl_ground.sqlite import mark
from chaos.run.slow_disk import slow_disks
from lease_server import LeaseAuthority
from lease_server._errors import StorageUnavailable
from rifl._stores import StoreLost, WrongDatabase, open_store
from rifl._stores.opening import open_inspection
from rifl._stores.sqlite.note_file import note_path, read_note
from rifl._stores.sqlite.schema import accept_copy, connect
from rifl.core._serving.bounds import Bounds
from rifl.core._serving.policy import MethodPolicies
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import RecordPending, StaleRpc, StoreUnavailable
from rifl.core._shared.identity import RpcId
from tests.stores.conformance import FIRST, IDEMPOTENT, PLAIN, TERM_S, call, keyed, wait
from tests.stores.test_sqlite import ATOMIC, Files


class OneFile(Files):
    """The same without methods whose records are elsewhere."""

    def open(self) -> None:
        """Open, or open again."""
        self.store = open_store(f"sqlite:///{self.main}")
        self.authority = LeaseAuthority(
            self.store.leases, term_s=TERM_S, clock=lambda: self.now, id_block=4
        )
        policies = MethodPolicies({}, "plain")
        self.store.bind(self.authority, policies, clock=lambda: self.now, bounds=Bounds(window=16))


_SERVER = """
import os, signal, sys
from pathlib import Path
from tests.stores.conformance import call
from tests.stores.test_replaced_files import ATOMIC, OneFile

files = OneFile(Path(sys.argv[1]))
client = files.client()
for seq in range(1, 6):
    files.atomic(call(client, seq), ATOMIC)
print(client, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def files(tmp_path: Path) -> Iterator[OneFile]:
    """A store over a file in a folder of its own."""
    (tmp_path / "data").mkdir()
    files = OneFile(tmp_path / "data")
    yield files
    files.store.close()


def _complete(files: OneFile, seq: int, client: int) -> None:
    attempt = files.begin(call(client, seq, first=max(1, seq - 3)), IDEMPOTENT)
    wait(files.store.finish(attempt, FIRST))


def _removed(main: Path) -> None:
    main.unlink()


def _renamed(main: Path) -> None:
    main.rename(main.with_name("elsewhere.db"))


def _renamed_over(main: Path) -> None:
    shutil.copy(main, main.with_name("copy.db"))
    os.replace(main.with_name("copy.db"), main)


def _copied_over(main: Path) -> None:
    older = main.parents[1] / "older.db"
    main.write_bytes(older.read_bytes())


def _log_removed(main: Path) -> None:
    main.with_name(main.name + "-wal").unlink()


def _index_removed(main: Path) -> None:
    main.with_name(main.name + "-shm").unlink()


def _folder_renamed(main: Path) -> None:
    main.parent.rename(main.parents[1] / "other")


HARMS = [
    _removed,
    _renamed,
    _renamed_over,
    _copied_over,
    _log_removed,
    _index_removed,
    _folder_renamed,
]


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A store of before, with the same id, as a backup holds it."""
    data = tmp_path / "data"
    data.mkdir()
    before = OneFile(data)
    _complete(before, 1, before.client())
    before.store.close()
    return Path(shutil.copy(before.main, tmp_path / "older.db"))


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize(
    "policy", [PLAIN, IDEMPOTENT, ATOMIC], ids=["plain", "idempotent", "atomic"]
)
def test_no_answer_rests_on_a_file_that_is_gone(
    older: Path, harm: Callable[[Path], None], policy: rifl.MethodPolicy
) -> None:
    """Removed, renamed, copied over: nothing is answered as executed, and the store stops (§6)."""
    files = OneFile(older.parent / "data")
    client = files.client()
    _complete(files, 1, client)
    connection = files.connect(files.main)
    connection.commit()
    running = [files.store.claim(call(client, seq), policy).attempt for seq in (2, 3)]
    first, second = running
    if policy is ATOMIC:
        connection.execute("INSERT INTO effect VALUES ('first')")
        files.store.transactions.record(first, FIRST, connection)
    harm(files.main)
    if policy is PLAIN:
        for attempt in running:
            with pytest.raises(StoreUnavailable):
                wait(files.store.start(attempt))
    elif policy is IDEMPOTENT:
        for attempt in running:
            with pytest.raises(RecordPending):
                wait(files.store.finish(attempt, FIRST))
    else:
        # Whatever becomes of this one's commit, nobody says that it was not executed.
        with contextlib.suppress(sqlite3.Error):
            connection.commit()
        with pytest.raises(RecordPending):
            wait(files.store.committed(first))
        with pytest.raises(WrongDatabase):
            files.store.transactions.record(second, FIRST, files.connect(":memory:"))
    with pytest.raises(StoreUnavailable):
        files.store.claim(call(client, 9), IDEMPOTENT)
    connection.close()
    files.store.close()


@pytest.mark.parametrize("harm", HARMS)
def test_an_idle_store_notices_too(older: Path, harm: Callable[[Path], None]) -> None:
    """The sweeper looks at the files, so that health tells before a call is lost (§6)."""
    files = OneFile(older.parent / "data")
    client = files.client()
    harm(files.main)
    files.store.expire_keys()
    with pytest.raises(StoreUnavailable):
        files.store.claim(call(client, 1), IDEMPOTENT)
    files.store.close()


@pytest.mark.parametrize("harm", HARMS)
def test_what_handlers_share_is_not_answered_either(
    older: Path, harm: Callable[[Path], None]
) -> None:
    """A shared commit into a file that is gone is unknown, never executed (§6)."""
    files = OneFile(older.parent / "data")
    attempt = files.begin(call(files.client(), 1), ATOMIC)
    block = files.store.shared_blocks.block(attempt, None)
    connection = block.__enter__()
    files.store.transactions.record(attempt, FIRST, connection)
    harm(files.main)
    with pytest.raises(RecordPending):
        block.__exit__(None, None, None)
    files.store.close()


@pytest.mark.parametrize("harm", [_removed, _renamed_over, _copied_over])
def test_no_block_of_ids_is_granted_from_a_file_that_is_gone(
    older: Path, harm: Callable[[Path], None]
) -> None:
    """A block that is in no file would be granted again after a restart (§5)."""
    files = OneFile(older.parent / "data")
    harm(files.main)
    with pytest.raises(StorageUnavailable, match="not the file any more"):
        files.store.leases.reserve_ids(10)
    files.store.close()


def test_a_checkpoint_of_somebody_else_is_no_harm(files: OneFile) -> None:
    """Connections of the application's move the WAL into the file, and vacuum it (§6)."""
    client = files.client()
    connection = files.connect(files.main)
    for seq in range(1, 40):
        _complete(files, seq, client)
        connection.execute("INSERT INTO effect VALUES (randomblob(20000))")
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if seq % 10 == 0:
            connection.execute("DELETE FROM effect")
            connection.commit()
            connection.execute("VACUUM")
    connection.close()
    _complete(files, 40, client)


def test_a_checkpoint_that_takes_its_time_is_no_harm(files: OneFile) -> None:
    """Half-way, the file says that it has pages that are still to be written (§6)."""
    client = files.client()
    _complete(files, 1, client)
    size = _half_checkpointed(files)
    assert files.main.stat().st_size == size
    for seq in range(2, 5):
        _complete(files, seq, client)


# A database of many tables, vacuumed; then it brings that into the file when it is told to.
_VACUUMING = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA wal_autocheckpoint=0")
connection.execute("DELETE FROM dull")
connection.execute("VACUUM")
for _ in range(2):
    print(flush=True)
    sys.stdin.readline()
    connection.execute("PRAGMA wal_checkpoint")
"""


@contextlib.contextmanager
def _half_vacuumed(folder: Path) -> Iterator[tuple[OneFile, int]]:
    """A store with an answered call, while a VACUUM is brought into its file, page by page."""
    (folder / "data").mkdir()
    with contextlib.closing(connect(folder / "data" / "main.db")) as before:
        before.execute("CREATE TABLE dull (bytes BLOB)")
        before.execute("INSERT INTO dull VALUES (randomblob(200000))")
        for number in range(40):
            before.execute(f"CREATE TABLE dull_{number} (bytes BLOB)")
    files = OneFile(folder / "data")
    client = files.client()
    _complete(files, 1, client)
    disk = slow_disks(["it"], folder)["it"]
    with subprocess.Popen(
        [sys.executable, "-c", _VACUUMING, str(files.main)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **disk.environment},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        disk.slow_down(20, 0, 0)
        print(file=process.stdin, flush=True)
        while not _half_way(files.main):
            assert process.poll() is None
        yield files, client
        disk.slow_down(-20, 0, 0)
        process.stdout.readline()
        _complete(files, 9, client)
        process.stdin.close()
    files.store.close()


def test_a_vacuum_that_takes_its_time_is_no_harm(tmp_path: Path) -> None:
    """All of the schema is elsewhere, and what its first page names is not written yet (§6)."""
    with _half_vacuumed(tmp_path) as (files, client):
        _complete(files, 2, client)


def test_another_database_copied_over_is_waited_for_no_longer_than_it_is_written(
    files: OneFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that has no mark, and that nobody writes to any more, is no checkpoint's (§6)."""
    monkeypatch.setattr(mark, "_STILL_S", 0.3)
    client = files.client()
    _complete(files, 1, client)
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE a (b)")
    files.main.write_bytes((tmp_path / "other.db").read_bytes())
    with pytest.raises(RecordPending):
        _complete(files, 2, client)


def _half_way(main: Path) -> bool:
    """Whether the one file, without its WAL, cannot be read just now."""
    with contextlib.closing(
        sqlite3.connect(f"{main.as_uri()}?mode=ro&immutable=1", uri=True)
    ) as alone:
        alone.execute("PRAGMA writable_schema=ON")
        try:
            alone.execute("SELECT value FROM rifl_meta").fetchall()
        except sqlite3.Error:
            return True
        return False


# -- the next opening ----------------------------------------------------------------------


def _half_checkpointed(files: OneFile) -> int:
    """Let the file grow by a checkpoint that gets no further than its first pages; its size."""
    with contextlib.closing(files.connect(files.main)) as connection:
        connection.execute("PRAGMA wal_checkpoint")
        size = files.main.stat().st_size
        connection.execute("INSERT INTO effect VALUES (randomblob(400000))")
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint")
    assert files.main.stat().st_size > size
    os.truncate(files.main, size)
    return size


def _killed(folder: Path) -> int:
    """A server that answered five calls and was killed; its client."""
    done = subprocess.run(
        [sys.executable, "-c", _SERVER, str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return int(done.stdout)


def test_a_killed_server_s_files_are_all_there_is_to_keep(tmp_path: Path) -> None:
    """A crash leaves what was answered, and the next opening takes it (§6)."""
    client = _killed(tmp_path)
    files = OneFile(tmp_path)
    assert files.store.claim(call(client, 5), ATOMIC).verdict is Verdict.COMPLETED
    files.store.close()
    note = read_note(files.main)
    assert note is not None
    assert note.clean


def test_a_server_killed_in_the_middle_of_a_checkpoint_opens_its_files(tmp_path: Path) -> None:
    """The log beside the file has all of it: nothing is missing (§6)."""
    (tmp_path / "killed").mkdir()
    client = _killed(tmp_path / "killed")
    main = tmp_path / "killed" / "main.db"
    size = main.stat().st_size
    with contextlib.closing(sqlite3.connect(main)) as connection:
        connection.execute("PRAGMA wal_checkpoint")
        assert main.stat().st_size > size
        folder = shutil.copytree(tmp_path / "killed", tmp_path / "left")
    os.truncate(folder / "main.db", size)
    files = OneFile(folder)
    for seq in (4, 5):
        assert files.store.claim(call(client, seq), ATOMIC).verdict is Verdict.COMPLETED
    files.store.close()


def test_a_machine_that_died_in_the_middle_of_a_vacuum_is_told_what_to_do(tmp_path: Path) -> None:
    """The log has all that is missing, and nobody is told to remove it (§6)."""
    with _half_vacuumed(tmp_path) as (files, client):
        left = Path(shutil.copytree(files.main.parent, tmp_path / "left"))
        assert _half_way(left / "main.db")
    with pytest.raises(StoreLost, match=r'half-way.* sqlite3 .*left/main\.db "PRAGMA wal_checkp'):
        OneFile(left)
    with contextlib.closing(sqlite3.connect(left / "main.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint")
    again = OneFile(left)
    assert again.store.claim(call(client, 1), IDEMPOTENT).verdict is Verdict.COMPLETED
    again.store.close()


def test_a_store_without_its_wal_is_refused(tmp_path: Path) -> None:
    """Left dirty, and its -wal is missing: answered calls are missing too (§6)."""
    _killed(tmp_path)
    (tmp_path / "main.db-wal").unlink()
    for _ in range(2):
        with pytest.raises(StoreLost, match=r"lacks \d commits"):
            OneFile(tmp_path)
    note_path(tmp_path / "main.db").unlink()
    for _ in range(2):
        with pytest.raises(StoreLost, match="in use"):
            OneFile(tmp_path)


def test_an_older_copy_beside_the_wal_of_a_newer_file_is_refused(tmp_path: Path) -> None:
    """SQLite would mix the two, and what a checkpoint had brought in would be missing (§6)."""
    (tmp_path / "a").mkdir()
    files = OneFile(tmp_path / "a")
    client = files.client()
    _complete(files, 1, client)
    older = Path(shutil.copy(files.main, tmp_path / "older.db"))
    other = files.connect(files.main)
    for seq in range(2, 90):
        _complete(files, seq, client)
    other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    other.close()
    for seq in range(90, 100):
        _complete(files, seq, client)
    for folder, main in (("b", older), ("c", files.main)):
        (tmp_path / folder).mkdir(exist_ok=True)
        # As a kill leaves them.
        for name, source in (
            ("main.db", main),
            ("main.db-wal", f"{files.main}-wal"),
            ("main.db.rifl", note_path(files.main)),
        ):
            shutil.copy(source, tmp_path / folder / name)
    files.store.close()
    for _ in range(2):
        with pytest.raises(StoreLost, match="older copy than the -wal"):
            OneFile(tmp_path / "b")
    whole = OneFile(tmp_path / "c")
    assert whole.store.claim(call(client, 99, first=96), IDEMPOTENT).verdict is Verdict.COMPLETED
    whole.store.close()


def test_somebody_may_look_into_what_a_crash_left(tmp_path: Path) -> None:
    """SQLite's own shell brings the WAL into the file and removes it: nothing is missing (§6)."""
    client = _killed(tmp_path)
    connection = sqlite3.connect(tmp_path / "main.db")
    assert connection.execute("SELECT count(*) FROM rifl_call").fetchone() == (5,)
    connection.close()
    assert not (tmp_path / "main.db-wal").exists()
    files = OneFile(tmp_path)
    assert files.store.claim(call(client, 5), ATOMIC).verdict is Verdict.COMPLETED
    files.store.close()


def test_an_older_copy_is_refused(tmp_path: Path) -> None:
    """A backup put back while the server was down lacks what was answered since (§5, §6)."""
    files = OneFile(tmp_path)
    client = files.client()
    _complete(files, 1, client)
    files.store.close()
    shutil.copy(files.main, tmp_path / "backup")
    files.open()
    attempt = files.begin(keyed(files.authority.open_session("s").client_id, b"k"), IDEMPOTENT)
    wait(files.store.finish(attempt, FIRST))
    files.store.close()
    shutil.copy(tmp_path / "backup", files.main)
    with pytest.raises(StoreLost, match="older copy"):
        files.open()


@pytest.mark.parametrize("emptied", [True, False])
def test_a_store_that_is_gone_is_not_begun_anew(tmp_path: Path, emptied: bool) -> None:
    """Its file removed or emptied, the store is refused and no other is made (§6)."""
    files = OneFile(tmp_path)
    _complete(files, 1, files.client())
    files.store.close()
    files.main.unlink()
    if emptied:
        files.main.touch()
    for _ in range(2):
        with pytest.raises(StoreLost, match="begin anew"):
            files.open()
    assert files.main.exists() is emptied
    note_path(files.main).unlink()
    files.open()
    files.store.close()


def test_another_store_s_file_is_refused(tmp_path: Path) -> None:
    """A file of another store under the same name is not this store (§6)."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        files = OneFile(tmp_path / name)
        _complete(files, 1, files.client())
        files.store.close()
    shutil.copy(tmp_path / "a" / "main.db", tmp_path / "b" / "main.db")
    with pytest.raises(StoreLost, match="another store"):
        files.open()


def test_a_closed_store_may_be_moved(tmp_path: Path) -> None:
    """The one file of a store that was closed well is all of it (§6)."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    files = OneFile(tmp_path / "a")
    client = files.client()
    _complete(files, 1, client)
    files.store.close()
    shutil.move(files.main, tmp_path / "b" / "main.db")
    moved = OneFile(tmp_path / "b")
    assert moved.store.claim(call(client, 1), IDEMPOTENT).verdict is Verdict.COMPLETED
    moved.store.close()


def test_a_backup_of_a_running_store_is_taken_on_an_operator_s_word(tmp_path: Path) -> None:
    """SQLite's own backup is refused as it is, and taken once it is accepted (§6)."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    files = OneFile(tmp_path / "a")
    client = files.client()
    _complete(files, 1, client)
    backup = tmp_path / "b" / "main.db"
    source, target = sqlite3.connect(files.main), sqlite3.connect(backup)
    source.backup(target)
    source.close()
    target.close()
    _complete(files, 2, client)
    files.store.close()
    with pytest.raises(StoreLost, match="in use"):
        OneFile(tmp_path / "b")
    # Over the store itself, too.
    shutil.copy(backup, files.main)
    for folder in ("a", "b"):
        main = tmp_path / folder / "main.db"
        with pytest.raises(StoreLost):
            OneFile(main.parent)
        with contextlib.closing(connect(main)) as connection:
            accept_copy(main, connection)
        restored = OneFile(main.parent)
        assert restored.store.claim(call(client, 1), IDEMPOTENT).verdict is Verdict.COMPLETED
        restored.store.close()


def test_releasing_the_last_call_is_no_loss(tmp_path: Path) -> None:
    """What an operator removes by hand does not look like an older copy (§6)."""
    client = _killed(tmp_path)
    with contextlib.closing(open_inspection(f"sqlite:///{tmp_path / 'main.db'}")) as store:
        assert store.release(RpcId(client, 5))
    files = OneFile(tmp_path)
    assert files.store.claim(call(client, 5), ATOMIC).verdict is Verdict.NEW
    files.store.close()


# -- whose connection it is ----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite3", "aiosqlite"])
def test_a_connection_to_another_file_of_that_name_is_refused(tmp_path: Path, kind: str) -> None:
    """A pooled connection to the file that had the name before records nothing there (§6)."""
    files = OneFile(tmp_path)
    old = files.connect(files.main)
    old.commit()
    files.store.close()
    for left in tmp_path.iterdir():
        left.unlink()
    files.open()
    attempt = files.begin(call(files.client(), 1), ATOMIC)
    old.execute("INSERT INTO effect VALUES ('lost')")

    async def record() -> None:
        async with aiosqlite.Connection(lambda: old, 64) as wrapped:
            await files.store.transactions.record_async(attempt, FIRST, wrapped)

    with pytest.raises(StaleRpc, match="another file"):
        files.store.transactions.record(attempt, FIRST, old) if kind == "sqlite3" else asyncio.run(
            record()
        )
    with contextlib.suppress(sqlite3.ProgrammingError):
        old.rollback()
        old.close()
    files.store.close()
