"""The journal that a witness keeps through restarts: its group and its highest number."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

from _rifl_ground.files import open_beside
from _rifl_ground.log import get_logger
from _rifl_ground.sqlite.folders import sync_folder
from _rifl_ground.system import lock_opened, refusal, sync

_log = get_logger("curp.witness")

_NAME = "witness.journal"


class JournalError(Exception):
    """The tree of journal errors: ``CorruptJournal`` and ``JournalHeld``."""


class CorruptJournal(JournalError):
    """The journal is damaged: the highest configuration number may be lost.

    Nothing but that number is in it, so a new directory and a new listing under the
    next number are the whole repair.
    """


class JournalHeld(JournalError):
    """Another process has the data directory."""


class WitnessJournal:
    """An append-only file of configuration numbers, a line for each, with a checksum.

    Held calls are not in it: after a restart they are of no use (DESIGN §7, invariant
    2), and a witness that wrote each to a disk would be slower than the log it spares.
    The number is there so that an old leader, asking late, cannot start it anew under
    a number that it served and forgot.

    A last line without its end was being written when the process died: what it
    would have said was never answered, and it is cut off. Any other damage is
    ``CorruptJournal``. One process at a time: ``JournalHeld``. Blocking; one thread.
    """

    def __init__(self, directory: Path) -> None:
        """Open, making the directory if need be, and read to the end."""
        if refused := refusal("a witness's journal"):
            raise JournalError(refused)
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / _NAME
        self._file = open_beside(self._path, os.O_RDWR | os.O_CREAT)
        self.group = ""
        self.highest = 0
        try:
            if not lock_opened(self._file):
                raise JournalHeld(f"another witness has {directory}")
            self._read()
            # Without this the file may be gone after a power cut, and the number with it.
            sync_folder(directory)
        except BaseException:
            os.close(self._file)
            raise

    def write(self, group: str, configuration: int) -> None:
        """Make a number durable before it returns. OSError: it may be, or not; stop."""
        content = json.dumps([group, configuration])
        line = f"{zlib.crc32(content.encode()):08x} {content}\n".encode()
        if os.write(self._file, line) != len(line):
            raise OSError(f"{self._path} is full")
        sync(self._file)
        self.group, self.highest = group, configuration

    def close(self) -> None:
        """Release the directory."""
        os.close(self._file)

    def _read(self) -> None:
        data = b""
        while block := os.read(self._file, 1 << 20):
            data += block
        end = data.rfind(b"\n") + 1
        for number, line in enumerate(data[:end].splitlines(), 1):
            self._read_line(number, line)
        if end < len(data):
            _log.warning("torn_line_cut", path=str(self._path), bytes=len(data) - end)
            os.ftruncate(self._file, end)
            sync(self._file)
        os.lseek(self._file, end, os.SEEK_SET)

    def _read_line(self, number: int, line: bytes) -> None:
        checksum, _, content = line.partition(b" ")
        try:
            if int(checksum, 16) != zlib.crc32(content):
                raise ValueError("the checksum is another")
            group, configuration = json.loads(content)
            if not isinstance(group, str) or not isinstance(configuration, int):
                raise ValueError("not a group and a number")
            if configuration <= self.highest:
                raise ValueError("the number does not grow")
        except ValueError as error:
            raise CorruptJournal(
                f"{self._path}, line {number}: {error}. The calls this witness held are lost in "
                "any case: give it an empty directory and list it anew"
            ) from None
        self.group, self.highest = group, configuration
