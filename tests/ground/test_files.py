"""Files that are made are private, and no file is opened through a planted link (DESIGN §6)."""

from __future__ import annotations

import os
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import structlog

import rifl
import sharedlog
from curp.log import create_log, open_engine
from curp.witness import WitnessJournal
from rifl._cli import main
from rifl._stores import StoreError, open_store
from rifl._stores.sqlite.note_file import note_path
from sharedlog._consumer.sqlite import SqliteLane
from sharedlog._core.commit import Commit, Condition, Put


def _store(folder: Path) -> None:
    with closing(rifl.Deduplicator(f"sqlite:///{folder / 'store.db'}")):
        _look(folder)


def _exported(suffix: str, folder: Path) -> None:
    _store(folder)
    out = str(folder / f"calls{suffix}")
    assert main(["export", f"sqlite:///{folder / 'store.db'}", "--out", out, "--responses"]) == 0


def _csv(folder: Path) -> None:
    _exported(".csv", folder)


def _parquet(folder: Path) -> None:
    _exported(".parquet", folder)


def _shared_log(folder: Path) -> None:
    url = f"sqlite:///{folder / 'log.db'}"
    with sharedlog.create(url) as log:
        log.stream("orders")
        engine = log._engine
        engine.commit(Commit(puts=(Put("k", b"v", term_s=60.0),)))
        engine.commit(Commit((Condition("k", b"v"),), (Put("k", b"v", term_s=60.0),)))
        _look(folder)


def _group_log(folder: Path) -> None:
    url = f"sqlite:///{folder / 'group.db'}?group=shop"
    create_log(url)
    with closing(open_engine(url)):
        _look(folder)


def _consumers_database(folder: Path) -> None:
    with closing(SqliteLane(folder / "bills.db", "billing")):
        _look(folder)


def _witness(folder: Path) -> None:
    WitnessJournal(folder).close()


def _files(folder: Path) -> list[Path]:
    return [each for each in folder.iterdir() if not each.is_symlink()]


def _look(folder: Path) -> None:
    found = {each.name: stat.S_IMODE(each.stat().st_mode) for each in _files(folder)}
    assert found
    assert set(found.values()) == {0o600}, found


MAKERS = [_store, _csv, _parquet, _shared_log, _group_log, _consumers_database, _witness]


@pytest.fixture
def no_umask() -> Iterator[None]:
    """A process that would give all rights to all."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user of the machine may enter; pytest's are the user's own."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.parametrize("make", MAKERS)
def test_what_is_made_is_private_from_its_first_byte(
    make: Callable[[Path], None], tmp_path: Path, no_umask: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite never makes a file: it finds one that is private, and gives its mode to others."""
    connect = sqlite3.connect

    def seen(database: str, **options: object) -> sqlite3.Connection:
        file = Path(unquote(urlsplit(database).path))
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        return connect(database, **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(sqlite3, "connect", seen)
    make(tmp_path)
    _look(tmp_path)


@pytest.mark.parametrize(("mode", "told"), [(0o640, []), (0o644, ["all users (mode 0644)"])])
def test_an_existing_file_keeps_its_mode_and_is_named_once(
    mode: int, told: list[str], open_folder: Path
) -> None:
    """What all users may read is told at the start; nothing is changed."""
    file = open_folder / "users.db"
    file.touch()
    file.chmod(mode)
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            open_store(f"sqlite:///{file}").close()
    assert stat.S_IMODE(file.stat().st_mode) == mode
    assert [each["rights"] for each in logs if each["event"] == "file_open_to_all"] == told


@pytest.mark.parametrize(
    ("mode", "told"), [(0o600, ""), (0o640, "its group (mode 0640)"), (0o606, "all users")]
)
def test_inspect_tells_who_may_open_it(
    mode: int, told: str, open_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The group's rights too, which the server does not name."""
    url = f"sqlite:///{open_folder / 'store.db'}"
    _store(open_folder)
    (open_folder / "store.db").chmod(mode)
    assert main(["inspect", url]) == 0
    said = capsys.readouterr().out
    assert ("open to" in said) is bool(told)
    assert told in said


def test_a_folder_that_nobody_may_enter_keeps_its_files(tmp_path: Path) -> None:
    """No event of a file that no other user can reach."""
    file = tmp_path / "store.db"
    file.touch(0o666)
    tmp_path.chmod(0o700)
    with structlog.testing.capture_logs() as logs:
        open_store(f"sqlite:///{file}").close()
    assert "file_open_to_all" not in [each["event"] for each in logs]


@pytest.mark.parametrize(
    ("make", "beside"),
    [
        (_store, "store.db.lock"),
        (_store, "store.db.rifl"),
        (_shared_log, "log.db.sharedlog"),
        (_shared_log, "log.db.sharedlog-terms"),
        (_group_log, "group.db.curp"),
        (_witness, "witness.journal"),
    ],
)
def test_a_planted_link_is_not_followed(
    make: Callable[[Path], None], beside: str, tmp_path: Path
) -> None:
    """A user of the folder cannot have another file read, made or written over."""
    for name, content in (("victim", b"kept"), ("missing", None)):
        folder = tmp_path / name
        folder.mkdir()
        victim = tmp_path / f"{name}.txt"
        if content is not None:
            victim.write_bytes(content)
        (folder / beside).symlink_to(victim)
        with pytest.raises((StoreError, sharedlog.LogError, OSError), match="symbolic links"):
            make(folder)
        assert (victim.read_bytes() if victim.exists() else None) == content


@pytest.mark.parametrize(("make", "replaced"), [(_store, "store.db.rifl"), (_csv, "calls.csv")])
def test_temporary_files_have_names_that_nobody_knows(
    make: Callable[[Path], None], replaced: str, tmp_path: Path
) -> None:
    """What is planted under the old name is neither written over nor renamed."""
    folder, victim = tmp_path / "folder", tmp_path / "victim"
    folder.mkdir()
    victim.write_bytes(b"kept")
    (folder / f"{replaced}.part").symlink_to(victim)
    make(folder)
    assert victim.read_bytes() == b"kept"
    assert not (folder / replaced).is_symlink()
    assert [each.name for each in folder.glob("*.part")] == [f"{replaced}.part"]


def test_an_exported_file_keeps_the_mode_of_the_one_before(tmp_path: Path) -> None:
    """Who wants another mode makes the file first."""
    store, out = tmp_path / "store", tmp_path / "calls.csv"
    store.mkdir()
    _store(store)
    out.touch()
    out.chmod(0o644)
    assert main(["export", f"sqlite:///{store / 'store.db'}", "--out", str(out)]) == 0
    assert stat.S_IMODE(out.stat().st_mode) == 0o644
    assert out.read_text().startswith("client_id")


def test_a_file_is_made_where_a_database_link_points(tmp_path: Path, no_umask: None) -> None:
    """A database's own name may be a link of its user's: also what it names is private."""
    (tmp_path / "link.db").symlink_to(tmp_path / "store.db")
    open_store(f"sqlite:///{tmp_path / 'link.db'}").close()
    assert stat.S_IMODE((tmp_path / "store.db").stat().st_mode) == 0o600
    assert note_path(tmp_path / "store.db").exists()
