"""Damage to a group's log in a SQLite file. What is known of its tables stands here alone.

Names of tables are read from the file, so that a renaming of their prefix changes nothing here.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from curp.log import open_engine
from curp.log._commits import GroupLog
from rifl.testing import FakeClock
from sharedlog._engines.terms import BootClock
from tests.curp.logs import created

# What stands beside the file, once it is open: SQLite's own, and the count of commits.
NOTE, WAL, SHM = ".curp", "-wal", "-shm"
_KEPT, _KEEP = (
    "SELECT value FROM {key} WHERE key = ?",
    "UPDATE {key} SET value = ? WHERE key = ?",
)
_SET_HEAD = "UPDATE {head} SET COLUMN = VALUE"


class SqliteLog:
    """A group's log in a file, created here, whose file is changed behind its engines."""

    store = "sqlite"

    def __init__(self, folder: Path, group: str = "bank", name: str = "log.db") -> None:
        self.path = folder / name
        self.url = created(f"sqlite:///{self.path}?group={group}")
        self._opened: list[GroupLog] = []

    def open(self) -> GroupLog:
        """Return one more engine."""
        self._opened.append(open_engine(self.url))
        return self._opened[-1]

    def close(self) -> None:
        """Close all engines."""
        while self._opened:
            self._opened.pop().close()

    @contextlib.contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """Give the file as SQLite sees it."""
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            yield connection

    def execute(self, *statements: str) -> None:
        """Change one row by each statement; ``{entry}`` is the table of entries, and so on."""
        with self.connection() as connection:
            for statement in statements:
                named = statement.replace("{", self._prefix(connection)).replace("}", "")
                assert connection.execute(named).rowcount == 1, statement

    def kept(self, key: str) -> bytes:
        """Return what one of the log's own keys holds."""
        with self.connection() as connection:
            named = _KEPT.replace("{", self._prefix(connection)).replace("}", "")
            return bytes(connection.execute(named, (key,)).fetchone()[0])

    def keep(self, key: str, value: bytes) -> None:
        """Have one of the log's own keys hold something else."""
        with self.connection() as connection:
            connection.execute("PRAGMA synchronous = OFF")
            named = _KEEP.replace("{", self._prefix(connection)).replace("}", "")
            assert connection.execute(named, (value, key)).rowcount == 1

    def beside(self, suffix: str) -> Path:
        """Return a file beside the log's, or the log's own for an empty suffix."""
        return Path(f"{self.path}{suffix}")

    def copy_to(self, folder: Path, *suffixes: str) -> None:
        """Copy these of its files, as they are at this moment."""
        folder.mkdir(exist_ok=True)
        for suffix in suffixes:
            found = self.beside(suffix)
            (folder / found.name).write_bytes(found.read_bytes())

    def copy_back(self, folder: Path) -> None:
        """Put such copies in the place of its files."""
        for found in folder.iterdir():
            put = found.with_name("put")
            put.write_bytes(found.read_bytes())
            put.replace(self.path.parent / found.name)

    def used_bytes(self) -> list[int]:
        """Return where in the file something other than 0 stands, once its WAL is in it."""
        with self.connection() as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return [at for at, byte in enumerate(self.path.read_bytes()) if byte]

    @contextlib.contextmanager
    def flipped(self, at: int, bit: int) -> Iterator[None]:
        """Have one bit of the file be the other one for a while; then all is as it was."""
        folder = self.path.parent / "kept"
        self.copy_to(folder, "", NOTE)
        try:
            with self.path.open("r+b") as file:
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes((byte ^ 1 << bit,)))
            yield
        finally:
            for suffix in (WAL, SHM):
                self.beside(suffix).unlink(missing_ok=True)
            self.copy_back(folder)

    def _prefix(self, connection: sqlite3.Connection) -> str:
        (name,) = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE '%\\_entry' "
            "ESCAPE '\\'"
        ).fetchone()
        return str(name).removesuffix("entry")


Damage: TypeAlias = Callable[[Any], None]


def _sql(*statements: str) -> Damage:
    return lambda log: log.execute(*statements)


def _schema_of_no_text(log: SqliteLog) -> None:
    log.used_bytes()
    whole = log.path.read_bytes()
    log.path.write_bytes(whole.replace(b"PRIMARY KEY", b"PRIMARY \xcbEY"))


# To entry 7 of 300, of which the first two are trimmed, where nothing else is said.
ENTRIES: dict[str, Damage] = {
    "a flipped bit of a body": _sql(
        "UPDATE {entry} SET body = CAST(substr(body, 1, length(body) - 1) || '6' AS BLOB) "
        "WHERE lsn = 7"
    ),
    "another append's id": _sql(
        "UPDATE {entry} SET body = CAST(x'ff' || substr(body, 2) AS BLOB) WHERE lsn = 7"
    ),
    "a body of zeros": _sql("UPDATE {entry} SET body = zeroblob(length(body)) WHERE lsn = 7"),
    "a body that is torn": _sql("UPDATE {entry} SET body = substr(body, 1, 9) WHERE lsn = 7"),
    "an empty body": _sql("UPDATE {entry} SET body = x'' WHERE lsn = 7"),
    "a body of text": _sql("UPDATE {entry} SET body = 'body 7' WHERE lsn = 7"),
    "other tags": _sql("UPDATE {entry} SET tags = 'u' WHERE lsn = 7"),
    "tags that are no text": _sql("UPDATE {entry} SET tags = x'ff' WHERE lsn = 7"),
    "another time": _sql("UPDATE {entry} SET at_us = at_us + 1 WHERE lsn = 7"),
    "a time that is no number": _sql("UPDATE {entry} SET at_us = 'x' WHERE lsn = 7"),
    "another checksum": _sql("UPDATE {entry} SET checksum = checksum + 1 WHERE lsn = 7"),
    "a checksum that is no number": _sql("UPDATE {entry} SET checksum = 'x' WHERE lsn = 7"),
    "another checksum of its tags": _sql("UPDATE {entry} SET mark = mark + 1 WHERE lsn = 7"),
    "missing": _sql("DELETE FROM {entry} WHERE lsn = 7"),
    "the first one missing": _sql("DELETE FROM {entry} WHERE lsn = 3"),
}

# To where the entries end.
ENDS: dict[str, Damage] = {
    "the last one missing": _sql("DELETE FROM {entry} WHERE lsn = 300"),
    "one behind the last": _sql("UPDATE {entry} SET lsn = 400 WHERE lsn = 7"),
}

# An index by which no entry may be believed to have, or not to have, a tag.
INDEX_THAT_LIES: dict[str, Damage] = {
    "an entry without the tag": _sql("INSERT INTO {tag} VALUES ('u', 5, NULL)"),
    "behind the log's end": _sql("INSERT INTO {tag} VALUES ('u', 400, NULL)"),
    "no number": _sql("INSERT INTO {tag} VALUES ('u', 'x', NULL)"),
    "no distances": _sql("INSERT INTO {tag} VALUES ('u', 5, 'four')"),
}
INDEX_THAT_LACKS: dict[str, Damage] = {
    "all": _sql("DELETE FROM {tag} WHERE tag = 't'"),
    "the first": _sql("UPDATE {tag} SET below = substr(below, 1, length(below) - 12)"),
    "the last": _sql("UPDATE {tag} SET last = last - 1 WHERE tag = 't'"),
}

SNAPSHOTS: dict[str, Damage] = {
    "a flipped bit of a piece": _sql(
        "UPDATE {key} SET value = CAST(substr(value, 1, length(value) - 1) || 'E' AS BLOB) "
        "WHERE key LIKE 'pieces/%/00000000'"
    ),
    "a piece that is torn": _sql(
        "UPDATE {key} SET value = substr(value, 1, 6) WHERE key LIKE 'pieces/%/00000000'"
    ),
    "an empty piece": _sql("UPDATE {key} SET value = x'' WHERE key LIKE 'pieces/%/00000001'"),
    "a piece of text": _sql("UPDATE {key} SET value = 'one' WHERE key LIKE 'pieces/%/00000001'"),
    "a piece in another place": _sql(
        "UPDATE {key} SET key = replace(key, '00000001', '00000005') "
        "WHERE key LIKE 'pieces/%/00000001'"
    ),
    "a missing piece": _sql("DELETE FROM {key} WHERE key LIKE 'pieces/%/00000001'"),
    "no words of it": _sql("UPDATE {key} SET value = CAST('{{' AS BLOB) WHERE key = 'snapshot'"),
    "other words of it": _sql(
        "UPDATE {key} SET value = CAST('[7]' AS BLOB) WHERE key = 'snapshot'"
    ),
    "forgotten": _sql("DELETE FROM {key} WHERE key = 'snapshot'"),
}

# Of what says where the log stands, and whose it is.
CONTROL: dict[str, Damage] = {
    "a schema that is no text": _schema_of_no_text,
    "no head": _sql("DELETE FROM {head}"),
    **{
        f"a head whose {column} is {name}": _sql(
            _SET_HEAD.replace("COLUMN", column).replace("VALUE", value)
        )
        for column in ("removed", "silent", "indexed")
        for name, value in (("no number", "'x'"), ("bytes", "x'02'"))
    },
    "removed more than there is": _sql("UPDATE {head} SET removed = 400, indexed = 400"),
    **{
        f"{key} {how}": _sql(statement.replace("NAME", key))
        for key in ("configuration", "tail", "trimmed")
        for how, statement in (
            ("missing", "DELETE FROM {key} WHERE key = 'NAME'"),
            ("torn", "UPDATE {key} SET value = substr(value, 1, 5) WHERE key = 'NAME'"),
            ("of text", "UPDATE {key} SET value = 'text' WHERE key = 'NAME'"),
        )
    },
    "an end that is not the log's": _sql(
        "UPDATE {key} SET value = CAST(substr(value, 1, 22) || x'0130' AS BLOB) WHERE key = 'tail'"
    ),
    "a leader without a name": _sql(
        "UPDATE {key} SET value = CAST('[]' AS BLOB) WHERE key = 'leader'"
    ),
    "a leader that is no text": _sql("UPDATE {key} SET value = x'ff' WHERE key = 'leader'"),
    "a term without an end": _sql("UPDATE {term} SET expires_at = 'x'"),
    "a term of no length": _sql("UPDATE {term} SET boot = 'another', term_s = 'x'"),
    "a term longer than any": _sql("UPDATE {term} SET expires_at = 9e999"),
}

NEWER: Damage = _sql("UPDATE curp_meta SET value = value + 1 WHERE name = 'format'")
WITHOUT_FORMAT: dict[str, Damage] = {
    "no number": _sql("UPDATE curp_meta SET value = 'x'"),
    "none": _sql("DELETE FROM curp_meta"),
}


class Machine:
    """The machine's clock and boot, as engines see them that open from now on."""

    def __init__(self, monkeypatch: Any) -> None:
        self.clock = FakeClock()
        self.boot = "this"
        monkeypatch.setattr(BootClock, "of_this_machine", self._clock)

    def _clock(self) -> BootClock:
        return BootClock(self.clock, self.boot)


def hold_pages(engine: Any, most: int) -> None:
    """Let SQLite have so many pages at most, as a full disk would."""
    with engine._engine._file.writing() as connection:
        connection.execute(f"PRAGMA max_page_count={most}")


def cut(path: Path, size: int) -> None:
    """Cut a file off: at this size, or by so many bytes if it is negative."""
    os.truncate(path, size if size >= 0 else path.stat().st_size + size)
