"""The judgement of a run: by ``chaos.check``'s rules, and by what its scenario expects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from chaos.check import History, check
from chaos.run.scenario import Expected

__all__ = ["judge", "told"]

_MOST_SHOWN = 20
_WRONG = ("BAD_HEADER", "PAYLOAD_MISMATCH", "NOT_YOURS", "STALE_RPC")
# A publisher that did nothing of the kind.
_WRONG_OF_LOGS = (
    *("AlreadyCommitted", "PredecessorMismatch", "SeqReused", "OutOfOrder", "AnswerGone"),
    *("UnknownProducer", "LogForked", "CorruptLog", "NewerFormat", "InvalidRequest"),
)


def told(history: History) -> Counter[str]:
    """Count what callers were told: outcomes, ``effects``, ``calls`` and ``died`` callers.

    Of a log: appends, and the messages that were read.
    """
    counts: Counter[str] = Counter()
    started: Counter[int] = Counter()
    read: set[tuple[str, int]] = set()
    for event in history.events:
        match event["event"]:
            case "start":
                started[event["call"]] += 1
            case "end":
                started[event["call"]] -= 1
                counts[event["outcome"]] += 1
                counts["answers"] += event["code"] == "OK"
            case "resolved":
                counts["resolved"] += 1
            case "effect":
                counts["effects"] += 1
            case "read":
                read.add((event["message"], event["lsn"]))
    counts["effects"] += len(read)
    counts["calls"] = len(started)
    counts["died"] = sum(started.values())
    return counts


def judge(history: History, expect: Expected, *, killed_clients: bool) -> Iterable[str]:
    """Say everything that is wrong with a history; nothing, if it holds.

    ``killed_clients``: a caller that was never told anything is no surprise then.
    """
    broken = [each for each in check(history) if each.rule not in expect.exempt]
    yield from map(str, broken[:_MOST_SHOWN])
    if len(broken) > _MOST_SHOWN:
        yield f"... and {len(broken) - _MOST_SHOWN} more"
    counts = told(history)
    if counts["answers"] < expect.answers:
        yield f"{counts['answers']} answers show too little: {expect.answers} were expected"
    if counts["replayed"] < expect.replayed:
        yield (
            f"{counts['replayed']} answers came from records: {expect.replayed} were expected, "
            "so the faults did not strike where they should"
        )
    yield from _by_workers(history.events, expect.forked)
    if counts["died"] and not killed_clients:
        yield f"{counts['died']} calls never ended"
    strange = _strange(history.events)
    if strange:
        yield f"callers were refused as never should be: {strange}"


def _by_workers(events: Iterable[dict[str, Any]], expected: int) -> Iterator[str]:
    """Say what is wrong with what forked workers answered."""
    told = Counter(
        (each["code"], each["reason"]) for each in events if each.get("by") == "forked worker"
    )
    refused = sum(count for (_, reason), count in told.items() if reason == "FORKED_PROCESS")
    if refused < expected:
        yield f"{refused} calls were refused as FORKED_PROCESS: {expected} were expected"
    for (code, reason), count in told.items():
        # One that is killed with its server, or is not there yet, answers nothing.
        if reason != "FORKED_PROCESS" and (code, reason) != ("UNAVAILABLE", ""):
            yield f"forked workers answered {count} calls with {code} {reason}"


def _strange(events: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Count refusals that say that a caller, or a header, was wrong."""
    found = Counter(each["reason"] for each in events if each.get("reason") in _WRONG)
    found += Counter(each["code"] for each in events if each.get("code") in _WRONG_OF_LOGS)
    return dict(found)
