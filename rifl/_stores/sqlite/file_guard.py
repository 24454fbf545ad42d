"""The guard of a SQLite store's files: they are those that it writes to, and whole (DESIGN §6).

What befalls a file that is open, ``_rifl_ground.sqlite.guard`` notices. Here every commit is
numbered, and beside the file a note says up to which one the store has answered, so that the next
opening notices what is missing.
"""

from __future__ import annotations

import itertools
import os
import secrets
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from _rifl_ground.log import get_logger
from _rifl_ground.sqlite import guard as ground
from _rifl_ground.sqlite.failures import Stopped, is_damage, is_failed_sync
from _rifl_ground.sqlite.mark import FoundMark, read_mark
from _rifl_ground.sqlite.opening import read_alone
from rifl._stores.errors import StoreLocked, StoreLost
from rifl._stores.sqlite.note_file import NoteFile, StoreNote, note_path, read_note

_log = get_logger("rifl.store")
# The number of the last commit that a file holds. Records and rows carry theirs, so that a commit
# of nothing else writes no further page; what deletes rows raises the number kept beside them.
# Of keyed calls their counts carry it: there may be many.
COMMITS = (
    "SELECT max(value, "
    "coalesce((SELECT max(commit_number) FROM rifl_call WHERE identity < x'' "
    "AND client_id IN (SELECT client_id FROM rifl_client)), 0), "
    "coalesce((SELECT max(commit_number) FROM rifl_call WHERE until_s = 0), 0), "
    "coalesce((SELECT max(commit_number) FROM rifl_keys), 0), "
    "coalesce((SELECT max(commit_number) FROM rifl_row), 0)) "
    "FROM rifl_meta WHERE name='commits'"
)
RAISE_COMMITS = "UPDATE rifl_meta SET value=max(value, ?) WHERE name='commits'"
_HOW = (
    "bring the missing files back, or, if this is a backup that the service is to go on with, "
    "run: rifl restored sqlite:///{} --yes"
)


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

    def __init__(self, path: Path = Path()) -> None:
        self.path = path
        self.opening = secrets.randbits(62)
        self.number: Callable[[], int] = itertools.count(1).__next__

    @property
    def wal_bytes(self) -> int:
        """The length of the WAL, as it was last seen."""
        return 0

    @property
    def due(self) -> bool:
        """Whether the next commit has to raise the number that the file keeps."""
        return False

    def admit(self, held: FileIdentity | None) -> None:
        """Raise ``StoreLost`` if the file lacks what it held; None: it has no rifl tables."""

    def opened(self, connection: sqlite3.Connection, incarnation: int, held: FileIdentity) -> None:
        """Begin: the file was admitted and has this opening's mark."""
        self.number = itertools.count(held.commits + 1).__next__

    def check(self) -> None:
        """Raise ``Stopped`` if the files are others by now; before and after each commit."""

    def check_wal(self) -> None:
        """The same before a commit, after which all is checked."""

    def check_main(self) -> None:
        """The same of the one file, where the others may be gone with their last connection."""

    def met(self, error: sqlite3.Error) -> sqlite3.Error | None:
        """Return why nothing is written any more after an error of SQLite's; None: it is."""
        return error if isinstance(error, Stopped) or is_failed_sync(error) else None

    def raise_commits(self, connection: sqlite3.Connection, number: int) -> FoundMark | None:
        """Have the file keep the number of the commit, within its transaction.

        Return what to tell ``committed`` if it commits.
        """
        connection.execute(RAISE_COMMITS, (number,))
        return None

    def committed(self, number: int, raised: FoundMark | None = None) -> None:
        """Note that a commit is durable; raises ``Stopped`` if it is in no file of the store's."""

    def closed(self, commits: int | None) -> None:
        """End; ``commits``: what the file holds, closed well. None: it was not closed well."""


class StoreFileGuard(Guard):
    """The same for a file. Made before SQLite opens it: that makes what is missing."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._note = read_note(path)
        if path.is_file() and (names := path.stat().st_nlink) > 1:
            raise StoreLocked(
                f"{path} has {names} names (hard links). SQLite keeps a -wal beside each, so "
                "that each would be a store of its own: remove the others"
            )
        self._had_wal = os.path.exists(f"{path}-wal")
        self._file = ground.FileGuard(path)
        self._lock = threading.Lock()
        self._beside: NoteFile | None = None
        self._told = 0
        # The mark of the one file, as it was noted last.
        self._noted_mark = 0
        self._check_wal()

    @property
    def wal_bytes(self) -> int:
        """See ``Guard``."""
        return self._file.wal_bytes

    @property
    def due(self) -> bool:
        """See ``Guard``: another file that is copied over this one later has a lower mark."""
        return self._file.mark.due

    def admit(self, held: FileIdentity | None) -> None:
        """Judge by the note beside the file, and by what the file says of itself."""
        note, how = self._note, _HOW.format(self.path)
        if held is None:
            if note is not None and note.commits:
                raise StoreLost(
                    f"{self.path} is missing or empty, but {note_path(self.path)} says that it "
                    f"held a store: {how}; to begin anew, remove {note_path(self.path)}"
                )
        elif note is None:
            if not held.closed and not self._had_wal:
                raise StoreLost(
                    f"{self.path} is a copy that was made while it was in use, or its -wal file "
                    f"is missing: {how}"
                )
        elif note.store_id != held.store_id:
            raise StoreLost(f"{note_path(self.path)} is about another store than the file: {how}")
        elif held.commits < note.commits:
            raise StoreLost(
                f"{self.path} lacks {note.commits - held.commits} commits that were answered: it "
                f"is an older copy, or its -wal file is missing: {how}"
            )

    def opened(self, connection: sqlite3.Connection, incarnation: int, held: FileIdentity) -> None:
        """Make the note, and remember which files these are."""
        super().opened(connection, incarnation, held)
        self._told = held.commits
        self._beside = NoteFile(
            self.path, StoreNote(held.store_id, incarnation, held.commits, 0, clean=False)
        )
        self._bring_in(connection)
        self._file.opened(connection)
        self._note_mark()

    def check(self) -> None:
        """See ``StoreFileGuard.check`` of the ground floor."""
        self._file.check()
        if self._file.mark.number != self._noted_mark:
            self._note_mark()

    def check_wal(self) -> None:
        """See there."""
        self._file.check_wal()

    def check_main(self) -> None:
        """See there."""
        self._file.check_main()

    def met(self, error: sqlite3.Error) -> sqlite3.Error | None:
        """See there."""
        return self._file.met(error)

    def raise_commits(self, connection: sqlite3.Connection, number: int) -> FoundMark | None:
        """See ``Guard``; raises ``Stopped``."""
        self._file.check_wal()
        raised = self._file.mark.write(connection)
        super().raise_commits(connection, number)
        return raised

    def committed(self, number: int, raised: FoundMark | None = None) -> None:
        """Check the files, then raise the note."""
        self._file.mark.committed(raised)
        self.check()
        # With the lock: what is closed meanwhile may be another file's descriptor.
        with self._lock:
            if number > self._told and self._beside is not None:
                self._told = number
                self._beside.raise_to(number)

    def closed(self, commits: int | None) -> None:
        """Note how the file was left."""
        self._file.closed()
        with self._lock:
            beside, self._beside = self._beside, None
            if beside is not None:
                beside.close(commits)

    def _is_torn(self) -> bool:
        """Whether SQLite finds some of the one file's pages at odds with others."""
        try:
            read_alone(self.path, "SELECT number FROM rifl_file")
        except sqlite3.Error as error:
            return is_damage(error)
        return False

    def _check_wal(self) -> None:
        """Raise before SQLite brings a WAL into a file that is not the one it belongs to."""
        note = self._note
        if note is None or note.clean or not self._had_wal:
            return
        mark = read_mark(self.path)
        if mark is None or mark.number < note.without_wal:
            if mark is None and self._is_torn():
                raise StoreLost(
                    f"{self.path} cannot be read without the -wal file beside it: a checkpoint "
                    "ended half-way (a crash while a VACUUM was brought in), or this is a part of "
                    "a copy. If no file was copied here, the -wal has all that is missing: "
                    f'sqlite3 {self.path} "PRAGMA wal_checkpoint"'
                )
            raise StoreLost(
                f"{self.path} is an older copy than the -wal file beside it, which belongs to "
                f"another: put that back, or remove {self.path}-wal and {self.path}-shm, and "
                f"then, if the service is to go on with this one, run: rifl restored "
                f"sqlite:///{self.path} --yes"
            )

    def _note_mark(self) -> None:
        with self._lock:
            self._noted_mark = number = self._file.mark.number or 0
            if self._beside is not None:
                self._beside.raise_main(number)

    def _bring_in(self, connection: sqlite3.Connection) -> None:
        """Have the one file hold all that the WAL does, unless a reader is in the way."""
        try:
            connection.execute("PRAGMA wal_checkpoint")
        except sqlite3.OperationalError as error:
            # A full disk, for one: the WAL has it all.
            _log.warning("checkpoint_failed", error=str(error))
