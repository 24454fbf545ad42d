"""A handler's "nothing happened", about a call that a killed server may have run (§3)."""

from __future__ import annotations

import contextlib
from pathlib import Path

import grpc
import pytest

from tests.faults.server import UNRECORDED
from tests.faults.test_kill_points import effects_in
from tests.helpers.processes import started
from tests.helpers.raw import RawClient, read

pytestmark = pytest.mark.slow

_REFUSING, _UNDOING = UNRECORDED["refusing"], UNRECORDED["undoing"]
_REPEATED = (("grpc-previous-rpc-attempts", "1"),)


@pytest.mark.parametrize("server_kind", ["sync", "aio"])
def test_nothing_happened_says_nothing_of_a_run_before_a_crash(
    tmp_path: Path, server_kind: str
) -> None:
    """An idempotent call has no intent: only what cannot have run before the SIGKILL, or what
    was undone by it, is *not executed* after it (DESIGN §3)."""
    module, log = "tests.faults.server", tmp_path / "log"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(started(module, str(tmp_path), server_kind, log=log))
        address = f"127.0.0.1:{server.line().split()[1]}"
        client = stack.enter_context(RawClient(address))
        session = stack.enter_context(RawClient(address, grant=False))
        session.open_session("rows")
        fresh = client.call(_REFUSING, b"fresh@:0", 9, attempt=2)
        assert (fresh.code.name, fresh.outcome) == ("RESOURCE_EXHAUSTED", "not-executed")
        fresh = client.call(_REFUSING, b"fresh@:0", bare=True, metadata=_key("fresh"))
        assert fresh.outcome == "not-executed"
        held = [
            client.future(_REFUSING, b"refusing@effect:1", 1),
            client.future(_REFUSING, b"refusing@effect:2", 2),
            session.future(_REFUSING, b"refusing@effect:3", key=b"k"),
            client.future(_REFUSING, b"refusing@effect:4", bare=True, metadata=_key("k")),
            client.future(_UNDOING, b"undoing@uncommitted:5", 5),
        ]
        for _ in held:
            assert server.line().startswith("held ")
        server.kill()
        assert {read(call).code for call in held} == {grpc.StatusCode.UNAVAILABLE}

        server = stack.enter_context(started(module, str(tmp_path), server_kind, "--free", log=log))
        address = f"127.0.0.1:{server.line().split()[1]}"
        again = stack.enter_context(RawClient(address, grant=False))
        again.client_id, again.token = client.client_id, client.token
        rows = stack.enter_context(RawClient(address, grant=False))
        rows.client_id, rows.token = session.client_id, session.token
        for attempt in (2, 3):
            replies = [
                again.call(_REFUSING, b"refusing@effect:1", 1, attempt=attempt),
                again.call(_REFUSING, b"refusing@effect:2", 2, metadata=_REPEATED),
                rows.call(_REFUSING, b"refusing@effect:3", key=b"k", attempt=attempt),
                again.call(_REFUSING, b"refusing@effect:4", bare=True, metadata=_key("k")),
                again.call(_UNDOING, b"undoing@uncommitted:5", 5, attempt=attempt),
            ]
            assert {reply.code.name for reply in replies} == {"RESOURCE_EXHAUSTED"}
            told = [reply.outcome for reply in replies]
            assert told == ["unknown"] * 4 + ["not-executed"]
        new = stack.enter_context(RawClient(address))
        assert new.call(_REFUSING, b"refusing@:6", 1, attempt=2).outcome == "not-executed"
    effects = effects_in(tmp_path)
    assert [effects[f"refusing@effect:{which}"] for which in (1, 2, 3, 4)] == [1] * 4


def _key(key: str) -> tuple[tuple[str, str], ...]:
    return (("idempotency-key", f'"{key}"'),)
