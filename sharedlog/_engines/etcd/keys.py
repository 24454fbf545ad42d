"""Keys of a log in etcd, and what their values look like."""

from __future__ import annotations

import json
from typing import NamedTuple
from urllib.parse import quote

from sharedlog._core.errors import CorruptLog

MARK_BYTES = 16
_LSN = slice(0, 16)
_TIME = slice(16, 32)


class LogId(NamedTuple):
    """Which log it is, by a random text; its format; the cluster that it was made in."""

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


class EtcdHead(NamedTuple):
    """Where the log ends; the newest row's time; the mark of the newest transaction."""

    tail: int
    at_us: int
    mark: bytes

    def value(self) -> bytes:
        """Return what the key holds."""
        return b"%016x%016x" % (self.tail, self.at_us) + self.mark

    @classmethod
    def read(cls, value: bytes) -> EtcdHead:
        """Read such a value; raises ``CorruptLog``."""
        try:
            found = cls(int(value[_LSN], 16), int(value[_TIME], 16), value[_TIME.stop :])
        except ValueError:
            found = cls(0, 0, b"")
        if len(found.mark) != MARK_BYTES:
            raise CorruptLog(f"the log's head is damaged: {value!r}")
        return found


class AppendPlace(NamedTuple):
    """What an append's key says: its last LSN, and how many entries it has."""

    last: int
    entries: int

    @property
    def first(self) -> int:
        """Its first LSN."""
        return self.last - self.entries + 1

    def text(self) -> bytes:
        """Return how it stands in keys, which sort as last LSNs do."""
        return b"%016x%04x" % self

    @classmethod
    def read(cls, key: bytes) -> AppendPlace:
        """Read the end of such a key; raises ``CorruptLog``."""
        text = key.rpartition(b"/")[2]
        try:
            return cls(int(text[:16], 16), int(text[16:], 16))
        except ValueError:
            raise CorruptLog(f"there is {key!r} among the log's entries") from None


class Keys:
    """The keys of one log. All begin with ``root``: ``PREFIX/log:NAME/``, as no group's do.

    ``id``: which log it is. ``head``: written by each commit, so that what was read with it is
    still so if it did not change. ``removed``: the last LSN that was removed; there is none where
    entries were removed while etcd took no writes. An append is one key under ``log/``, and one
    under ``tag/TAG/`` for each of its tags, without a value; a log's own keys are under ``key/``,
    each with its checksum.
    """

    def __init__(self, root: str) -> None:
        self.root = root.encode()
        self.end = after_all(self.root)
        self.id = self.root + b"id"
        self.head = self.root + b"head"
        self.removed = self.root + b"removed"
        self.log = self.root + b"log/"
        self.log_end = after_all(self.log)
        self._key = self.root + b"key/"

    def append(self, place: AppendPlace) -> bytes:
        """Return the key of an append."""
        return self.log + place.text()

    def from_lsn(self, lsn: int) -> bytes:
        """Return where appends begin that have that LSN, or later ones."""
        return self.log + b"%016x" % lsn

    def tagged(self, tag: str, place: AppendPlace) -> bytes:
        """Return the key that lists an append under a tag."""
        return self.tag(tag) + place.text()

    def tag(self, tag: str) -> bytes:
        """Return how the keys of a tag begin."""
        return self.root + f"tag/{quote(tag, safe='')}/".encode()

    def key(self, name: str) -> bytes:
        """Return where one of the log's own keys is kept."""
        return self._key + name.encode()

    def name_of(self, key: bytes) -> bytes:
        """Return which of the log's own keys is kept there."""
        return key.removeprefix(self._key)


def after_all(prefix: bytes) -> bytes:
    """Return the first key behind all that begin so; the prefix is text."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
