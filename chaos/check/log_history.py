"""Appends and sessions: what a history of a log says, gathered for the rules to read.

It knows nothing of how a log keeps anything: a place is two numbers that a client was told. The
events of such a history, in the order of time, beside those of ``chaos.check.history``:

| ``event`` | fields | meaning |
|---|---|---|
| ``start`` | at, call, op, caller, messages | a publisher appends, or tries the same again |
| ``end`` | at, call, outcome, code, places | it is told |
| ``resolved`` | at, call, outcome, places | it asked later what became of it |
| ``follow`` | at, follower, stream, substreams, hold, behind | it begins, or begins again |
| ``read`` | at, follower, substream, lsn, ordinal, message, key | it is given a message |
| ``done`` | at, follower, substream, lsn, ordinal | it is about to say that this one is done |
| ``closed`` | at, follower | it was told that its hold is where it said last |
| ``refused`` | at, follower, code | it is told that it cannot go on |
| ``tail`` | stream, substream, place | what is committed last in the end: LSN, ordinal; or null |

``op`` is ``publish`` or ``transaction``; ``messages`` are ``[name, stream, key]``, no name twice
in a history. ``caller`` is who does one thing after another, within one life of its process.
``outcome`` is ``executed`` (acknowledged), ``not-executed`` (refused, known not to be there, or
rolled back) or ``unknown``; ``places`` are ``[substream, LSN, ordinal]``, one for each message, or
null. ``substreams``: those that it follows, null for all. ``hold``: it goes on by a hold, else
behind the places of ``behind``, by substream (none: wherever the log begins).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from chaos.check.history import History

__all__ = ["Append", "LogHistory", "Place", "Session", "Substream", "of_a_log"]

_OPS = ("publish", "transaction")


class Substream(NamedTuple):
    """One order: a stream, and which of its substreams."""

    stream: str
    number: int

    def __str__(self) -> str:
        return f"{self.stream}/{self.number}"


class Place(NamedTuple):
    """Where a message is in its substream."""

    lsn: int
    ordinal: int


@dataclass(slots=True)
class Append:
    """What a publisher wants in the log at once: all tries of it."""

    number: int
    caller: str
    op: str
    messages: list[tuple[str, str, str | None]]
    tries: int = 0
    acknowledged: bool = False
    denied: int = 0
    # Where its publisher was told that its messages are.
    told: list[list[int]] | None = None
    # The highest LSN that a client had been told when it was first tried.
    floor: int = 0

    @property
    def known_not(self) -> bool:
        """Whether each try of it was told that nothing of it is there."""
        return not self.acknowledged and self.denied == self.tries


@dataclass(slots=True)
class Session:
    """A follower from where it began until it ended, or was killed."""

    follower: str
    stream: str
    # None: all of the stream's.
    substreams: list[int] | None
    hold: bool
    behind: dict[int, Place]
    reads: list[tuple[int, Place]] = field(default_factory=list)
    # By substream, through where it has said that it is done.
    done: dict[int, Place] = field(default_factory=dict)
    closed: bool = False
    refused: str = ""

    def follows(self, substream: Substream) -> bool:
        """Whether this is one of its substreams."""
        mine = self.substreams is None or substream.number in self.substreams
        return mine and substream.stream == self.stream

    def of(self, substream: int) -> list[Place]:
        """Return what it read of a substream, as it came."""
        return [place for at, place in self.reads if at == substream]

    def say_done(self, substream: int, through: Place) -> None:
        """What it read up to this message is done."""
        last = max(
            (at for at, read in enumerate(self.reads) if read == (substream, through)), default=-1
        )
        for at, place in self.reads[: last + 1]:
            self.done[at] = place


class LogHistory:
    """A history, gathered: appends by number, sessions by follower, and who read what where."""

    def __init__(self, history: History) -> None:
        self.appends: dict[int, Append] = {}
        self.sessions: dict[str, list[Session]] = defaultdict(list)
        # What was read at each place: one message, or the log changed under its readers.
        self.contents: dict[Substream, dict[Place, set[tuple[str, str | None]]]] = defaultdict(dict)
        self.tails: dict[Substream, Place | None] = {}
        self._floor = 0
        for event in history.events:
            self._take(event)
        self.order = {each: sorted(found) for each, found in self.contents.items()}
        self.found: dict[str, list[tuple[Substream, Place]]] = defaultdict(list)
        for substream, places in self.contents.items():
            for place, messages in sorted(places.items()):
                for name, _ in messages:
                    self.found[name].append((substream, place))

    def lsns(self, append: Append) -> set[int]:
        """Return where an append's messages were read."""
        return {place.lsn for name, *_ in append.messages for _, place in self.found.get(name, ())}

    def _take(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "start":
                self._start(event)
            case "end" | "resolved":
                self._told(self.appends[event["call"]], event)
            case "follow":
                behind = {int(at): Place(*place) for at, place in (event["behind"] or {}).items()}
                session = Session(
                    event["follower"], event["stream"], event["substreams"], event["hold"], behind
                )
                self.sessions[event["follower"]].append(session)
            case "read":
                session = self.sessions[event["follower"]][-1]
                at, place = event["substream"], Place(event["lsn"], event["ordinal"])
                session.reads.append((at, place))
                places = self.contents[Substream(session.stream, at)]
                places.setdefault(place, set()).add((event["message"], event["key"]))
            case "done":
                place = Place(event["lsn"], event["ordinal"])
                self.sessions[event["follower"]][-1].say_done(event["substream"], place)
            case "closed":
                self.sessions[event["follower"]][-1].closed = True
            case "refused":
                self.sessions[event["follower"]][-1].refused = event["code"]
            case "tail":
                last = None if event["place"] is None else Place(*event["place"])
                self.tails[Substream(event["stream"], event["substream"])] = last

    def _start(self, event: dict[str, Any]) -> None:
        append = self.appends.get(event["call"])
        if append is None:
            messages = [(name, stream, key) for name, stream, key in event["messages"]]
            append = Append(event["call"], event["caller"], event["op"], messages)
            append.floor = self._floor
            self.appends[event["call"]] = append
        append.tries += 1

    def _told(self, append: Append, event: dict[str, Any]) -> None:
        if event["outcome"] == "executed":
            append.acknowledged = True
            if event["places"] is not None:
                append.told = event["places"]
                self._floor = max([self._floor, *(lsn for _, lsn, _ in event["places"])])
        elif event["outcome"] == "not-executed":
            append.denied += 1


def of_a_log(history: History) -> bool:
    """Whether it is a log's, and not one of calls."""
    return any(event["event"] == "follow" or event.get("op") in _OPS for event in history.events)
