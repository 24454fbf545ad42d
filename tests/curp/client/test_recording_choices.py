"""Calls that skip their records: forced, or where that is no slower (DESIGN §7)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

import rifl
import rifl.aio
from curp._core.recording_choice import BegunCall, RecordingChoice, Way
from rifl._wire.header import HEADER_KEY
from rifl.v1 import rifl_pb2
from tests.curp.client.scripted import CLIENTS, ScriptedGroup, calling, field


@pytest.fixture
def group() -> Iterator[ScriptedGroup]:
    with ScriptedGroup() as made:
        yield made


class _Numbers:
    """The configuration numbers in the headers that the leader is sent."""

    def __init__(self, group: ScriptedGroup) -> None:
        self.seen: list[int] = []
        group.behave = self._behave

    def _behave(self, request: bytes, context: Any) -> None:
        header = dict(context.invocation_metadata())[HEADER_KEY]
        self.seen.append(rifl_pb2.CallHeader.FromString(header).configuration)


class _LeaderOnly(RecordingChoice):
    """What was measured says: not worth recording."""

    __slots__ = ("told",)

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def begin(self) -> BegunCall:
        return BegunCall(Way.LEADER_ONLY, 1)

    def ended(self, begun: BegunCall, seconds: float) -> None:
        assert seconds > 0
        self.told.append("ended")

    def failed(self, begun: BegunCall) -> None:
        self.told.append("failed")


@pytest.mark.parametrize("kind", CLIENTS)
async def test_a_call_that_skips_its_records_says_so(
    kind: str, group: ScriptedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its header has no number, so that the leader appends before it answers (invariant 1)."""
    monkeypatch.setattr("curp.client._group_knowledge.RecordingChoice", _LeaderOnly)
    async with calling(kind, group, group_path="adaptive") as call:
        numbers = _Numbers(group)
        for at in range(3):
            await call(field(b"%d" % at))
        assert numbers.seen == [0, 0, 0]
        assert [len(witness.table) for witness in group.witnesses] == [0, 0]
        assert call.counts.skipped == 3
        assert group.syncs == []

        def refuse(request: bytes, context: Any) -> None:
            context.abort(grpc.StatusCode.OUT_OF_RANGE, "too much")

        group.behave = refuse
        with pytest.raises(grpc.RpcError):
            await call(field(b"a"))
        choice = next(iter(call.channel._client.path.knowledge._choices.values()))
        assert choice.told == ["ended"] * 3 + ["failed"]


@pytest.mark.parametrize("kind", CLIENTS)
async def test_the_way_can_be_chosen(kind: str, group: ScriptedGroup) -> None:
    """Forced, nothing is measured: every call is recorded, or none is."""
    for way, number, held in (("fast", 1, 3), ("synced", 0, 3)):
        async with calling(kind, group, group_path=way) as call:
            numbers = _Numbers(group)
            for at in range(3):
                await call(field(b"%s%d" % (way.encode(), at)))
            assert numbers.seen == [number] * 3
            assert [len(witness.table) for witness in group.witnesses] == [held, held]
            counts = call.counts
            assert (counts.fast, counts.skipped) == ((3, 0) if way == "fast" else (0, 3))


@pytest.mark.parametrize("kind", CLIENTS)
async def test_calls_are_recorded_until_something_was_measured(
    kind: str, group: ScriptedGroup
) -> None:
    """And what no witness could hold goes to the leader alone at once (DESIGN §7, bounds)."""
    async with calling(kind, group, group_path="adaptive") as call:
        numbers = _Numbers(group)
        await call(field(b"a"))
        assert numbers.seen == [1]
        assert call.counts.fast == 1
        await call(bytes(3 << 20) + b"x")
        assert numbers.seen == [1, 0]
        assert [len(witness.table) for witness in group.witnesses] == [1, 1]


def test_another_way_is_refused() -> None:
    """A word that means nothing is a mistake of the caller's (DESIGN §9)."""
    for connect in (rifl.connect, rifl.aio.connect):
        with pytest.raises(ValueError, match="group_path"):
            connect("127.0.0.1:1", group_path="quick")
