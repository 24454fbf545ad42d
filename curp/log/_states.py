"""States that keep a log from being served: moved away, or a copy not yet whole."""

from __future__ import annotations

import json
from typing import NamedTuple

from curp.log._commits import GroupLog
from curp.log._errors import CorruptLog, LogMoved, UnfinishedCopy

# In the metadata: of a log that was moved, and of a copy that is not finished.
MOVED_KEY = "curp-log-moved"
COPY_KEY = "curp-log-copy"


class MovedPlace(NamedTuple):
    """Where a log was moved, by which copy, and when: microseconds since 1970, for people."""

    token: str
    shown: str
    moved_at_us: int

    def to_bytes(self) -> bytes:
        """Return its stored form."""
        return json.dumps(self._asdict()).encode()

    def error(self) -> LogMoved:
        """Return what is said to who would serve from the old log."""
        return LogMoved(f"the log was moved to {self.shown}: serve from there")


def place_in(engine: GroupLog, key: str) -> MovedPlace | None:
    """Return what a log says of its move, None if nothing. Raises ``LogError``."""
    kept = engine.metadata(key)
    if kept is None:
        return None
    try:
        return MovedPlace(**json.loads(kept))
    except (ValueError, TypeError) as error:
        raise CorruptLog(f"the metadata key {key!r} is damaged") from error


def check_whole(engine: GroupLog) -> None:
    """Raise ``UnfinishedCopy`` for a log that may lack anything: also who looks is told."""
    if place_in(engine, COPY_KEY) is not None:
        raise UnfinishedCopy(
            "this is the copy of another log, and was not finished: copy again, and remove this "
            "first if that says so"
        )


def check_state(engine: GroupLog) -> None:
    """Raise ``LogMoved`` or ``UnfinishedCopy`` for a log that is not to be served from.

    A leader asks when it has its number: the process that marks the log needs a number,
    too, so one of the two is refused.
    """
    moved = place_in(engine, MOVED_KEY)
    if moved is not None:
        raise moved.error()
    check_whole(engine)
