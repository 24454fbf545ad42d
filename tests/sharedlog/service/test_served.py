"""A log that is opened over gRPC is the same log (issue 17, DESIGN-LOG §12, §13)."""

import asyncio
import itertools

import pytest

import sharedlog
import sharedlog.aio
from sharedlog._cli import ExitCode, main
from sharedlog._core.roster import granted_producers


def test_published_is_followed(log, behind):
    """Over gRPC as where the log lives, at the same positions (DESIGN-LOG §13, C3)."""
    behind.stream("orders", 4)
    placed = [log.publish("orders", f"{n}", key=f"{n}") for n in range(20)]
    with log.follow("orders") as orders:
        found = list(itertools.islice(orders, 20))
    assert [each.position for each in found] == placed
    assert [each.text for each in found] == [f"{n}" for n in range(20)]
    with behind.follow("orders") as orders:
        assert list(itertools.islice(orders, 20)) == found
    assert sharedlog.Position.parse(str(placed[3])) == placed[3]


def test_an_operator_ends_producers_over_grpc(log, url, behind):
    """A name begins anew, and who is retired is rolled back, as where the log lives (L3, C2)."""
    behind.stream("s", 1)

    def publish(text):
        with log.producer("relay").transaction(seq=1, follows=0) as transaction:
            transaction.publish("s", text)

    publish("a")
    with pytest.raises(sharedlog.AlreadyCommitted):
        publish("b")
    assert [log.forget("relay"), log.forget("relay")] == [1, 0]
    publish("b")

    async def forgets():
        async with await sharedlog.aio.open(url) as opened:
            return await opened.forget("relay")

    assert asyncio.run(forgets()) == 1
    assert main(["forget", url, "relay", "--yes"]) == ExitCode.NOT_FOUND
    with pytest.raises(sharedlog.InvalidRequest):
        log.forget("/")
    transaction = log.producer().transaction().__enter__()
    transaction.publish("s", "c")
    transaction.pend()
    (mine,) = (each for each in log._run(granted_producers()) if each.pending)
    assert [log.retire(mine.id), log.retire(mine.id)] == [mine.seq, mine.seq]
    with pytest.raises(sharedlog.ProducerRetired):
        transaction.commit()
    assert [each.text for each in behind.read("s", 0)] == ["a", "b"]
