"""Histories of a log's writers, held against the log they wrote."""

from __future__ import annotations

from pathlib import Path

from curp.log._commits import GroupLog
from curp.log._values import LogEntry

__all__ = ["acknowledged", "check_history", "events", "read_all"]


def events(file: Path, kind: str) -> list[list[str]]:
    """Return the words of the whole lines of that kind in a writer's file."""
    if not file.exists():
        return []
    *lines, _ = file.read_text().split("\n")
    return [words[1:] for words in map(str.split, lines) if words[0] == kind]


def acknowledged(file: Path) -> dict[str, int]:
    """Return the LSN of every body whose append was acknowledged."""
    found = {}
    for tail, *bodies in events(file, "ack"):
        found |= {body: lsn for lsn, body in enumerate(bodies, int(tail) - len(bodies) + 1)}
    return found


def read_all(engine: GroupLog, *, tag: str | None = None) -> list[LogEntry]:
    """Read the log from its start to its end."""
    found: list[LogEntry] = []
    while more := engine.read(found[-1].lsn if found else 0, limit=97, tag=tag):
        found += more
    return found


def check_history(engine: GroupLog, files: list[Path]) -> int:
    """Fail unless the log is what was acknowledged, and parts of what was tried.

    No acknowledged append is lost or moved, none is doubled, there is no gap, an
    append is there whole or not at all, and numbers never go back along the log.
    Returns the number of entries.
    """
    # As of now: a server may yet commit what a killed writer has sent.
    tail = engine.tail()
    entries = [entry for entry in read_all(engine) if entry.lsn <= tail]
    assert [entry.lsn for entry in entries] == list(range(1, tail + 1))
    places = {entry.body.decode(): entry.lsn for entry in entries}
    assert len(places) == len(entries), "an append is there twice"
    assert [each for each in read_all(engine, tag="all") if each.lsn <= tail] == entries
    seen = []
    for file in files:
        for body, lsn in acknowledged(file).items():
            assert places.get(body) == lsn, f"{body} was acknowledged at {lsn}"
        for number, *bodies in events(file, "try"):
            found = [places.pop(body) for body in bodies if body in places]
            if found:
                assert len(found) == len(bodies), "an append is there in part"
                assert found == list(range(found[0], found[0] + len(found)))
                seen.append((found[0], int(number)))
    assert places == {}, "there is what nobody appended"
    numbers = [number for _, number in sorted(seen)]
    assert numbers == sorted(numbers), "a deposed leader wrote behind its successor"
    return len(entries)
