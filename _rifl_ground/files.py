"""The files that this software makes: private from their first byte, and not through a link.

Databases hold every answer and the secrets that sign clients' tokens. So what is made here is
0600, whatever the umask is; a user who wants another mode makes the file first. The mode of an
existing file is never changed. What lies beside a database has a name that any user of its folder
can guess, so it is never opened through a symbolic link.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from _rifl_ground.log import get_logger

_log = get_logger("rifl.files")
_PRIVATE = 0o600
# Of which files it was said already that all users may read them.
_named: set[Path] = set()


def make_private(path: Path) -> None:
    """Make an empty file, unless a file is there already. Raises ``OSError``."""
    # Closed only if it is new: SQLite's locks of a file end with any descriptor of it.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE))


def open_beside(path: Path, flags: int) -> int:
    """Open a lock or a note and return its descriptor; ``O_CREAT`` makes a private one.

    Raises ``OSError``, also if the name is a symbolic link.
    """
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, _PRIVATE)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a new file with a random name, which takes the place of ``path`` at the end.

    It is private, or has the mode of the file that it replaces. An error removes it. Raises
    ``OSError``. A process that is killed leaves ``NAME.RANDOM.part`` behind.
    """
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    os.close(open_beside(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    try:
        yield part
        with suppress(FileNotFoundError):
            replaced = path.lstat().st_mode
            if stat.S_ISREG(replaced):
                part.chmod(stat.S_IMODE(replaced))
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def others_rights(path: Path) -> str:
    """Say which users beside the owner may open the file; empty: none, or it is not there.

    A folder that a user may not enter keeps that user from the file.
    """
    try:
        mode = path.stat().st_mode
        folders = [folder.stat().st_mode for folder in path.resolve().parents]
    except OSError:
        return ""
    for who, file_bits, folder_bit in (
        ("all users", stat.S_IROTH | stat.S_IWOTH, stat.S_IXOTH),
        ("its group", stat.S_IRGRP | stat.S_IWGRP, stat.S_IXGRP | stat.S_IXOTH),
    ):
        if mode & file_bits and all(each & folder_bit for each in folders):
            return f"{who} (mode {stat.S_IMODE(mode):04o})"
    return ""


def name_if_open_to_all(path: Path) -> None:
    """Write an event if every user of the machine may open the file; once in a process."""
    if path in _named:
        return
    _named.add(path)
    rights = others_rights(path)
    if rights.startswith("all"):
        _log.warning(
            "file_open_to_all",
            file=str(path),
            rights=rights,
            hint="it holds answers and secrets: chmod o-rwx it, and the files beside it",
        )
