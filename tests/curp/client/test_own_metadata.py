"""``connect(metadata=)``: a group's own requests carry what the function gives (DESIGN §5, §7)."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

import rifl
import rifl.aio
from tests.curp.client.scripted import CLIENTS, METHOD, Caller, ScriptedGroup, calling, field
from tests.helpers.waiting import DEADLINE_S

GROUP = "/curp.v1.Group/"
_MARK = contextvars.ContextVar("mark", default="")


class _Function:
    """Gives a token; notes the methods, and the caller's mark, which it must not see."""

    def __init__(self, kind: str) -> None:
        self.asked: list[tuple[str, str]] = []
        self.raises = False
        self.open = threading.Event()
        self.open.set()
        self.given: Any = self._aio if kind == "aio" else self._sync

    def _sync(self, method: str) -> Any:
        self.asked.append((method, _MARK.get()))
        if method.startswith(GROUP):
            assert self.open.wait(DEADLINE_S)
            if self.raises:
                raise OSError("the token server is away")
        return [("authorization", "Bearer of the service")]

    async def _aio(self, method: str) -> Any:
        while method.startswith(GROUP) and not self.open.is_set():
            await asyncio.sleep(0.005)
        return self._sync(method)


def _refuse_strangers(context: Any) -> None:
    if "authorization" not in dict(context.invocation_metadata()):
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")


@pytest.fixture
def group() -> Iterator[ScriptedGroup]:
    """A leader that a test scripts, and its witnesses."""
    with ScriptedGroup() as made:
        yield made


@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("kind", CLIENTS)
async def test_the_group_is_asked_with_the_functions_metadata(
    kind: str, targets: int, group: ScriptedGroup
) -> None:
    """Configuration, of one target or of all, and Sync are let in, each in an empty context."""
    function = _Function(kind)
    _MARK.set("a caller's")
    group.judge, group.serves = _refuse_strangers, True
    places = ",".join([group.target, group.target.replace("127.0.0.1", "localhost")][:targets])
    async with calling(kind, group, targets=places, metadata=function.given) as call:
        await call(field(b"a"))
        # It conflicts: the leader is asked for it.
        await call(field(b"a"))
        assert call.counts.asked == 1
    assert len(group.syncs) == 1
    methods = [method for method, _ in function.asked]
    assert {f"{GROUP}Configuration", f"{GROUP}Sync"} <= set(methods)
    assert METHOD not in methods
    assert {mark for method, mark in function.asked if method.startswith(GROUP)} == {""}


@pytest.mark.parametrize("broken", ["raises", "hangs"])
@pytest.mark.parametrize("kind", CLIENTS)
async def test_calls_go_on_where_the_function_fails_for_the_group(
    kind: str, broken: str, group: ScriptedGroup
) -> None:
    """Without a configuration they go to the leader alone, and none waits for the function."""
    function = _Function(kind)
    function.raises = broken == "raises"
    if broken == "hangs":
        function.open.clear()
    group.marks = True
    connect: Any = rifl.aio.connect if kind == "aio" else rifl.connect
    channel = connect(group.target, metadata=function.given)
    caller = Caller(kind, channel)
    for value in (b"a", b"b"):
        assert await caller(field(value)) == field(value)
    assert group.asked == 0
    function.open.set()
    closed = channel.close()
    if kind == "aio":
        await closed
