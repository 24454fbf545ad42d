"""Callers with the client SDK while their servers are disturbed, and what they are owed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

import rifl

__all__ = ["Results", "judge", "storm"]

# What each request was answered, or what became of it.
Results = list[tuple[bytes, "bytes | rifl.Outcome"]]
_CALL_S = 30.0


def storm(
    channels: Sequence[Any],
    method: str,
    name: str,
    disturb: Callable[[threading.Event], None],
    *,
    callers: int = 4,
) -> Results:
    """Call from many threads, round the channels, until ``disturb`` returns.

    ``disturb`` runs in a thread of its own, and pauses on the event it is given, which
    is set if the callers fail.
    """
    done, hurry = threading.Event(), threading.Event()

    def disturbing() -> None:
        try:
            disturb(hurry)
        finally:
            done.set()

    def caller(number: int) -> Results:
        results: Results = []
        while not done.is_set():
            request = f"{name}-{number}-{len(results)}".encode()
            call = channels[(number + len(results)) % len(channels)].unary_unary(method)
            try:
                results.append((request, call(request, timeout=_CALL_S)))
            except grpc.RpcError as error:
                results.append((request, error.outcome))  # type: ignore[attr-defined]
        return results

    for number, channel in enumerate(channels):
        channel.unary_unary(method)(f"{name}-first-{number}".encode(), timeout=_CALL_S)
    trouble = threading.Thread(target=disturbing, daemon=True)
    trouble.start()
    try:
        with ThreadPoolExecutor(callers) as pool:
            found = [pool.submit(caller, number) for number in range(callers)]
            return [each for future in found for each in future.result()]
    finally:
        hurry.set()
        trouble.join()


def judge(results: Results, counts: Mapping[bytes, int], at_least: int) -> None:
    """What was answered happened once; what is unknown once at most; the rest never."""
    answered = [request for request, found in results if isinstance(found, bytes)]
    assert {counts[request] for request in answered} == {1}
    for request, found in results:
        if not isinstance(found, bytes):
            assert counts[request] <= (found is rifl.Outcome.UNKNOWN), (request, found)
    assert len(answered) >= max(at_least, len(results) * 0.9)
