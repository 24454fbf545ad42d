"""Checks of a history: what must hold of each, rule by rule (DESIGN §1, §3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from chaos.check.history import History
from chaos.check.linearizable import Interval, Undecided, linearizable
from chaos.check.violation import Violation

__all__ = ["RULES", "check_calls"]

_RAN = ("executed", "replayed")


class _Call:
    """All events of one operation; the numbers are positions in the history."""

    __slots__ = (
        "answers",
        "asked",
        "begins",
        "callers",
        "effects",
        "ends",
        "halved",
        "number",
        "resolved",
        "start",
        "started",
        "unrecorded",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.started = -1
        self.start: dict[str, Any] = {}
        self.callers = 0
        # Where each caller that has a name asked first.
        self.asked: dict[str, int] = {}
        # Several, where several callers ask for it under one key.
        self.ends: list[tuple[int, dict[str, Any]]] = []
        self.begins: list[tuple[int, dict[str, Any]]] = []
        self.effects: list[tuple[int, dict[str, Any]]] = []
        self.answers: list[tuple[int, dict[str, Any]]] = []
        self.resolved: list[tuple[int, dict[str, Any]]] = []
        # A server took half of its request stream for all of it.
        self.halved = False
        # Its handler committed without its record, and its server could not say so: it died, or
        # the call was taken over before. An ``atomic`` call is known by its record alone, so
        # nothing is promised of this one's *not executed*.
        self.unrecorded = False

    @property
    def amount(self) -> int:
        """What its effect has changed the account by: all of it, or half of a stream."""
        asked: int = self.start.get("amount", 0)
        return self.effects[0][1].get("amount", asked) if self.effects else asked

    def never_ran(self) -> bool:
        """Whether the callers were told so: one of its identity, or each of its own try."""
        if any(event["outcome"] == "not-executed" for _, event in self.resolved):
            return True
        ends = [event["outcome"] for _, event in self.ends]
        return len(ends) == self.callers and set(ends) == {"not-executed"}

    def denied_too_late(self) -> Iterator[str]:
        """Name the callers who were told not executed, and asked when it had had its effect.

        Its own attempts were not executed; the key was, by another's.
        """
        first = min((at for at, _ in self.effects), default=math.inf)
        for _, event in self.ends:
            caller = event.get("caller", "")
            if event["outcome"] == "not-executed" and self.asked.get(caller, 0) > first:
                yield caller

    def told(self) -> Iterator[tuple[int, str, Any]]:
        """Each time a caller was told an outcome: where, which, and the value."""
        for at, event in self.ends + self.resolved:
            yield at, event["outcome"], event["value"]


_Calls = dict[int, _Call]
_Rule = Callable[[_Calls, History], Iterator[Violation]]


def check_calls(history: History) -> list[Violation]:
    """Return everything that breaks a rule; empty for a history that keeps them."""
    calls = _gather(history)
    return [violation for rule in RULES.values() for violation in rule(calls, history)]


def _gather(history: History) -> _Calls:
    calls: _Calls = {}
    for at, event in enumerate(history.events):
        kind = event["event"]
        if kind == "final":
            continue
        call = calls.get(event["call"])
        if call is None:
            call = calls[event["call"]] = _Call(event["call"])
        if kind == "start":
            call.callers += 1
            if "caller" in event:
                call.asked.setdefault(event["caller"], at)
            if not call.start:
                call.started, call.start = at, event
        elif kind == "end":
            call.ends.append((at, event))
        elif kind == "begin":
            call.begins.append((at, event))
        elif kind == "effect":
            call.effects.append((at, event))
        elif kind == "answer":
            call.answers.append((at, event))
        elif kind == "resolved":
            call.resolved.append((at, event))
        elif kind == "half":
            call.halved = True
        elif kind == "unrecorded":
            call.unrecorded = True
    return calls


def _changes(call: _Call) -> bool:
    return call.start.get("op") in ("add", "touch")


def _nothing_lost(calls: _Calls, history: History) -> Iterator[Violation]:
    """An operation whose caller was told that it succeeded has had its effect."""
    for call in calls.values():
        if not _changes(call):
            continue
        for at, outcome, value in call.told():
            if outcome not in _RAN or value is None:
                continue
            if not any(where < at for where, _ in call.effects):
                yield Violation("lost", f"call {call.number}", "acknowledged, and had no effect")


def _nothing_doubled(calls: _Calls, history: History) -> Iterator[Violation]:
    """Nothing promised once has two effects; nothing at all begins after its answer.

    One that a suspended server had begun before may have its effect later, which nothing can
    stop; or one whose method is never claimed (``unordered``). Where no beginnings are
    recorded, the effects count.
    """
    for call in calls.values():
        if call.start.get("promise") == "once":
            if len(call.effects) > 1:
                text = f"{len(call.effects)} effects"
                yield Violation("doubled", f"call {call.number}", text)
            continue
        if call.start.get("promise") == "unordered":
            continue
        told = [at for at, outcome, _ in call.told() if outcome in _RAN]
        if told and any(at > min(told) for at, _ in call.begins or call.effects):
            yield Violation("doubled", f"call {call.number}", "ran again after it was answered")


def _answers_identical(calls: _Calls, history: History) -> Iterator[Violation]:
    """All callers that are told an operation's answer are told the same.

    A stream too long to be kept is for the first caller alone, and all others know that.
    """
    for call in calls.values():
        told = [(event["code"], event["value"]) for _, event in call.answers]
        told += [
            (event["code"], event["value"])
            for _, event in call.ends
            if event["outcome"] in _RAN
            and not ("messages" in event and event["reason"] == "RESPONSE_TOO_LARGE")
        ]
        if any(answer != told[0] for answer in told):
            yield Violation("answers", f"call {call.number}", f"differ: {told}")


def _labels_honest(calls: _Calls, history: History) -> Iterator[Violation]:
    """Not executed: never an effect, whenever it is. Executed: exactly one."""
    for call in calls.values():
        if not call.start:
            yield Violation("labels", f"call {call.number}", "happened, and no caller asked for it")
            continue
        if call.halved:
            text = "half of its request stream was taken for all of it"
            yield Violation("labels", f"call {call.number}", text)
        if call.effects and call.never_ran() and not call.unrecorded:
            yield Violation("labels", f"call {call.number}", "not executed, and had an effect")
        for who in call.denied_too_late():
            text = f"not executed, told {who}, who asked after its effect"
            yield Violation("labels", f"call {call.number}", text)
        for _, outcome, value in call.told():
            if (
                outcome in _RAN
                and value is not None
                and call.start["promise"] == "once"
                and _changes(call)
                and len(call.effects) != 1
            ):
                text = f"executed, and had {len(call.effects)} effects"
                yield Violation("labels", f"call {call.number}", text)
        for _, event in call.ends:
            if event["value"] is not None and call.amount != call.start["amount"]:
                text = f"executed, and had the effect of half its stream, {call.amount}"
                yield Violation("labels", f"call {call.number}", text)
            if event["reason"] == "PAYLOAD_MISMATCH":
                text = "refused as another payload, and sent but one"
                yield Violation("labels", f"call {call.number}", text)


def _messages_whole(calls: _Calls, history: History) -> Iterator[Violation]:
    """A caller gets the messages of its answer in order, each once; told a success, all.

    What others get, or a server keeps, are the same messages.
    """
    for call in calls.values():
        count = call.start.get("messages")
        if count is None:
            continue
        told = [event for _, event in call.ends + call.answers]
        longest: list[list[int]] = max((event["messages"] for event in told), key=len, default=[])
        for event in told:
            messages = event["messages"]
            if [message[0] for message in messages] != list(range(len(messages))):
                text = f"not in order, each once: {messages}"
            elif messages != longest[: len(messages)]:
                text = f"differ: {messages} and {longest}"
            elif event["code"] == "OK" and len(messages) != count:
                text = f"{len(messages)} of {count}, and a success"
            else:
                continue
            yield Violation("messages", f"call {call.number}", text)


def _linearizable(calls: _Calls, history: History) -> Iterator[Violation]:
    """Each account whose operations happen once has an order that explains the answers."""
    accounts: dict[str, list[Interval]] = {}
    effects_known = any(event["event"] == "effect" for event in history.events)
    excluded = {
        call.start["account"]
        for call in calls.values()
        if call.start and call.start["op"] != "read" and call.start["promise"] != "once"
    }
    for call in calls.values():
        start = call.start
        if not start or start["account"] in excluded:
            continue
        interval = _interval(call, effects_known)
        if interval is not None:
            accounts.setdefault(start["account"], []).append(interval)
    for account, intervals in accounts.items():
        try:
            if not linearizable(intervals):
                yield Violation("linearizable", account, "no order explains the answers")
        except Undecided as undecided:
            yield Violation("linearizable", account, f"undecided: {undecided}")


def _interval(call: _Call, effects_known: bool) -> Interval | None:
    start = call.start
    amount = None if start["op"] == "read" else call.amount
    if amount is None:
        for at, event in call.ends:
            if event["outcome"] in _RAN and event["value"] is not None:
                return Interval(call.number, call.started, at, None, *event["value"])
        return None
    if call.never_ran() and not call.unrecorded:
        return None
    ended, version, total = None, None, None
    for at, outcome, value in call.told():
        if outcome in _RAN and (ended is None or at < ended):
            ended = at
            if value is not None:
                version, total = value
    if call.effects:
        if version is None:
            version = call.effects[0][1]["version"]
    elif effects_known:
        # What its answer says of an effect that is not there, other rules find.
        return None
    return Interval(
        call.number,
        call.started,
        ended,
        amount,
        version,
        total,
        ended is not None or bool(call.effects),
    )


def _nothing_forgotten(calls: _Calls, history: History) -> Iterator[Violation]:
    """What is there in the end is the sum of all effects."""
    sums: dict[str, tuple[int, int]] = {}
    for call in calls.values():
        for _, event in call.effects:
            version, total = sums.get(event["account"], (0, 0))
            amount = event.get("amount", call.start.get("amount", 0))
            sums[event["account"]] = version + 1, total + amount
    for event in history.events:
        if event["event"] != "final":
            continue
        found = event["version"], event["total"]
        expected = sums.get(event["account"], (0, 0))
        if found != expected:
            yield Violation("forgotten", event["account"], f"holds {found}, not {expected}")


RULES: dict[str, _Rule] = {
    "lost": _nothing_lost,
    "doubled": _nothing_doubled,
    "answers": _answers_identical,
    "labels": _labels_honest,
    "messages": _messages_whole,
    "linearizable": _linearizable,
    "forgotten": _nothing_forgotten,
}
