"""The file beside a SQLite store that says what the store held last (DESIGN §6)."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from _rifl_ground.files import open_beside, replacing
from _rifl_ground.log import get_logger
from _rifl_ground.sqlite.folders import sync_folder
from _rifl_ground.system import sync
from rifl._stores.errors import StoreUnreachable

_log = get_logger("rifl.store")
# One line of one length, so that a part of it can be written over.
_LINE = "rifl 1 store {} incarnation {:020d} commits {:020d} without-wal {:020d} {}\n"
_STATES = ("dirty", "clean")


class StoreNote(NamedTuple):
    """What a store held at least: everything up to commit number ``commits``.

    ``without_wal``: the same of the one file alone, 0 where that was not known. ``clean``: it
    was closed, and all of it was in its one file.
    """

    store_id: str
    incarnation: int
    commits: int
    without_wal: int
    clean: bool


def note_path(path: Path) -> Path:
    """Return the name of the file beside a store."""
    return path.with_name(path.name + ".rifl")


def read_note(path: Path) -> StoreNote | None:
    """Return what is noted beside the store at ``path``; None if nothing is, or nothing legible.

    Raises ``StoreUnreachable`` where there is a note that must not be read.
    """
    try:
        with open(open_beside(note_path(path), os.O_RDONLY), "rb") as file:
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreUnreachable(f"cannot read {note_path(path)}: {error}") from error
    words = text.split()
    try:
        incarnation, commits, without_wal = (int(words[at]) for at in (5, 7, 9))
        clean = bool(_STATES.index(words[10]))
        return StoreNote(words[3], incarnation, commits, without_wal, clean)
    except (IndexError, ValueError):
        _log.warning("note_illegible", file=str(note_path(path)))
        return None


def remove_note(path: Path) -> None:
    """Forget what is noted beside the store at ``path``: an operator accepts what it holds."""
    note_path(path).unlink(missing_ok=True)


class NoteFile:
    """The note of a store that is open. Any thread; the callers see to the order.

    Made durable when it is made and when it is closed. In between each commit only
    overwrites the number: a process that is killed leaves it, and after a loss of
    power an older one may stand there, which claims less and is as true.
    """

    def __init__(self, path: Path, note: StoreNote) -> None:
        self._note = note
        self._path = note_path(path)
        line = _line(note)
        self._at, self._main_at = (
            line.index(word) + len(word) for word in (" commits ", " without-wal ")
        )
        try:
            with contextlib.ExitStack() as failing:
                with replacing(self._path) as part:
                    self._file = open_beside(part, os.O_WRONLY)
                    failing.callback(os.close, self._file)
                    os.write(self._file, line.encode())
                    sync(self._file)
                sync_folder(self._path.parent)
                failing.pop_all()
        except OSError as error:
            raise StoreUnreachable(f"cannot write {self._path}: {error}") from error

    def raise_to(self, commits: int) -> None:
        """Note that so many commits are durable in the store."""
        # It only guards against what others do to the store's files: no call depends on it.
        try:  # noqa: SIM105 - with every commit, where a context costs as much as the write
            os.pwrite(self._file, b"%020d" % commits, self._at)
        except OSError:
            pass

    def raise_main(self, commits: int) -> None:
        """Note that so many commits are in the one file."""
        with contextlib.suppress(OSError):
            os.pwrite(self._file, b"%020d" % commits, self._main_at)

    def close(self, commits: int | None) -> None:
        """Note that the store was closed with so many commits in its file, None if it was not."""
        try:
            if commits is not None:
                note = self._note._replace(commits=commits, without_wal=commits, clean=True)
                with contextlib.suppress(OSError):
                    os.pwrite(self._file, _line(note).encode(), 0)
                    sync(self._file)
        finally:
            os.close(self._file)


def _line(note: StoreNote) -> str:
    return _LINE.format(
        note.store_id, note.incarnation, note.commits, note.without_wal, _STATES[note.clean]
    )
