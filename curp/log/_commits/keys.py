"""Keys of a group's log, and what they hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from curp.log._checks import APPEND_ID_BYTES
from curp.log._errors import CorruptLog
from curp.log._values import MetadataCondition, NewLog
from sharedlog._core.commit import LSN_BYTES, Condition, Put

# Of these keys and of the entries' bodies.
FORMAT = 1
# The configuration number, 8 bytes; whose it is; and what is there while the lease runs.
CONFIGURATION = "configuration"
LEADER = "leader"
LEASE = "lease"
# The newest append's id, and behind it the log's last LSN.
TAIL = "tail"
# Through which LSN the log was trimmed, 8 bytes.
TRIMMED = "trimmed"
# The newest whole snapshot; the one that is being written; under the prefixes, what is left of
# those that are neither, and pieces.
SNAPSHOT = "snapshot"
SAVING = "saving"
GONE = "gone/"
_PIECES = "pieces/"
_METADATA = "metadata/"
# In the log's metadata: who accepted that commits are lost, and why.
LOSS_KEY = "curp-log-loss"
# Above every number that can have been given under what is lost.
_NUMBERS = 1 << 32
_NO_APPEND = bytes(APPEND_ID_BYTES)


def number(value: int) -> bytes:
    """Return the stored form of a number."""
    return value.to_bytes(LSN_BYTES, "big")


def read_number(key: str, value: bytes | None) -> int:
    """Read such a number; raises ``CorruptLog``."""
    if value is None or len(value) != LSN_BYTES:
        raise CorruptLog(f"the log's key {key!r} is lost or damaged: {value!r}")
    return int.from_bytes(value, "big")


class LogTail(NamedTuple):
    """Where the log ends, and by which append."""

    lsn: int
    append_id: bytes

    def value(self) -> bytes:
        """Return what the key holds."""
        return self.append_id + number(self.lsn)

    def condition(self) -> Condition:
        """Require that the log ends there, by that append."""
        return Condition(TAIL, self.value())

    @classmethod
    def read(cls, value: bytes | None) -> LogTail:
        """Read such a value; raises ``CorruptLog``."""
        if value is None or len(value) != APPEND_ID_BYTES + LSN_BYTES:
            raise CorruptLog(f"the log's tail is lost or damaged: {value!r}")
        return cls(int.from_bytes(value[APPEND_ID_BYTES:], "big"), value[:APPEND_ID_BYTES])


class LeaderRow(NamedTuple):
    """Whose the configuration number is."""

    replica: str
    address: str

    def value(self) -> bytes:
        """Return what the key holds."""
        return json.dumps(self._asdict()).encode()

    @classmethod
    def read(cls, value: bytes | None) -> LeaderRow:
        """Read such a value, one without a leader if there is none; raises ``CorruptLog``."""
        if value is None:
            # No replica has led it: it was just created, or copied.
            return cls("", "")
        try:
            told = json.loads(value)
            return cls(str(told["replica"]), str(told["address"]))
        except (ValueError, KeyError, TypeError):
            raise CorruptLog("the log does not say who leads it") from None


class KeptSnapshot(NamedTuple):
    """A snapshot, or what is there of one: under which id, at which LSN, of how many pieces."""

    id: str
    lsn: int
    pieces: int

    def value(self) -> bytes:
        """Return what a key holds."""
        return json.dumps(self._asdict()).encode()

    @classmethod
    def read(cls, value: bytes | None) -> KeptSnapshot | None:
        """Read such a value, None if there is none; raises ``CorruptLog``."""
        if value is None:
            return None
        try:
            told = json.loads(value)
            return cls(str(told["id"]), int(told["lsn"]), int(told["pieces"]))
        except (ValueError, KeyError, TypeError):
            raise CorruptLog("the log's snapshot is damaged") from None

    def piece(self, place: int) -> str:
        """Return the key of one of its pieces."""
        return f"{_PIECES}{self.id}/{place:08}"

    @property
    def gone(self) -> str:
        """The key that has its pieces removed."""
        return GONE + self.id


def current(configuration: int) -> Condition:
    """Require that this is the configuration number (invariant 1)."""
    return Condition(CONFIGURATION, number(configuration))


def metadata_key(key: str) -> str:
    """Return where a key of the metadata is kept."""
    return _METADATA + key


def metadata_puts(metadata: Mapping[str, bytes | None]) -> tuple[Put, ...]:
    """Return what writes metadata."""
    return tuple(Put(metadata_key(key), value) for key, value in metadata.items())


def metadata_condition(condition: MetadataCondition) -> Condition:
    """Return the condition on a key of the metadata."""
    return Condition(metadata_key(condition.key), condition.value)


def metadata_of(found: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return metadata by the names that their writers gave."""
    return {key.removeprefix(_METADATA): value for key, value in found.items()}


def metadata_prefix() -> str:
    """Return how the metadata's keys begin."""
    return _METADATA


def loss_puts(found: Mapping[str, bytes | None], told: Mapping[str, str]) -> tuple[Put, ...]:
    """Return what has a log go on that lost its end; ``told`` is kept in its metadata.

    Under numbers that were not given under what is lost. ``found``: the configuration number.
    """
    configuration = read_number(CONFIGURATION, found[CONFIGURATION]) + _NUMBERS
    return (
        Put(CONFIGURATION, number(configuration)),
        Put(LEASE, None),
        Put(metadata_key(LOSS_KEY), json.dumps(told).encode()),
    )


def first_keys(new: NewLog) -> dict[str, bytes]:
    """Return the keys that a log is created with; its entries begin behind ``new.trimmed``."""
    return {
        CONFIGURATION: number(new.configuration),
        TAIL: LogTail(new.trimmed, _NO_APPEND).value(),
        TRIMMED: number(new.trimmed),
        **{metadata_key(key): value for key, value in new.metadata.items()},
    }
