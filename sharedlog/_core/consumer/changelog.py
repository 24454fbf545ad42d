"""A change log: what a shard's state was changed by, in the log, and the state as of it (T4).

The changes of a transaction are entries with a tag of the shard's own, committed with all else of
it. A state is the newest snapshot and what was committed behind that.
"""

from __future__ import annotations

from collections.abc import Mapping

from sharedlog._core.consumer.names import change_tag
from sharedlog._core.consumer.snapshots import StateSnapshot, load, read_snapshot
from sharedlog._core.consumer.state import Columns, apply, unpacked
from sharedlog._core.errors import CorruptLog, TrimmedLog
from sharedlog._core.reading import Reader
from sharedlog._core.sealing import Seals
from sharedlog._core.steps import Rule

# Entries of one read.
_READ = 1000


class Changelog:
    """The state of a shard as its change log has it, for who owns the shard or stands by.

    ``table``: with all that was committed through an LSN, ``through``; reading on and committing
    change it. ``size``: of its keys and values; ``since``: about how many bytes of changes there
    are after the newest snapshot, ``snapshot``.
    """

    def __init__(self, name: str, tag: str, incarnation: str, seals: Seals | None) -> None:
        """Nothing was read yet. ``name``: the consumer's; ``tag``: the shard's."""
        self.table: dict[str, bytes] = {}
        self.size = 0
        self.since = 0
        self.snapshot = StateSnapshot()
        self.seals = seals
        self.tag = change_tag(name, tag)
        self._name = name
        self._shard = tag
        self._incarnation = incarnation
        self._through: int | None = None
        self._passed = 0
        self._reader: Reader | None = None

    @property
    def through(self) -> int:
        """Through which LSN it has everything, as its owner knows."""
        return max(self._through or 0, self._passed)

    def read(self) -> Rule[bool]:
        """Read on, a piece at a time; False: there was nothing more.

        Where there is no state yet there is nothing. Who has fallen behind what is whole begins
        anew, with the newest snapshot. Raises ``CorruptLog``, ``SealedMessage``.
        """
        loads = self._through is None
        try:
            reader = self._reader
            if reader is None:
                reader = yield from self._begin()
                if reader is None:
                    return False
            batch = yield from reader.read(_READ)
        except TrimmedLog:
            # Who has the shard has moved the snapshot since, and what was before it is gone.
            if loads and (yield from read_snapshot(self._name, self._shard)) == self.snapshot:
                raise
            self._through = self._reader = None
            return True
        keys: list[str] = []
        values: list[bytes | None] = []
        size = 0
        try:
            for each in batch.messages:
                more = unpacked(each.envelope, self.seals, self.tag)
                keys += more[0]
                values += more[1]
                size += len(each.envelope)
        except BaseException:
            # It is read again.
            self._reader = None
            raise
        self._apply((keys, values), size, batch.through)
        return bool(batch.messages)

    def committed(self, changed: Mapping[str, bytes | None], size: int, lsn: int) -> None:
        """Take what its owner has committed at an LSN: no other process has committed anything."""
        self._apply((list(changed), list(changed.values())), size, lsn)
        self._reader = None

    def passed(self, lsn: int) -> None:
        """There is nothing through an LSN, as its owner knows.

        Only a commit under its fence shows that it still is the owner: a process that was stopped
        does not know what its successor has committed. So it is read all the same.
        """
        self._passed = max(self._passed, lsn)

    def _apply(self, changed: Columns, size: int, through: int) -> None:
        self.size += apply(self.table, *changed)
        self.since += size
        self._through = through

    def _begin(self) -> Rule[Reader | None]:
        if self._through is None and not (yield from self._load()):
            return None
        reader = Reader(self.tag, self._incarnation, (self._through or 0) + 1)
        yield from reader.begin()
        self._reader = reader
        return reader

    def _load(self) -> Rule[bool]:
        """Read the newest snapshot, False: there is none."""
        while True:
            snapshot = yield from read_snapshot(self._name, self._shard)
            if snapshot is None:
                return False
            try:
                table = yield from load(self._name, self._shard, snapshot, self.seals)
            except CorruptLog:
                # Another one took its place meanwhile.
                if (yield from read_snapshot(self._name, self._shard)) == snapshot:
                    raise
                continue
            self.table, self.size = table, snapshot.size
            self.snapshot, self.since = snapshot, 0
            self._through = snapshot.through
            return True
