"""Keys of a group's log in etcd, and what their values look like."""

from __future__ import annotations

import json
from typing import NamedTuple
from urllib.parse import quote

from curp.log._errors import CorruptLog

_DIGITS = 16


class LogId(NamedTuple):
    """Which log it is, by a random text; its format; the cluster that it is in."""

    log: str
    format: int
    cluster: int

    def value(self) -> bytes:
        """Return what the key holds."""
        return json.dumps(self._asdict()).encode()

    @classmethod
    def read(cls, value: bytes) -> LogId:
        """Read such a value; raises ``CorruptLog``."""
        try:
            told = json.loads(value)
            return cls(str(told["log"]), int(told["format"]), int(told["cluster"]))
        except (ValueError, KeyError, TypeError):
            raise CorruptLog(f"the log's id is damaged: {value!r}") from None


class Tail(NamedTuple):
    """Where the log ends, and the id of the append that ends there (zeros at first)."""

    lsn: int
    append_id: bytes

    def value(self) -> bytes:
        """Return what the key holds: values compare as their LSNs do."""
        return _number(self.lsn) + self.append_id.hex().encode()

    @classmethod
    def read(cls, value: bytes) -> Tail:
        """Read such a value; raises ``CorruptLog``."""
        try:
            return cls(int(value[:_DIGITS], 16), bytes.fromhex(value[_DIGITS:].decode()))
        except ValueError:
            raise CorruptLog(f"the log's tail is damaged: {value!r}") from None

    @staticmethod
    def bounds(lsn: int) -> tuple[bytes, bytes]:
        """Return between which values all those of that LSN are."""
        return _number(lsn), _number(lsn + 1)


class Keys:
    """The keys of one group. All begin with ``PREFIX/GROUP/``, the group's name quoted.

    ``log_id``: which log it is; never changes. ``configuration``: the number in force.
    ``leader``: whose it is. ``lease``: there while its lease runs. ``tail``,
    ``trimmed``, ``snapshot``, ``saving``: see the engine. An append is one key under
    ``log/``, named by its *last* LSN, so that the first key from LSN n on holds n.
    """

    def __init__(self, prefix: str, group: str) -> None:
        self.root = f"{prefix}/{quote(group, safe='')}/".encode()
        self.end = _after(self.root)
        self.log_id = self.root + b"id"
        self.configuration = self.root + b"configuration"
        self.leader = self.root + b"leader"
        self.lease = self.root + b"lease"
        self.tail = self.root + b"tail"
        self.trimmed = self.root + b"trimmed"
        self.snapshot = self.root + b"snapshot"
        self.saving = self.root + b"saving"
        self._log = self.root + b"log/"
        self.log_end = _after(self._log)
        self._metadata = self.root + b"metadata/"

    def append(self, last: int) -> bytes:
        """Return the key of the append that ends at that LSN."""
        return self._log + _number(last)

    def last_of(self, key: bytes) -> int:
        """Return the LSN that an append's key names; raises ``CorruptLog``."""
        try:
            return int(key[len(self._log) :], 16)
        except ValueError:
            raise CorruptLog(f"there is {key!r} among the log's entries") from None

    def metadata(self, name: str) -> bytes:
        """Return the key of a metadata key."""
        return self._metadata + name.encode()

    def name_of(self, key: bytes) -> str:
        """Return which metadata key that is."""
        return key.removeprefix(self._metadata).decode()

    def all_metadata(self) -> tuple[bytes, bytes]:
        """Return from where to before where all metadata is."""
        return self._metadata, _after(self._metadata)

    def loss(self, log: str) -> bytes:
        """Return the key that says who accepted what a log of that id lost, and why."""
        return self.root + b"loss/" + log.encode()

    def piece(self, snapshot: str, number: int) -> bytes:
        """Return the key of a snapshot's piece."""
        return self.root + b"pieces/%s/%08x" % (snapshot.encode(), number)

    def pieces(self, snapshot: str) -> tuple[bytes, bytes]:
        """Return from where to before where all pieces of a snapshot are."""
        first = self.root + b"pieces/%s/" % snapshot.encode()
        return first, _after(first)


def read_number(what: str, value: bytes) -> int:
    """Read a decimal number; raises ``CorruptLog``."""
    if not value.isdigit():
        raise CorruptLog(f"the log's {what} is damaged: {value!r}")
    return int(value)


def _number(lsn: int) -> bytes:
    return b"%016x" % lsn


def _after(prefix: bytes) -> bytes:
    """Return the first key behind all that begin so."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
