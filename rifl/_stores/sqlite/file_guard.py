"""The guard of a SQLite store's files: are they still those that it writes to? (DESIGN §6)

SQLite goes on with a file that was removed, renamed or copied over, and what it commits
then is nowhere after a restart. So every commit is numbered, and after each one the names
are looked at again: the same device and inode, and in the file itself, where something
else than a checkpoint of ours changed it, the mark of this opening. Beside the file a
note says up to which commit the store has answered, so that the next opening notices
what is missing.
"""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from _rifl_ground.log import get_logger
from rifl._stores.errors import StoreLocked, StoreLost
from rifl._stores.sqlite.note_file import Note, NoteFile, note_path, read_note

_log = get_logger("rifl.store")
# The number of the last commit that a file holds. Records and rows carry theirs, so that a commit
# of nothing else writes no further page; what deletes rows raises the number kept beside them.
COMMITS = (
    "SELECT max(value, coalesce((SELECT max(commit_number) FROM rifl_call), 0), "
    "coalesce((SELECT max(commit_number) FROM rifl_row), 0)) "
    "FROM rifl_meta WHERE name='commits'"
)
RAISE_COMMITS = "UPDATE rifl_meta SET value=max(value, ?) WHERE name='commits'"
_MARK = "SELECT name, value FROM rifl_meta WHERE name IN ('opening', 'commits')"
_FILES = ("", "-wal", "-shm")
# A checkpoint of another connection's may be writing the page just then.
_LOOKS = 20
# One that is half-way may keep the file from being read at all, after a VACUUM: it is waited for
# while it writes, and so much longer.
_STILL_S = 10.0
# A WAL never takes more than this, nor more than what is left free on the disk.
WAL_BYTES = 4 << 30
_BETWEEN_LOOKS_S = 0.005
_HOW = (
    "bring the missing files back, or, if this is a backup that the service is to go on with, "
    "run: rifl restored sqlite:///{} --yes"
)


class Replaced(sqlite3.Error):
    """The store's files are not those that were opened: nothing may be written any more."""


class FileIdentity(NamedTuple):
    """What a file says of itself when it is opened.

    ``closed``: its last owner closed it, and all of it was in the one file then.
    """

    store_id: str
    commits: int
    closed: bool


class Guard:
    """Numbers the commits of one database, in one opening of it. Any thread.

    ``opening``: a random number in the file itself. What is written, also by connections of
    handlers, is written only where that stands: another file at the same path, or the same
    one under another owner, has another. ``number`` returns the number of the next commit.

    By itself it has no files to look at, as for databases in memory.
    """

    def __init__(self) -> None:
        self.opening = secrets.randbits(62)
        # The length of the WAL, as it was last seen.
        self.wal_bytes = 0
        self.number: Callable[[], int] = itertools.count(1).__next__

    def admit(self, held: FileIdentity | None) -> None:
        """Raise ``StoreLost`` if the file lacks what it held; None: it has no tables of ours."""

    def opened(self, connection: sqlite3.Connection, incarnation: int, held: FileIdentity) -> None:
        """Begin: the file was admitted and has this opening's mark."""
        self.number = itertools.count(held.commits + 1).__next__

    def check(self) -> None:
        """Raise ``Replaced`` if the files are others by now."""

    def check_main(self) -> None:
        """The same of the one file, where the others may be gone with their last connection."""

    def wal_limit(self) -> int:
        """Return how long the WAL may be, in bytes, before new calls are refused."""
        return WAL_BYTES

    def committed(self, number: int) -> None:
        """Note that a commit is durable; raises ``Replaced`` if it is in no file of the store's."""

    def closed(self, commits: int | None) -> None:
        """End; ``commits``: what the file holds, closed well. None: it was left as it is."""


class FileGuard(Guard):
    """The same for a file. Made before SQLite opens it: that makes what is missing."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._note = read_note(path)
        if path.is_file() and (names := path.stat().st_nlink) > 1:
            raise StoreLocked(
                f"{path} has {names} names (hard links). SQLite keeps a -wal beside each, so "
                "that each would be a store of its own: remove the others"
            )
        self._names = [os.fsencode(path.with_name(path.name + suffix)) for suffix in _FILES]
        self._had_wal = os.path.exists(self._names[1])
        self._lock = threading.Lock()
        self._beside: NoteFile | None = None
        self._told = 0
        # Inodes and device, then what changes with every write to the one file.
        self._seen = (0, 0, 0, 0, 0, 0)
        # What the one file holds without its WAL; None until that is known.
        self._marked: int | None = None
        self._check_wal()

    def admit(self, held: FileIdentity | None) -> None:
        """Judge by the note beside the file, and by what the file says of itself."""
        note, how = self._note, _HOW.format(self._path)
        if held is None:
            if note is not None and note.commits:
                raise StoreLost(
                    f"{self._path} is missing or empty, but {note_path(self._path)} says that it "
                    f"held a store: {how}; to begin anew, remove {note_path(self._path)}"
                )
        elif note is None:
            if not held.closed and not self._had_wal:
                raise StoreLost(
                    f"{self._path} is a copy that was made while it was in use, or its -wal file "
                    f"is missing: {how}"
                )
        elif note.store_id != held.store_id:
            raise StoreLost(f"{note_path(self._path)} is about another store than the file: {how}")
        elif held.commits < note.commits:
            raise StoreLost(
                f"{self._path} lacks {note.commits - held.commits} commits that were answered: it "
                f"is an older copy, or its -wal file is missing: {how}"
            )

    def opened(self, connection: sqlite3.Connection, incarnation: int, held: FileIdentity) -> None:
        """Make the note, and remember which files these are."""
        super().opened(connection, incarnation, held)
        self._told = held.commits
        self._beside = NoteFile(
            self._path, Note(held.store_id, incarnation, held.commits, 0, clean=False)
        )
        self._bring_in(connection, held.commits)
        self._seen = self._look()

    def check(self) -> None:
        """Compare device and inode of the files, and the mark where the one was written to."""
        try:
            seen = self._look()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._replaced(f"{os.fsdecode(error.filename)} is gone") from error
        except OSError:
            # Not to be seen just now is no sign of anything.
            return
        if seen != self._seen:
            self._changed(seen)

    def _look(self) -> tuple[int, int, int, int, int, int]:
        one, log, shm = map(os.stat, self._names)
        self.wal_bytes = log[6]
        return one[1], one[2], log[1], shm[1], one[6], one.st_mtime_ns

    def wal_limit(self) -> int:
        """Return the fixed limit, or what is free on the disk if that is less."""
        free = shutil.disk_usage(self._path.parent).free
        return min(WAL_BYTES, free)

    def check_main(self) -> None:
        """Compare device and inode of the one file."""
        try:
            main = os.stat(self._names[0])
        except OSError as error:
            raise self._replaced("it is gone") from error
        if (main.st_ino, main.st_dev) != self._seen[:2]:
            raise self._replaced("it was replaced")

    def committed(self, number: int) -> None:
        """Check the files, then raise the note."""
        self.check()
        # With the lock: what is closed meanwhile may be another file's descriptor.
        with self._lock:
            if number > self._told and self._beside is not None:
                self._told = number
                self._beside.raise_to(number)

    def closed(self, commits: int | None) -> None:
        """Note how the file was left."""
        with self._lock:
            beside, self._beside = self._beside, None
            if beside is not None:
                beside.close(commits)

    def _changed(self, seen: tuple[int, int, int, int, int, int]) -> None:
        """Judge by other inodes, or look for this opening's mark in the one file."""
        if seen[:4] != self._seen[:4]:
            raise self._replaced("it, or a file beside it, was replaced")
        with self._lock:
            if self._marked is not None:
                self._holds_alone(self._commits_alone(self._marked))
            self._seen = seen

    def _commits_alone(self, least: int) -> int:
        """Return how many commits the one file holds; raises unless it has this opening's mark."""
        looks, written, since = 0, None, 0.0
        while True:
            mark = self._mark()
            found = mark.get("commits", 0)
            if mark.get("opening") == self.opening and found >= least:
                return found
            now, wrote = time.monotonic(), self._written()
            if wrote != written:
                written, since = wrote, now
            looks += bool(mark)
            if looks >= _LOOKS or now - since >= _STILL_S:
                raise self._replaced("something was copied over it")
            time.sleep(_BETWEEN_LOOKS_S)

    def _written(self) -> int:
        try:
            return os.stat(self._names[0]).st_mtime_ns
        except OSError as error:
            raise self._replaced("it is gone") from error

    def _mark(self) -> dict[str, int]:
        try:
            # A checkpoint that is half-way, or that a full disk ended there, has said how many
            # pages there are before they are. SQLite reads such a file only with this.
            return self._alone("PRAGMA writable_schema=ON")
        except sqlite3.Error:
            return {}

    def _is_torn(self) -> bool:
        """Whether SQLite finds some of the one file's pages at odds with others."""
        try:
            self._alone()
        except sqlite3.Error as error:
            return (getattr(error, "sqlite_errorname", None) or "").startswith("SQLITE_CORRUPT")
        return False

    def _alone(self, *pragmas: str) -> dict[str, int]:
        """Read the mark without the WAL, whose pages hide what was copied over."""
        uri = f"{self._path.as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            for pragma in pragmas:
                connection.execute(pragma)
            return dict(connection.execute(_MARK).fetchall())

    def _check_wal(self) -> None:
        """Raise before SQLite brings a WAL into a file that is not the one it belongs to."""
        note = self._note
        if note is None or note.clean or not self._had_wal:
            return
        mark = self._mark()
        if mark.get("commits", 0) < note.without_wal:
            if not mark and self._is_torn():
                raise StoreLost(
                    f"{self._path} cannot be read without the -wal file beside it: a checkpoint "
                    "ended half-way (a crash while a VACUUM was brought in), or this is a part of "
                    "a copy. If nobody copied anything here, the -wal has all that is missing: "
                    f'sqlite3 {self._path} "PRAGMA wal_checkpoint"'
                )
            raise StoreLost(
                f"{self._path} is an older copy than the -wal file beside it, which belongs to "
                f"another: put that back, or remove {self._path}-wal and {self._path}-shm, and "
                f"then, if the service is to go on with this one, run: rifl restored "
                f"sqlite:///{self._path} --yes"
            )

    def _holds_alone(self, commits: int) -> None:
        self._marked = commits
        if self._beside is not None:
            self._beside.raise_main(commits)

    def _bring_in(self, connection: sqlite3.Connection, commits: int) -> None:
        """Have the one file hold all that the WAL does, unless a reader is in the way."""
        try:
            busy, frames, brought = connection.execute("PRAGMA wal_checkpoint").fetchone()
        except sqlite3.OperationalError as error:
            # A full disk, for one: the WAL has it all.
            _log.warning("checkpoint_failed", error=str(error))
            return
        if not busy and frames == brought:
            self._holds_alone(commits)

    def _replaced(self, how: str) -> Replaced:
        return Replaced(
            f"{self._path} is not the file any more that was opened: {how}. What is written now "
            "would be lost: put it back and restart the server"
        )
