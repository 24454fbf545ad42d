"""The checker of a log's histories: what it must reject, and what it must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chaos.check import LOG_RULES, History, check

_Events = list[dict[str, Any]]


def _start(call: int, caller: str, *messages: str, op: str = "publish") -> dict[str, Any]:
    told = [[name, "orders", name[0]] for name in messages]
    return {"event": "start", "at": 0, "call": call, "op": op, "caller": caller, "messages": told}


def _end(call: int, outcome: str, *places: list[int], event: str = "end") -> dict[str, Any]:
    code = "OK" if outcome == "executed" else "LogUnavailable"
    said = {"event": event, "at": 0, "call": call, "outcome": outcome, "code": code}
    return {**said, "places": list(places) or None}


def _follow(name: str, *, hold: bool, behind: dict[str, list[int]] | None = None) -> dict[str, Any]:
    said = {"event": "follow", "at": 0, "follower": name, "stream": "orders"}
    return {**said, "substreams": None, "hold": hold, "behind": behind}


def _read(name: str, message: str, substream: int, lsn: int, ordinal: int = 0) -> dict[str, Any]:
    place = {"substream": substream, "lsn": lsn, "ordinal": ordinal}
    said = {"event": "read", "at": 0, "follower": name, "message": message, "key": message[0]}
    return {**said, **place}


def _done(name: str, substream: int, lsn: int, ordinal: int = 0) -> dict[str, Any]:
    place = {"substream": substream, "lsn": lsn, "ordinal": ordinal}
    return {"event": "done", "at": 0, "follower": name, **place}


def _tail(substream: int, place: list[int] | None) -> dict[str, Any]:
    return {"event": "tail", "stream": "orders", "substream": substream, "place": place}


def _good() -> _Events:
    """Return what keeps every rule: keys a and b are in substream 0, c is in 1.

    Transaction 2 is committed at LSN 4; of 3 nobody was told, and it is there; 4 was rolled back;
    5 was tried twice by a name; 6 was unknown, and is not there.
    """
    return [
        _start(1, "p1", "a1"),
        _end(1, "executed", [0, 1, 0]),
        _start(2, "p2", "a2", "c1", "b1", op="transaction"),
        _start(3, "p3", "c2"),
        _end(2, "executed", [0, 4, 0], [1, 4, 0], [0, 4, 1]),
        _start(4, "p1", "a3", "c3", op="transaction"),
        _end(4, "not-executed"),
        _start(5, "p4", "b2", op="transaction"),
        _end(5, "unknown"),
        _start(5, "p4", "b2", op="transaction"),
        _end(5, "executed", [0, 7, 0]),
        _start(6, "p1", "a4"),
        _end(6, "unknown"),
        _end(6, "not-executed", event="resolved"),
        # By a hold: killed when it had done a1 and read a commit, then closed, then begun again.
        _follow("stock", hold=True),
        _read("stock", "a1", 0, 1),
        _done("stock", 0, 1),
        _read("stock", "a2", 0, 4, 0),
        _read("stock", "b1", 0, 4, 1),
        _follow("stock", hold=True),
        _read("stock", "a2", 0, 4, 0),
        _read("stock", "b1", 0, 4, 1),
        _read("stock", "c1", 1, 4, 0),
        _read("stock", "c2", 1, 5),
        _done("stock", 1, 4, 0),
        _done("stock", 1, 5),
        {"event": "closed", "at": 0, "follower": "stock"},
        _follow("stock", hold=True),
        _read("stock", "b2", 0, 7),
        # By positions of its own.
        _follow("mail", hold=False),
        _read("mail", "a1", 0, 1),
        _read("mail", "a2", 0, 4, 0),
        _follow("mail", hold=False, behind={"0": [4, 0]}),
        _read("mail", "b1", 0, 4, 1),
        _read("mail", "c1", 1, 4, 0),
        _read("mail", "c2", 1, 5),
        _read("mail", "b2", 0, 7),
        _tail(0, [7, 0]),
        _tail(1, [5, 0]),
    ]


def _find(events: _Events, event: str, which: int = 0, **fields: Any) -> int:
    """Return where an event with these fields stands."""
    found = [
        at
        for at, each in enumerate(events)
        if each["event"] == event and all(each.get(name) == fields[name] for name in fields)
    ]
    return found[which]


def _change(event: str, which: int = 0, /, to: dict[str, Any] | None = None, **fields: Any) -> Any:
    """Return what changes the event with these fields; without ``to`` removes it."""

    def change(events: _Events) -> None:
        at = _find(events, event, which, **fields)
        if to is None:
            del events[at]
        else:
            events[at] = {**events[at], **to}

    return change


def _all(*changes: Callable[[_Events], None]) -> Callable[[_Events], None]:
    def change(events: _Events) -> None:
        for each in changes:
            each(events)

    return change


def _nobody_reads(message: str) -> Callable[[_Events], None]:
    def change(events: _Events) -> None:
        events[:] = [each for each in events if each.get("message") != message]

    return change


def _everybody_reads(message: str, **place: Any) -> Callable[[_Events], None]:
    def change(events: _Events) -> None:
        for each in events:
            if each.get("message") == message:
                each.update(place)

    return change


def _insert(before: str, which: int, *added: dict[str, Any], **fields: Any) -> Any:
    def change(events: _Events) -> None:
        at = _find(events, before, which, **fields)
        events[at:at] = added

    return change


# The rule that is broken, and what breaks it, by what is wrong with it.
_BAD: dict[str, tuple[str, Callable[[_Events], None]]] = {
    "an acknowledged message that nobody read": ("lost", _nobody_reads("a1")),
    "a message that stands there again": (
        "doubled",
        _all(
            _insert("follow", 2, _read("stock", "c2", 1, 6), follower="stock"),
            _change("read", message="b2", follower="stock", to={"lsn": 7}),
        ),
    ),
    "a transaction that was rolled back and read": (
        "labels",
        _insert("read", 0, _read("stock", "a3", 0, 6), message="b2", follower="stock"),
    ),
    "what was unknown, then said not to be there, and is": (
        "labels",
        _insert("read", 0, _read("mail", "a4", 0, 6), message="b2", follower="mail"),
    ),
    "a message that nobody published": (
        "labels",
        _insert("read", 0, _read("mail", "a9", 0, 6), message="b2", follower="mail"),
    ),
    "a message of another key": ("labels", _change("read", message="b2", to={"key": "a"})),
    "a transaction of which a part is missing": ("torn", _nobody_reads("c1")),
    "a transaction that is committed at two LSNs": (
        "torn",
        _all(_everybody_reads("b1", lsn=6, ordinal=0), _change("end", call=2, to={"places": None})),
    ),
    "a message elsewhere than its publisher was told": (
        "answers",
        _change("end", call=1, to={"places": [[0, 2, 0]]}),
    ),
    "a place that is another message to another follower": (
        "answers",
        _change("read", message="a1", follower="mail", to={"message": "a4"}),
    ),
    "a key in two substreams": ("order", _everybody_reads("b2", substream=1)),
    "what one caller published later stands before": (
        "order",
        _all(
            _change("start", call=2, to={"caller": "p3"}),
            _everybody_reads("c2", lsn=3),
            _change("start", call=3, to={"messages": [["c2", "orders", "c"]]}),
        ),
    ),
    "what began after an acknowledgement stands before it": (
        "order",
        _all(_everybody_reads("b2", lsn=3), _change("end", 1, call=5, to={"places": [[0, 3, 0]]})),
    ),
    "two messages of an append turned round": (
        "order",
        _all(
            _everybody_reads("a2", ordinal=1),
            _everybody_reads("b1", ordinal=0),
            _change("end", call=2, to={"places": [[0, 4, 1], [1, 4, 0], [0, 4, 0]]}),
        ),
    ),
    "a follower that skips a message": (
        "read",
        _all(
            _change("follow", 1, follower="mail"),
            _change("read", message="b1", follower="mail"),
        ),
    ),
    "a follower that reads one twice": (
        "read",
        _insert("read", 0, _read("mail", "a1", 0, 1), message="a2", follower="mail"),
    ),
    "a follower whose substreams come against the commits": (
        "read",
        _all(
            _change("read", message="c2", follower="mail"),
            _insert("tail", 0, _read("mail", "c2", 1, 5)),
        ),
    ),
    "a hold that went beyond what was done": (
        "resumed",
        _all(
            _change("read", 1, message="a2", follower="stock"),
            _change("read", 1, message="b1", follower="stock"),
        ),
    ),
    "a hold that went back": (
        "resumed",
        _insert(
            "read",
            0,
            _read("stock", "b1", 0, 4, 1),
            message="b2",
            follower="stock",
        ),
    ),
    "a position that was not gone on behind": (
        "resumed",
        _insert("read", 0, _read("mail", "a2", 0, 4, 0), message="b1", follower="mail"),
    ),
    "a follower that does not get the last message": (
        "end",
        _change("read", message="b2", follower="stock"),
    ),
    "a message behind what the log ends with": ("end", _change("tail", to={"place": [4, 1]})),
    "a hold before which something was trimmed": (
        "refused",
        _insert(
            "tail", 0, {"event": "refused", "at": 0, "follower": "stock", "code": "TrimmedLog"}
        ),
    ),
    "a log that is damaged": (
        "refused",
        _insert("tail", 0, {"event": "refused", "at": 0, "follower": "mail", "code": "CorruptLog"}),
    ),
}


def test_a_history_that_keeps_the_rules_is_accepted() -> None:
    """Rolled back, unknown, tried twice, killed, begun again: none breaks a rule (DESIGN-LOG §13).

    Nor is it broken where a follower without a hold was behind what was trimmed, and began anew.
    """
    assert check(History(_good())) == []
    events = _good()
    told = {"event": "refused", "at": 0, "follower": "mail", "code": "TrimmedLog"}
    again = [_follow("mail", hold=False), _read("mail", "b2", 0, 7), _read("mail", "c4", 1, 8)]
    at = _find(events, "tail")
    events[at:] = [
        *(told, *again, _start(7, "p4", "c4"), _end(7, "unknown"), _follow("stock", hold=True)),
        *(_read("stock", "b2", 0, 7), _read("stock", "c4", 1, 8)),
        *(_tail(0, [7, 0]), _tail(1, [8, 0])),
    ]
    assert check(History(events)) == []


@pytest.mark.parametrize("what", _BAD)
def test_a_history_that_breaks_a_rule_is_rejected_by_that_rule(what: str) -> None:
    """One thing is wrong with a good history, and the rule that it breaks says so."""
    rule, change = _BAD[what]
    events = _good()
    change(events)
    assert rule in {violation.rule for violation in check(History(events))}


def test_every_rule_has_a_history_that_it_rejects() -> None:
    """A check that cannot fail is none: each rule has test data of its own."""
    assert {rule for rule, _ in _BAD.values()} == set(LOG_RULES)
