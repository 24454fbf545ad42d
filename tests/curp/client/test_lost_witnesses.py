"""A channel to a witness that is away: closed until the next record (DESIGN §5, §7)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from tests.curp.client.scripted import ScriptedGroup, calling, field
from tests.helpers.refusing import STOPPED_S, refusing
from tests.helpers.waiting import until


@pytest.fixture(params=[True, False], ids=["streams", "unary"])
def group(request: pytest.FixtureRequest) -> Iterator[ScriptedGroup]:
    """A leader and a witness, which takes records on a stream or one by one."""
    with ScriptedGroup(witnesses=1, streams=request.param) as made:
        yield made


@pytest.mark.parametrize("kind", ["sync", "aio"])
async def test_a_witness_that_is_away_is_connected_to_for_records_only(
    kind: str, group: ScriptedGroup
) -> None:
    """Not while no call is made; once it is back, calls are recorded on it again."""
    (address,), (witness,) = group.addresses, group.witnesses
    numbers = itertools.count()
    async with calling(kind, group) as call:
        await call(field(b"%d" % next(numbers)))
        assert call.counts.fast == 1
        witness.stop()
        with refusing(address) as taken:
            async with asyncio.timeout(60):
                while not taken.connections:
                    await call(field(b"%d" % next(numbers)))
            await asyncio.to_thread(
                until, lambda: taken.none_for(STOPPED_S), "no connection is tried"
            )
        witness.start(address)
        group.begin(2)
        async with asyncio.timeout(60):
            while call.counts.fast == 1:
                await call(field(b"%d" % next(numbers)))
