"""Records on streams whose witness dies, hangs, comes back or is frozen (DESIGN §7)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import rifl
from _rifl_ground.pings import SERVER_OPTIONS
from curp._core.pending_records import PendingRecords, QuickDuration
from curp._replica.witnesses import _OPTIONS
from curp.client import _aio_records, _sync_records
from curp.client._record import Record
from curp.client._sync_records import _Stream, _Unary
from curp.v1 import curp_pb2 as pb
from curp.witness import WitnessClient, WitnessHandlers
from tests.curp.client.scripted import CLIENTS, GROUP, METHOD, ScriptedGroup, calling, field
from tests.helpers.forgetting import ForgettingProxy
from tests.helpers.processes import Process
from tests.helpers.waiting import until

WAIT_S = 20.0


class _Held:
    """Holds the leader's answers back, once they were executed."""

    def __init__(self, group: ScriptedGroup) -> None:
        self.waiting = 0
        self._go = threading.Event()
        self._lock = threading.Lock()
        group.behave = self._behave

    def _behave(self, request: bytes, context: Any) -> None:
        with self._lock:
            self.waiting += 1
        self._go.wait(WAIT_S)

    async def until(self, calls: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while self.waiting < calls:
                await asyncio.sleep(0.002)

    def release(self) -> None:
        self._go.set()


@contextlib.contextmanager
def _witness(log: Path, group: ScriptedGroup, *, at: str = "127.0.0.1:0") -> Iterator[Process]:
    """A witness process, started under the group's number as its only one."""
    process = Process("curp.witness", "--listen", at, log=log)
    try:
        address = process.line()
        with WitnessClient(address) as client:
            found = client.start(
                GROUP, group.number, group.secrets, group.methods, timeout_s=WAIT_S
            )
            assert found == pb.RecordReply.ACCEPTED
        group.addresses = [address]
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        process.close()


def _frozen(group: ScriptedGroup) -> list[bytes]:
    with WitnessClient(group.addresses[0]) as client:
        verdict, calls = client.freeze(GROUP, group.number, timeout_s=WAIT_S)
    assert verdict == pb.RecordReply.ACCEPTED
    return [call.request for call in calls]


async def _fast_again(call: Any, group: ScriptedGroup) -> None:
    before = call.counts.fast
    async with asyncio.timeout(WAIT_S):
        number = 0
        while call.counts.fast == before:
            await call(field(b"again%d" % number))
            number += 1


@pytest.fixture
def group() -> Iterator[ScriptedGroup]:
    """A leader; its witness is a process."""
    with ScriptedGroup(witnesses=0) as made:
        yield made


@pytest.fixture
def witnessed() -> Iterator[ScriptedGroup]:
    """A leader and two witnesses, in this process."""
    with ScriptedGroup() as made:
        yield made


@pytest.mark.parametrize("kind", CLIENTS)
async def test_a_connection_to_a_witness_that_answers_nothing_is_left(
    kind: str, witnessed: ScriptedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls go to the leader alone meanwhile, and are recorded again on another connection."""
    monkeypatch.setattr("curp.client._group_knowledge._LEAST_PATIENCE_S", 0.05)
    monkeypatch.setattr("curp.client._group_knowledge._MOST_PATIENCE_S", 0.25)
    for module in (_sync_records, _aio_records):
        monkeypatch.setattr(module, "SILENT_S", 0.2)
    ports = [int(each.rpartition(":")[2]) for each in witnessed.addresses]
    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(contextlib.closing(ForgettingProxy(at))) for at in ports]
        witnessed.addresses = [each.target for each in proxies]
        async with calling(kind, witnessed) as call:
            await _fast_again(call, witnessed)
            for proxy in proxies:
                proxy.swallow()
            await _fast_again(call, witnessed)


def test_a_leader_pings_witnesses_no_more_often_than_they_permit() -> None:
    """And finds a connection that answers nothing within half a minute."""
    pings, permitted = dict(_OPTIONS), dict(SERVER_OPTIONS)
    least_ms = permitted["grpc.http2.min_ping_interval_without_data_ms"]
    assert least_ms < pings["grpc.keepalive_time_ms"]
    assert pings["grpc.keepalive_time_ms"] + pings["grpc.keepalive_timeout_ms"] < 30_000


@pytest.mark.long
def test_a_leader_has_a_forgotten_witness_again(witnessed: ScriptedGroup) -> None:
    """By its pings: each of its requests is short, and none was answered."""
    port = int(witnessed.addresses[0].rpartition(":")[2])
    with (
        contextlib.closing(ForgettingProxy(port)) as proxy,
        WitnessClient(proxy.target, options=_OPTIONS) as client,
    ):
        assert client.status(timeout_s=WAIT_S).group
        proxy.swallow()

        def answers() -> bool:
            with contextlib.suppress(grpc.RpcError):
                return bool(client.status(timeout_s=1.0).group)
            return False

        assert not answers()
        until(answers, "the witness", 40.0)


@pytest.mark.parametrize("kind", CLIENTS)
async def test_records_on_a_stream_that_breaks_count_as_not_accepted(
    kind: str, group: ScriptedGroup, tmp_path: Path
) -> None:
    """Killed with records in flight: each answer waits for the leader's word (invariant 1).

    Back under a new number it is recorded on again, by a new stream (invariant 2).
    """
    with _witness(tmp_path / "log", group) as process:
        async with calling(kind, group) as call:
            await call(field(b"warm"))
            assert call.counts.fast == 1
            held = _Held(group)
            os.kill(process.pid, signal.SIGSTOP)
            waiting = [asyncio.ensure_future(call(field(b"%d" % at))) for at in range(3)]
            await held.until(3)
            process.kill()
            held.release()
            await asyncio.gather(*waiting)
            assert (call.counts.fast, call.counts.asked) == (1, 3)
            assert len(group.syncs) == 3
            assert sorted(group.executed[-3:]) == [field(b"0"), field(b"1"), field(b"2")]
            group.number = 2
            with _witness(tmp_path / "log2", group, at=group.addresses[0]):
                path = call.channel._client.path
                path.refresh()
                await call.knows(2)
                await _fast_again(call, group)


@pytest.mark.parametrize("kind", CLIENTS)
async def test_a_hung_witness_costs_calls_their_patience_and_no_more(
    kind: str, group: ScriptedGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped with records in flight, then continued: its late verdicts hurt nobody (§7)."""
    monkeypatch.setattr("curp.client._group_knowledge._LEAST_PATIENCE_S", 0.05)
    monkeypatch.setattr("curp.client._group_knowledge._MOST_PATIENCE_S", 0.25)
    with _witness(tmp_path / "log", group) as process:
        async with calling(kind, group) as call:
            await _fast_again(call, group)
            fast = call.counts.fast
            os.kill(process.pid, signal.SIGSTOP)
            calls = [call(field(b"%d" % at)) for at in range(3)]
            await asyncio.gather(*calls)
            assert call.counts.fast == fast
            assert call.counts.asked + call.counts.synced >= 3
            os.kill(process.pid, signal.SIGCONT)
            await _fast_again(call, group)
        # What it accepted, late or not, it gives to the next leader (invariant 5).
        assert set(_frozen(group)) >= {field(b"again0")}


@pytest.mark.parametrize("kind", CLIENTS)
async def test_a_record_that_a_freeze_overtakes_is_refused(
    kind: str, witnessed: ScriptedGroup
) -> None:
    """Invariants 2 and 5: the new leader read what was there; this was not, and is not now."""
    group = witnessed
    async with calling(kind, group) as call:
        await call(field(b"before"))
        for witness in group.witnesses:
            witness.open.clear()
        held = _Held(group)
        waiting = asyncio.ensure_future(call(field(b"late")))
        await held.until(1)
        group.freeze(0)
        group.freeze(1)
        for witness in group.witnesses:
            witness.open.set()
        held.release()
        await waiting
        assert (call.counts.fast, call.counts.asked) == (1, 1)
        assert [len(witness.table) for witness in group.witnesses] == [1, 1]


@pytest.mark.parametrize("kind", CLIENTS)
async def test_callers_that_meet_share_a_message(
    kind: str, witnessed: ScriptedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many at once: one stream to each witness, fewer messages than records (DESIGN §7)."""
    messages: list[int] = []
    before = WitnessHandlers.records

    def records(self: Any, raw: bytes, *rest: Any) -> Any:
        messages.append(len(pb.RecordsRequest.FromString(raw).records))
        return before(self, raw, *rest)

    monkeypatch.setattr(WitnessHandlers, "records", records)
    monkeypatch.setattr("curp._core.pending_records._MOST_S", 1.0)
    group = witnessed
    async with calling(kind, group) as call:
        await call(field(b"warm"))
        assert messages == [1, 1]
        # As if it were busy: there is time to wait for others.
        call.channel._client.path.knowledge.leader.seconds = 10.0
        await asyncio.gather(*(call(field(b"%d" % at)) for at in range(5)))
        assert call.counts.fast == 6
        assert [len(witness.table) for witness in group.witnesses] == [6, 6]
        assert sum(messages) == 12
        assert len(messages) < 12


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "curp-records"}


def _recording(group: ScriptedGroup, before: set[threading.Thread]) -> rifl.Channel:
    channel = rifl.connect(group.target, group_path="fast")
    stub = channel.unary_unary(METHOD)
    until(lambda: bool(stub(field(b"a"), timeout=WAIT_S) and _threads() - before), "a stream")
    until(lambda: len(_threads() - before) == 2, "a stream for each witness")
    return channel


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_the_threads_of_a_stream_end_with_its_channel(how: str) -> None:
    """Closed, or collected without: nothing is left behind (DESIGN §9)."""
    with ScriptedGroup() as group:
        before, all_before = _threads(), threading.active_count()
        channel = _recording(group, before)
        if how == "closed":
            channel.close()
        del channel
        gc.collect()
        until(lambda: not _threads() - before, "the reading threads' end")
        until(lambda: threading.active_count() <= all_before + 3, "gRPC's threads' end")


class _NoStream(grpc.RpcError):
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNIMPLEMENTED


def test_records_of_a_stream_that_ends_behind_its_channel_have_an_end_each() -> None:
    """A witness that was let go may just have said that it has no streams (DESIGN §7)."""
    channel = grpc.insecure_channel("127.0.0.1:1")
    stream = _Stream(PendingRecords(QuickDuration()), _Unary(channel, lambda: None))
    closed = threading.Event()

    def replies(_: Any) -> Iterator[Any]:
        closed.wait(WAIT_S)
        raise _NoStream
        yield

    records = [Record(b"one"), Record(b"two")]
    for record in records:
        stream.send(record)
    stream.begin(replies)
    channel.close()
    closed.set()
    assert all(record.wait(WAIT_S) for record in records)
    assert [record.verdict for record in records] == [None, None]
