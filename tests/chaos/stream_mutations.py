"""Rules of streams, each broken on purpose (DESIGN §4)."""

from __future__ import annotations

import unittest.mock
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from rifl.core._calling.stream_attempts import ReceivedResponses
from rifl.core._serving import serving
from rifl.core._serving.policy import Kind
from rifl.core._serving.streams import RequestStream, ResponseStream

__all__ = [
    "another_run_sends_all",
    "broken_stream_repeated",
    "half_a_stream_believed",
    "long_stream_kept_in_part",
    "raising_means_rolled_back",
    "recorded_before_the_last_message",
    "rest_from_the_wrong_place",
]


def broken_stream_repeated() -> AbstractContextManager[Any]:
    original = serving._judge

    def judge(attempt: Any, result: Any) -> Any:
        if result.broken:
            attempt.policy = replace(attempt.policy, kind=Kind.IDEMPOTENT)
        return original(attempt, result)

    return unittest.mock.patch.object(serving, "_judge", judge)


def raising_means_rolled_back() -> AbstractContextManager[Any]:
    original = serving._judge

    def judge(attempt: Any, result: Any) -> Any:
        return original(attempt, result._replace(undone=True))

    return unittest.mock.patch.object(serving, "_judge", judge)


def half_a_stream_believed() -> AbstractContextManager[Any]:
    def exhausted(self: RequestStream) -> None:
        # As if an end needed neither a marker nor a payload.
        self.ended = True

    return unittest.mock.patch.object(RequestStream, "exhausted", exhausted)


def rest_from_the_wrong_place() -> AbstractContextManager[Any]:
    return unittest.mock.patch.object(
        ReceivedResponses, "asked_after", lambda self: max(self.count - 1, 0)
    )


def recorded_before_the_last_message() -> AbstractContextManager[Any]:
    original = ResponseStream.result

    def result(self: ResponseStream, live: Any) -> Any:
        self.kept = self.kept[:-1]
        return original(self, live)

    return unittest.mock.patch.object(ResponseStream, "result", result)


def another_run_sends_all() -> AbstractContextManager[Any]:
    original = ResponseStream.add

    def add(self: ResponseStream, message: bytes) -> bool:
        original(self, message)
        return self.here

    return unittest.mock.patch.object(ResponseStream, "add", add)


def long_stream_kept_in_part() -> AbstractContextManager[Any]:
    original = ResponseStream.result

    def result(self: ResponseStream, live: Any) -> Any:
        self.overflown = False
        return original(self, live)

    return unittest.mock.patch.object(ResponseStream, "result", result)
