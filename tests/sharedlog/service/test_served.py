"""A log that is opened over gRPC is the same log (issue 17, DESIGN-LOG §12, §13)."""

import asyncio
import itertools
import json
import time
from contextlib import closing, contextmanager

import pyarrow.parquet
import pytest

import sharedlog
import sharedlog.aio
from sharedlog._cli import ExitCode, main
from sharedlog._core.roster import granted_producers
from sharedlog._service.quotas import Quotas
from tests.helpers.forgetting import ForgettingProxy
from tests.sharedlog.served import served


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


def test_a_connection_that_answers_nothing_is_left(behind):
    """What a middle box took, and did not pass on, is appended by another one, once (C1)."""
    behind.stream("s", 1)
    with (
        served(behind) as server,
        closing(ForgettingProxy(int(server.address.rpartition(":")[2]))) as proxy,
        sharedlog.open(f"grpc://{proxy.target}?timeout_s=0.5") as log,
    ):
        log.publish("s", "a")
        for text in "bc":
            proxy.swallow()
            log.publish("s", text)
        assert [each.text for each in log.read("s", 0)] == ["a", "b", "c"]
        assert [each.text for each in behind.read("s", 0)] == ["a", "b", "c"]


def test_a_slow_answer_ends_no_stream(behind):
    """A try that got no answer in its time is no reason to end what else goes on (C3)."""
    behind.stream("s", 1)
    with (
        served(behind) as server,
        sharedlog.open(f"grpc://{server.address}?timeout_s=0.5") as log,
        log.follow("s") as messages,
    ):
        log.publish("s", "a")
        assert next(messages).text == "a"
        stream = messages._follower._call
        server.loop.call_soon_threadsafe(time.sleep, 1.5)
        log.publish("s", "b")
        assert next(messages).text == "b"
        assert messages._follower._call is stream


def test_a_look_up_above_a_quota_is_sent_again(behind, monkeypatch):
    """Until the log's timeout: the application learns nothing of it (L8)."""
    behind.stream("s", 1)
    behind.publish("s", "a")
    calls = itertools.count(1)

    @contextmanager
    def calling(quotas, caller):
        del quotas, caller
        if next(calls) % 3:
            raise sharedlog.QuotaExceeded("too many calls")
        yield

    monkeypatch.setattr(Quotas, "calling", calling)
    with served(behind) as server, sharedlog.open(f"grpc://{server.address}") as log:
        assert [each.name for each in log.streams()] == ["s"]
        assert log.holds() == log.drop_hold("n") == []
        assert log.raise_fence("f").number == 1
        assert log.producer("relay").last() == 0
        with log.follow("s") as messages:
            assert next(messages).text == "a"
        with pytest.raises(sharedlog.NoSuchStream):
            log.follow("t")
        asked = next(calls)
        log._place = log._place._replace(timeout_s=0.0)
        with pytest.raises(sharedlog.QuotaExceeded):
            log.streams()
        assert next(calls) == asked + 2


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


def test_the_command_reads_a_served_log(url, behind, capsys, tmp_path):
    """The last messages, all of them, and who has a name; what needs the entries is refused."""
    behind.stream("s", 2)
    for number in range(700):
        behind.publish("s", f"{number}", key=f"{number % 7}")
    with behind.producer().transaction() as transaction:
        for text in ("first", "last"):
            transaction.publish("s", text, key="k")
        transaction.pend()
    behind.producer("relay").publish("s", "named", seq=7, follows=0)

    def printed(*arguments):
        assert main([*arguments, "--json"]) == ExitCode.DONE
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    def texts(*arguments):
        return [each["value"] for each in printed(*arguments)]

    assert texts("tail", url, "s", "-n", "3") == ["first", "last", "named"]
    assert len(texts("tail", url, "s", "-n", "600")) == 600
    assert texts("tail", url, "s", "-n", "0") == []
    assert len(texts("tail", url, "s", "-n", "1000", "--substream", "1")) == len(
        behind.read("s", 1)
    )
    assert printed("producers", url, "--named") == [[{"name": "relay", "seq": 7}]]
    out = tmp_path / "s.parquet"
    assert printed("export", url, "s", "--out", str(out)) == [{"messages_exported": 703}]
    assert pyarrow.parquet.read_table(out).num_rows == 703
    assert main(["verify", url]) == ExitCode.USAGE
    assert "not served" in capsys.readouterr().err
