"""The history of a run: what happened, in order; one form for simulated and real runs.

A history is a file of JSON objects, one a line, in the order in which things
happened. ``call`` is a number the recorder gives an operation; all attempts of it
share it, and so do all callers that ask for it under one key of their own (then it has
a ``start`` and an ``end`` for each). It is not the wire's identity: two calls under one
would be one of the defects that are looked for. ``at`` is seconds of any one clock and only shown.

| ``event`` | fields | meaning |
|---|---|---|
| ``start`` | at, call, op, account, amount, promise | a caller asks for an operation |
| ``end`` | at, call, outcome, code, value, reason | its caller is told |
| ``begin`` | at, call | a server begins to run it (optional, for what may run again) |
| ``effect`` | at, call, account, version, amount (optional) | it has had an effect, durable |
| ``half`` | at, call | a server took half of its request stream for all of it |
| ``unrecorded`` | at, call | its effect was committed without its record: see below |
| ``answer`` | at, call, outcome, code, value | a server sends an answer of its handler's |
| ``resolved`` | at, call, outcome, value | a caller asked later what became of it |
| ``final`` | account, version, total | what is there in the end |

``op`` is ``add`` (changes the account and returns what it then holds), ``touch`` (the
same, for a method that may run again until it is answered) or ``read``. ``promise`` is
``once``, ``at-least-once``, or ``unordered``: it may run again after it was answered, too, as a
method that is never claimed does. ``outcome`` is the wire's word. ``value`` is
``[version, total]``, or null where the answer tells nothing of it. A ``start`` without
an ``end`` belongs to a caller that died: it was told nothing.

``caller`` may stand in a ``start`` and its ``end``: who asks, where several ask under one key;
``by`` in an ``end``: who answered, if that process should not have.

``unrecorded`` speaks of an ``atomic`` handler that breaks its contract, and whose server could not
tell the store: it died, or the call was taken over, before. The record is all that tells that such
a call has run: no caller is promised a true *not executed* of this one. Of any other it is, also
if the handler broke its contract and its server lived to see it.

A call whose answer is a stream has ``messages`` in its ``start`` (how many there are to be)
and in each ``end`` and ``answer``: those that were handed over, each ``[place, version, total]``,
places counted from 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

__all__ = ["History", "read_value"]


def read_value(answer: bytes | None) -> list[int] | None:
    """Return the value in an answer of ``version total``, None if there is none."""
    if not answer:
        return None
    version, total = answer.split(b" ")
    return [int(version), int(total)]


class History:
    """Events in order; append-only. One thread."""

    def __init__(self, events: Iterable[dict[str, Any]] = ()) -> None:
        self.events: list[dict[str, Any]] = list(events)

    def start(
        self,
        at: float,
        call: int,
        op: str,
        account: str,
        amount: int,
        promise: str,
        messages: int | None = None,
        caller: str = "",
    ) -> None:
        """Note that a caller asks."""
        event = {
            "event": "start",
            "at": at,
            "call": call,
            "op": op,
            "account": account,
            "amount": amount,
            "promise": promise,
        }
        if messages is not None:
            event["messages"] = messages
        if caller:
            event["caller"] = caller
        self.events.append(event)

    def end(
        self,
        at: float,
        call: int,
        outcome: str,
        code: str,
        value: list[int] | None,
        reason: str,
        messages: list[list[int]] | None = None,
        caller: str = "",
    ) -> None:
        """Note what the caller is told."""
        event = {
            "event": "end",
            "at": at,
            "call": call,
            "outcome": outcome,
            "code": code,
            "value": value,
            "reason": reason,
        }
        if messages is not None:
            event["messages"] = messages
        if caller:
            event["caller"] = caller
        self.events.append(event)

    def begin(self, at: float, call: int) -> None:
        """Note that a server begins to run an operation that may run again."""
        self.events.append({"event": "begin", "at": at, "call": call})

    def half(self, at: float, call: int) -> None:
        """Note that a server took half of a request stream for all of it."""
        self.events.append({"event": "half", "at": at, "call": call})

    def effect(
        self, at: float, call: int, account: str, version: int, amount: int | None = None
    ) -> None:
        """Note an effect."""
        event = {"event": "effect", "at": at, "call": call, "account": account, "version": version}
        if amount is not None:
            event["amount"] = amount
        self.events.append(event)

    def unrecorded(self, at: float, call: int) -> None:
        """Note that an effect was committed without its record, and no store heard of that."""
        self.events.append({"event": "unrecorded", "at": at, "call": call})

    def answer(
        self,
        at: float,
        call: int,
        outcome: str,
        code: str,
        value: list[int] | None,
        messages: list[list[int]] | None = None,
    ) -> None:
        """Note an answer that leaves a server."""
        event = {
            "event": "answer",
            "at": at,
            "call": call,
            "outcome": outcome,
            "code": code,
            "value": value,
        }
        if messages is not None:
            event["messages"] = messages
        self.events.append(event)

    def resolved(self, at: float, call: int, outcome: str, value: list[int] | None) -> None:
        """Note the answer to a question about a call whose outcome was unknown."""
        self.events.append(
            {"event": "resolved", "at": at, "call": call, "outcome": outcome, "value": value}
        )

    def final(self, account: str, version: int, total: int) -> None:
        """Note what an account holds in the end."""
        self.events.append(
            {"event": "final", "account": account, "version": version, "total": total}
        )

    def place_effects(self, effects: dict[int, list[tuple[str, int]]]) -> None:
        """Put effects, found afterwards in a log, behind the start of their calls.

        That is where they are known not to be earlier; their order is their versions'.
        """
        events: list[dict[str, Any]] = []
        for event in self.events:
            events.append(event)
            if event["event"] == "start":
                for account, version in effects.pop(event["call"], ()):
                    events.append(
                        {
                            "event": "effect",
                            "at": event["at"],
                            "call": event["call"],
                            "account": account,
                            "version": version,
                        }
                    )
        self.events = events
        for call, found in effects.items():
            for account, version in found:
                self.effect(0.0, call, account, version)

    def write(self, path: Path) -> None:
        """Write one JSON object a line."""
        path.write_text("".join(json.dumps(event) + "\n" for event in self.events))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what ``write`` wrote; raises ``ValueError`` for a line that is no event."""
        events = []
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if not line.strip():
                continue
            event = json.loads(line)
            if not isinstance(event, dict) or "event" not in event:
                raise ValueError(f"{path}:{number} is no event of a history")
            events.append(event)
        return cls(events)
