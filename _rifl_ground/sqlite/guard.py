"""The guard of a SQLite file: is it, and are those beside it, still what was opened?

SQLite goes on with a file that was removed, renamed or copied over, and with a ``-wal`` that was
cut off, and what it commits then is nowhere after a restart. After a sync that failed, a later one
says that all is well, and it is not. So each user of a file asks here before and
after each commit, and tells what SQLite raised.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from _rifl_ground.sqlite.failures import Replaced, Stopped, SyncFailed, is_failed_sync, name_of
from _rifl_ground.sqlite.folders import sync_folder
from _rifl_ground.sqlite.mark import FileMark, FoundMark
from _rifl_ground.sqlite.opening import has_wal, leave_wal
from _rifl_ground.sqlite.wal_file import WalFile

# Those beside it exist as long as a process has it open, if it has a WAL.
_SUFFIXES = ("", "-wal", "-shm")
# Kernels count the times of files in steps, which are shorter.
_STEP_NS = 1_000_000_000


class FileNames:
    """Looked at before and behind each transaction. Any thread.

    A name cannot change without the time at which its directory changed, which no process can set:
    while that is as it was, the names need no look of their own. A directory that changed just
    now may change again within the same step of the clock, and is not relied on.
    """

    def __init__(self, path: Path, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._path = path
        self._names: list[bytes] = []
        # What a link names is in a directory of its own.
        self._directory = None if path.is_symlink() else os.fsencode(path.parent)
        self._now_ns = now_ns
        self._files: tuple[tuple[int, int], ...] | None = None
        self._unchanged: tuple[int, int, int] | None = None

    def remember(self, *, wal: bool = True) -> None:
        """These are the open files; raises ``OSError``. ``wal``: there are some beside it."""
        self._names = [os.fsencode(f"{self._path}{each}") for each in _SUFFIXES[: 3 if wal else 1]]
        self._files, self._unchanged = self._look(), None

    @property
    def known(self) -> bool:
        """Whether files were remembered."""
        return self._files is not None

    def same_file(self) -> bool:
        """Whether the one file is the one that was remembered, if one was."""
        if self._files is None:
            return True
        try:
            found = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (found.st_dev, found.st_ino) == self._files[0]

    def changed(self) -> str:
        """Say which of the names are of other files now, or of none; empty: none."""
        if self._files is None:
            return ""
        try:
            # First: what changes behind it is seen by the next one.
            directory = self._directory_now()
            if directory is not None and directory == self._unchanged:
                return ""
            old = self._settled(directory)
            found = self._look()
        except (FileNotFoundError, NotADirectoryError) as error:
            return f"{os.fsdecode(error.filename)} is gone"
        except OSError:
            # Not to be seen just now is no sign of anything.
            return ""
        if found != self._files:
            return f"{os.fsdecode(self._names[0])}, or a file beside it, is another file now"
        if old:
            self._unchanged = directory
        return ""

    def _directory_now(self) -> tuple[int, int, int] | None:
        if self._directory is None:
            return None
        found = os.stat(self._directory)
        return found.st_dev, found.st_ino, found.st_ctime_ns

    def _settled(self, directory: tuple[int, int, int] | None) -> bool:
        if directory is None:
            return False
        changed_ns = directory[2]
        if self._unchanged is not None and self._unchanged[2] == changed_ns:
            return True
        return self._now_ns() - changed_ns > _STEP_NS

    def _look(self) -> tuple[tuple[int, int], ...]:
        stats = [os.stat(name) for name in self._names]
        return tuple((found.st_dev, found.st_ino) for found in stats)


_CUT_OFF = "its -wal was cut off"


class FileGuard:
    """That of one user of a file, for all of its connections. Any thread.

    Invariant 1: once a sync of a commit has failed, or the files are not those that were opened,
    nothing is begun any more: ``stopped``. This lasts as long as the guard.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # Why nothing is begun any more.
        self.stopped: Stopped | None = None
        self.mark = FileMark(path)
        self._names = FileNames(path)
        self._wal: WalFile | None = None
        self._open = False

    @property
    def wal_bytes(self) -> int:
        """How long the ``-wal`` was when it was last looked at."""
        return 0 if self._wal is None else self._wal.size

    @property
    def known(self) -> bool:
        """Whether it is known which file it is."""
        return self._names.known

    def opened(self, connection: sqlite3.Connection) -> None:
        """Begin: the files are those of ``connection``, which is in no transaction.

        Again after ``closed``: it must be the file that it was. Raises ``Stopped``.
        """
        self.check_main()
        try:
            wal = has_wal(connection)
            connection.execute("BEGIN")
            try:
                # Within: the files beside it exist as long as a connection reads.
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
                self._names.remember(wal=wal)
                self._wal = WalFile(Path(f"{self.path}-wal")) if wal else None
            finally:
                connection.execute("ROLLBACK")
            self.mark.opened(connection, wal=wal)
            self._open = True
        except Replaced as error:
            raise self._replaced(str(error)) from error
        except OSError as error:
            raise sqlite3.OperationalError(f"cannot look at {self.path}: {error}") from error

    def check_main(self) -> None:
        """Raise ``Stopped`` if the one file is another, whether it is open or not."""
        self._check_stopped()
        if not self._names.same_file():
            raise self._replaced("it was removed, or another file is in its place")

    def look(self) -> None:
        """Raise ``Stopped`` if nothing may be read."""
        self._check_stopped()
        why = self._names.changed()
        if why:
            raise self._replaced(why)

    def check(self) -> None:
        """Raise ``Stopped`` if nothing may begin, or a commit may not be in the file."""
        self.look()
        if self._wal is not None and self._wal.written_beyond():
            raise self._replaced(_CUT_OFF)
        self._look_at_mark()

    def check_wal(self) -> None:
        """Raise ``Stopped`` where nothing may be written, for one who checks all after it."""
        self._check_stopped()
        if self._wal is not None and self._wal.cut_off():
            raise self._replaced(_CUT_OFF)

    def begun(self, connection: sqlite3.Connection) -> None:
        """Check within a transaction, which has the file's lock if it writes."""
        self.look()
        self.check_wal()
        self._look_at_mark()
        try:
            self.mark.begun(connection)
        except Replaced as error:
            raise self._replaced(str(error)) from error

    def committed(self, raised: FoundMark | None = None) -> None:
        """Check after a commit; ``raised``: what ``mark.write`` returned in it.

        Raises ``Stopped``: the commit may not be in the file.
        """
        self.mark.committed(raised)
        self.look()
        if self._wal is not None and self._wal.written_beyond():
            raise self._replaced(_CUT_OFF)

    def sync_folder(self) -> None:
        """Have on the disk what applications committed; raises ``Stopped``.

        Without a WAL a commit is the removal of a name, which SQLite's default does not sync.
        """
        if self._open and self._wal is None:
            try:
                sync_folder(self.path.parent)
            except OSError as error:
                raise self._failed(error) from error

    def met(self, error: BaseException) -> Stopped | None:
        """Return what an error of SQLite's means for good; None: it passes."""
        if isinstance(error, Stopped):
            return error
        if self.stopped is None and is_failed_sync(error):
            return self._failed(error)
        # Of the one file SQLite reads zeros beyond its end.
        if self._wal is not None and name_of(error) == "SQLITE_IOERR_SHORT_READ":
            return self._replaced(_CUT_OFF)
        return self.stopped

    def closed(self) -> None:
        """Have no file open until ``opened``; idempotent."""
        self._open = False
        wal, self._wal = self._wal, None
        if wal is not None:
            wal.close()

    def _check_stopped(self) -> None:
        if self.stopped is not None:
            # Another one for each: it is raised in several threads.
            raise type(self.stopped)(str(self.stopped))

    def _look_at_mark(self) -> None:
        if not self._open:
            return
        try:
            self.mark.look()
        except Replaced as error:
            raise self._replaced(str(error)) from error
        except OSError:
            # Not to be seen just now is no sign of anything.
            return

    def _failed(self, error: BaseException) -> Stopped:
        if self.stopped is None:
            self.stopped = SyncFailed(
                f"{self.path} could not be synced ({error}): what is on the disk is unknown. "
                "Look at the disk, then restart the process"
            )
            leave_wal(self.path)
        return self.stopped

    def _replaced(self, how: str) -> Stopped:
        if self.stopped is None:
            self.stopped = Replaced(
                f"{self.path} is not the file any more that was opened: {how}. What is written "
                "now would be lost. Bring the files back, then restart the process"
            )
        return self.stopped
