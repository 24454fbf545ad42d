"""Calls of handlers that the log keeps: what was answered stays so (DESIGN-LOG §14, T6)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import sharedlog
from sharedlog._core.commit import Commit, Refused
from sharedlog._core.consumer.call_keys import keep_call, read_calls
from sharedlog._core.consumer.calls import HandlerCall
from sharedlog._core.consumer.names import shard_fence
from sharedlog._core.fences import Fence, raise_fence

TAG = "orders/0"


@pytest.fixture
def log() -> Iterator[sharedlog.Log]:
    """A log in memory, whose engine notes what is committed."""
    with sharedlog.create("memory:") as made:
        made.stream("orders", substreams=1)
        yield made


@pytest.fixture
def fence(log: sharedlog.Log) -> Fence:
    """The fence of the shard, as one who has it knows it."""
    name = shard_fence("billing", TAG)
    return Fence(name, log._run(raise_fence(name)))


def _call(log: sharedlog.Log, request: bytes, answer: bytes | None = None) -> HandlerCall:
    place = (
        log.read("orders", 0)[0].position if log.read("orders", 0) else log.publish("orders", b"x")
    )
    return HandlerCall(1, place, 0, "session", "7", "rates:1", "/r.R/R", request, answer)


def test_a_late_copy_of_a_call_does_not_take_its_answer_back(
    log: sharedlog.Log, fence: Fence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that was sent again is carried out when the answer is kept already."""
    sent: list[Commit] = []
    commit = log._engine.commit

    def noted(step: Commit) -> object:
        sent.append(step)
        return commit(step)

    monkeypatch.setattr(log._engine, "commit", noted)
    call = _call(log, b"a")
    del sent[:]
    log._run(keep_call("billing", TAG, fence, call, None))
    (first,) = sent
    log._run(keep_call("billing", TAG, fence, call._replace(answer=b"1"), None))
    with pytest.raises(Refused):
        commit(first)
    assert log._run(read_calls("billing", TAG, None)) == [call._replace(answer=b"1")]


def test_a_call_whose_reply_was_lost_is_kept_once_and_another_takes_its_place(
    log: sharedlog.Log, fence: Fence
) -> None:
    """The first is found there; a call that was never sent gives its number to the next."""
    call = _call(log, b"a")
    for _ in range(2):
        log._run(keep_call("billing", TAG, fence, call, None))
    assert log._run(read_calls("billing", TAG, None)) == [call]
    other = _call(log, b"b")
    log._run(keep_call("billing", TAG, fence, other, None))
    assert log._run(read_calls("billing", TAG, None)) == [other]
    log._run(raise_fence(fence.name))
    with pytest.raises(sharedlog.Fenced):
        log._run(keep_call("billing", TAG, fence, call, None))
