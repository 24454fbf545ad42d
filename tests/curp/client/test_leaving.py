"""Calls under way at a replica that hangs, while another one leads (DESIGN §7, client path)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from rifl.core._calling.retry import RetryPolicy
from tests.curp.client.scripted import METHOD, READ, ScriptedGroup, calling, field
from tests.helpers.holding import HangingProxy


@pytest.fixture
def group() -> Iterator[ScriptedGroup]:
    with ScriptedGroup() as made:
        yield made


@pytest.fixture
def hanging(group: ScriptedGroup) -> Iterator[HangingProxy]:
    """One of the group's two addresses."""
    proxy = HangingProxy(int(group.target.rpartition(":")[2]))
    yield proxy
    proxy.close()


@pytest.mark.parametrize("kind", ["future", "aio"])
@pytest.mark.parametrize(
    ("group_path", "method"), [("fast", METHOD), ("synced", METHOD), ("fast", READ)]
)
async def test_a_call_leaves_a_leader_that_hangs(
    kind: str, group_path: str, method: str, group: ScriptedGroup, hanging: HangingProxy
) -> None:
    """Recorded, alone, or a read: it is sent to who leads as soon as that is known, and runs once.

    Its attempt would have a minute.
    """
    settings = {
        "group_path": group_path,
        "follow_leaders": True,
        "targets": [f"127.0.0.1:{hanging.port}", group.target],
        "retry": RetryPolicy(attempt_timeout_s=60.0, max_backoff_s=0.05),
    }
    async with calling(kind, group, **settings) as call:
        request = field(b"the-one-that-hangs")
        hanging.hold_at(b"the-one-that-hangs")
        under_way = asyncio.create_task(call(request, method, 30.0))
        async with asyncio.timeout(20):
            while not hanging.held:
                await asyncio.sleep(0.002)
            assert request not in group.executed
            # The hung one says nothing.
            group.serves = True
            # As another call does, that was not answered or met a frozen witness.
            call.channel._client.path.refresh()
            assert await under_way == request
        hanging.let_go()
        assert group.executed.count(request) == 1
