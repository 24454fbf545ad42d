"""Oracle: rows of a log as the judge of a player's run reads them, by no rule of its."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from chaos.sim.log.oracle import committed
from sharedlog._core.entry import EntryKind, Row, read_row
from sharedlog._core.names import NameKind, own_name
from sharedlog.v1 import sharedlog_pb2

__all__ = [
    "Letters",
    "Message",
    "dead_letters",
    "messages",
    "place_of",
    "places",
    "skipped_for_operators",
]

_LETTERS = own_name(NameKind.LETTERS, "")


class Message(NamedTuple):
    """What is committed, and by the entry of which LSN."""

    body: bytes
    lsn: int


class Letters(dict[tuple[str, int, str], list[bytes]]):
    """Bodies of dead letters, by target, the number of its index, and substream."""


def messages(rows: Sequence[Row]) -> dict[str, list[Message]]:
    """Return what is committed, by substream."""
    return {
        tag: [Message(body_of(envelope), lsn) for envelope, lsn in found]
        for tag, found in committed(rows).items()
    }


def places(rows: Sequence[Row]) -> dict[str, list[tuple[int, int]]]:
    """Return where messages are, by substream: LSN of the commit, and their number in it."""
    found: dict[str, list[tuple[int, int]]] = {}
    for tag, messages in committed(rows).items():
        places = found.setdefault(tag, [])
        for _, lsn in messages:
            ordinal = places[-1][1] + 1 if places and places[-1][0] == lsn else 0
            places.append((lsn, ordinal))
    return found


def dead_letters(rows: Sequence[Row]) -> Letters:
    """Return which messages are dead letters, by who appended them."""
    found = Letters()
    for row in rows:
        entry = read_row(row)
        if entry.kind is EntryKind.COMMITTED and entry.name.startswith(_LETTERS):
            store, _, number, stream, substream = entry.name.removeprefix(_LETTERS).split("/")
            key = (store.partition(".")[0], int(number), f"{stream}/{substream}")
            found.setdefault(key, []).append(body_of(body_of(entry.message)))
    return found


def skipped_for_operators(rows: Sequence[Row]) -> list[tuple[str, int, str, str]]:
    """Return what became a dead letter by an operator: target, index, substream, position."""
    found = []
    for row in rows:
        entry = read_row(row)
        if entry.kind is not EntryKind.COMMITTED or not entry.name.startswith(_LETTERS):
            continue
        store, _, number, stream, substream = entry.name.removeprefix(_LETTERS).split("/")
        envelope = sharedlog_pb2.Envelope.FromString(entry.message)
        said = {each.name: each.value.decode() for each in envelope.headers}
        if said["by"] != "rule":
            target = store.partition(".")[0]
            found.append((target, int(number), f"{stream}/{substream}", said["position"]))
    return found


def body_of(envelope: bytes) -> bytes:
    return sharedlog_pb2.Envelope.FromString(envelope).body


def place_of(position: str) -> tuple[int, int]:
    """Return a position's LSN and ordinal."""
    lsn, ordinal = position.partition("/")[0].partition("-")[0].split(".")
    return int(lsn), int(ordinal)
