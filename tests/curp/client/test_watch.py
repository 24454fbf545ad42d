"""Watch streams, which keep a sync channel awake at a witness that has no streams for records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.curp.client.scripted import ScriptedGroup, calling, field


@pytest.fixture
def group() -> Iterator[ScriptedGroup]:
    with ScriptedGroup(streams=False) as made:
        yield made


async def test_a_stream_to_each_witness_stays_open_and_is_opened_again(
    group: ScriptedGroup,
) -> None:
    """gRPC begins a thread for a channel's first call under way: one call always is."""
    async with calling("sync", group) as call:
        await call(field(b"a"))
        witnesses = call.channel._client.path._witnesses
        streams = {at: witness.records._unary._watching for at, witness in witnesses.items()}
        assert set(streams) == set(group.addresses)
        await call(field(b"b"))
        assert not any(stream.done() for stream in streams.values())
        for stream in streams.values():
            stream.cancel()
        group.begin(2)
        await call(field(b"c"))
        await call.knows(2)
        async with asyncio.timeout(20):
            # Just after the number is known.
            while any(witness.records._unary._watching.done() for witness in witnesses.values()):
                await asyncio.sleep(0.005)
