"""The client's way to a group, sync and aio, against a leader that does as it is told (§7)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

import rifl
from _rifl_ground.refusals import Outcome
from curp._core.witness_table import WitnessMode
from curp.v1 import curp_pb2 as pb
from tests.curp.client.scripted import CLIENTS, READ, ScriptedGroup, calling, field
from tests.helpers.waiting import until

pytestmark = pytest.mark.parametrize("kind", CLIENTS)


@pytest.fixture(params=["stream", "unary"])
def group(request: pytest.FixtureRequest) -> Iterator[ScriptedGroup]:
    """Witnesses of this version, and of one that has no streams."""
    with ScriptedGroup(streams=request.param == "stream") as made:
        yield made


def held(group: ScriptedGroup) -> list[int]:
    return [len(witness.table) for witness in group.witnesses]


async def _until_held(group: ScriptedGroup, calls: int) -> None:
    async with asyncio.timeout(20):
        while held(group) != [calls] * len(group.witnesses):
            await asyncio.sleep(0.005)


async def test_calls_that_commute_take_one_round_trip(kind: str, group: ScriptedGroup) -> None:
    """CURP §3.2.1: the leader and all witnesses, and nobody else is asked."""
    async with calling(kind, group) as call:
        for number in range(5):
            assert await call(field(b"%d" % number)) == field(b"%d" % number)
        assert call.counts.fast == 5
        assert group.syncs == []
        assert held(group) == [5, 5]


async def test_a_conflict_is_synced(kind: str, group: ScriptedGroup) -> None:
    """Invariant 1: refused by a witness, the answer waits for the leader's word."""
    async with calling(kind, group) as call:
        await call(field(b"a"))
        await call(field(b"a"))
        assert (call.counts.fast, call.counts.asked) == (1, 1)
        client_id = call.channel.session.client_id
        assert [(sync.configuration, sync.client_id) for sync in group.syncs] == [(1, client_id)]
        assert group.syncs[0].seq == 3


async def test_an_answer_in_the_log_is_enough(kind: str, group: ScriptedGroup) -> None:
    """Invariant 1: marked as synced it is final, whatever the witnesses say."""
    async with calling(kind, group) as call:
        group.marks = True
        await call(field(b"a"))
        await call(field(b"a"))
        assert (call.counts.fast, call.counts.synced, call.counts.asked) == (0, 2, 0)
        assert group.syncs == []


async def test_reads_are_recorded_nowhere(kind: str, group: ScriptedGroup) -> None:
    """Reads go to the leader alone (DESIGN §7)."""
    async with calling(kind, group) as call:
        await call(field(b"a"), READ)
        assert held(group) == [0, 0]
        assert group.syncs == []


async def test_a_witness_that_is_gone_costs_one_sync(kind: str, group: ScriptedGroup) -> None:
    """A witness vanishes: nothing is lost, and later calls go to the leader alone."""
    async with calling(kind, group) as call:
        group.witnesses[0].stop()
        for _ in range(3):
            await call(field(b"a"), timeout=20)
        counts = call.counts
        assert (counts.fast, counts.asked + counts.synced) == (0, 3)
        assert counts.asked >= 1
        assert len(group.executed) == 4


async def test_a_silent_witness_is_waited_for_once(
    kind: str, group: ScriptedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs one call its patience and a sync; others are not even recorded meanwhile."""
    monkeypatch.setattr("curp.client._group_knowledge._LEAST_PATIENCE_S", 0.01)
    monkeypatch.setattr("curp.client._group_knowledge._MOST_PATIENCE_S", 0.25)
    monkeypatch.setattr("curp._core.silent_witnesses._FIRST_S", 600.0)
    monkeypatch.setattr("curp._core.silent_witnesses._MOST_S", 600.0)
    async with calling(kind, group) as call:
        group.witnesses[1].open.clear()
        # Where the patience is over while the record is on its way, that may never arrive.
        group.behave = lambda *_: until(lambda: held(group)[0], "the other witness has it")
        for value in (b"a", b"b", b"c"):
            await call(field(value))
        assert tuple(call.counts) == (0, 2, 1, 0)
        assert held(group)[0] == 1
        group.witnesses[1].open.set()


async def test_a_witness_that_is_back_is_recorded_on_again(
    kind: str, group: ScriptedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call after a while tries, and once it was heard all are fast again."""
    monkeypatch.setattr("curp.client._group_knowledge._LEAST_PATIENCE_S", 0.05)
    monkeypatch.setattr("curp.client._group_knowledge._MOST_PATIENCE_S", 0.25)
    async with calling(kind, group) as call:
        group.witnesses[1].open.clear()
        await call(field(b"a"))
        group.witnesses[1].open.set()
        async with asyncio.timeout(20):
            number = 0
            while not call.counts.fast:
                await call(field(b"b%d" % number))
                number += 1


async def test_a_new_configuration_is_learnt(kind: str, group: ScriptedGroup) -> None:
    """Invariant 11: refused under the old number, the client finds the new one and records."""
    async with calling(kind, group) as call:
        await call(field(b"a"))
        group.begin(2)
        await call(field(b"b"))
        assert call.counts.asked == 1
        await call.knows(2)
        await call(field(b"b"))
        assert (call.counts.fast, held(group)) == (2, [1, 1])


async def test_a_marked_answer_tells_of_a_new_leader(kind: str, group: ScriptedGroup) -> None:
    """The mark names the leader's number: another than ours means to ask (DESIGN §7)."""
    async with calling(kind, group) as call:
        group.marks = True
        group.begin(5)
        await call(field(b"a"))
        await call.knows(5)


@pytest.mark.parametrize("verdict", [pb.SyncReply.NOT_KNOWN, pb.SyncReply.OTHER_CONFIGURATION])
async def test_what_is_not_synced_is_sent_again(
    kind: str, group: ScriptedGroup, verdict: Any
) -> None:
    """Invariant 9: the leader does not vouch for its answer; the same identity, once more."""
    async with calling(kind, group) as call:
        await call(field(b"a"))
        group.sync_verdict = verdict
        waiting = asyncio.ensure_future(call(field(b"a")))
        async with asyncio.timeout(20):
            while len(group.syncs) < 3:
                await asyncio.sleep(0.005)
        group.sync_verdict = pb.SyncReply.SYNCED
        await waiting
        # One identity, and one execution of it.
        assert len({sync.seq for sync in group.syncs}) == 1
        assert group.executed.count(field(b"a")) == 2


async def test_a_refusal_is_unknown_while_a_witness_may_hold_the_call(
    kind: str, group: ScriptedGroup
) -> None:
    """Invariant 13: the error says what is true: the next leader may run it."""
    async with calling(kind, group) as call:
        # So that the ways to the witnesses are open when time is short.
        await call(field(b"warm"))
        await _until_held(group, 1)
        group._dedup.drain()
        with pytest.raises(grpc.RpcError) as failed:
            await call(field(b"a"), timeout=2.0)
        assert failed.value.outcome is Outcome.UNKNOWN  # type: ignore[attr-defined]
        await _until_held(group, 2)
        # Refused by both, it is on no witness, and cannot have run.
        for witness in group.witnesses:
            witness.table.mode = WitnessMode.UNLISTED
        with pytest.raises(grpc.RpcError) as failed:
            await call(field(b"b"), timeout=1.0)
        assert failed.value.outcome in (Outcome.NOT_EXECUTED, Outcome.UNKNOWN)  # type: ignore[attr-defined]


async def test_a_handlers_own_error_is_made_durable_too(kind: str, group: ScriptedGroup) -> None:
    """Invariant 1: what the handler decided is an answer like any other."""
    async with calling(kind, group) as call:

        def refuse(request: bytes, context: Any) -> None:
            context.abort(grpc.StatusCode.OUT_OF_RANGE, "too much")

        group.behave = refuse
        for expected in (1, 0):
            with pytest.raises(grpc.RpcError) as failed:
                await call(field(b"a"))
            assert failed.value.code() is grpc.StatusCode.OUT_OF_RANGE  # type: ignore[attr-defined]
            assert failed.value.outcome is Outcome.EXECUTED  # type: ignore[attr-defined]
            assert call.counts.fast == 1
            assert len(group.syncs) == 1 - expected


@pytest.mark.parametrize(("name", "log"), [("h", 0xA), ("g", 0xB), ("g", 0)])
async def test_a_second_group_is_not_mixed_in(
    kind: str, group: ScriptedGroup, name: str, log: int
) -> None:
    """A client never records one group's calls on another's witnesses, of its name or not (§7)."""
    async with calling(kind, group) as call:
        knowledge = call.channel._client.path.knowledge
        knowledge.asked(
            pb.GroupConfiguration(configuration=9, group=name, log=log, witnesses=["x:1"])
        )
        assert knowledge.view is None
        await call(field(b"a"))
        assert held(group) == [0, 0]


async def test_without_the_package_calls_are_synced(
    kind: str, group: ScriptedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client without curp installed is served as well, only not fast (DESIGN §2)."""
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    group.marks = True
    target = group.target
    if kind == "aio":
        async with rifl.aio.connect(target) as channel:
            assert await channel.unary_unary(READ)(b"", timeout=20) == b""
            assert channel._client.path is None
    else:
        with rifl.connect(target) as sync:
            stub = sync.unary_unary(READ)
            assert await asyncio.to_thread(stub, b"", timeout=20) == b""
            assert sync._client.path is None
    assert held(group) == [0, 0]
