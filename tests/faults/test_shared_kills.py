"""A server killed with calls in a shared transaction (DESIGN §1, §6)."""

from __future__ import annotations

import contextlib

import pytest

from tests.faults.server import METHODS
from tests.faults.test_disk import Machine, Syncs
from tests.faults.test_kill_points import effects_in
from tests.helpers.processes import started
from tests.helpers.raw import RawClient, read

pytestmark = [pytest.mark.slow, pytest.mark.faults]

_CALLS = range(2, 8)


def _payload(seq):
    return b"shared@:%d" % seq


def _again(client):
    """Send every call again, twice; what is said of them the first time."""
    first = {}
    for attempt in (2, 3):
        for seq in _CALLS:
            reply = client.call(METHODS["shared"], _payload(seq), seq, attempt=attempt)
            assert reply.response == b"done " + _payload(seq)
            first.setdefault(seq, reply.outcome)
            assert attempt == 2 or reply.outcome == "replayed"
    return set(first.values())


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_killed_before_the_shared_commit_nothing_has_happened(tmp_path, kind):
    """One in its turn, others that wait behind it: none of it stands, and each runs once (§1)."""
    module, log, method = "tests.faults.server", tmp_path / "log", METHODS["shared"]
    held = b"shared@uncommitted:x"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(started(module, str(tmp_path), kind, log=log))
        client = stack.enter_context(RawClient(f"127.0.0.1:{server.line().split()[1]}"))
        calls = [client.future(method, held, 1)]
        assert server.line() == f"held {held.decode()}"
        calls += [client.future(method, _payload(seq), seq) for seq in _CALLS]
        assert client.call(METHODS["second"], b"second@:y", 20).ok, "others go on"
        assert not any(call.done() for call in calls)
        server.kill()
        assert {read(call).code.name for call in calls} == {"UNAVAILABLE"}
        assert effects_in(tmp_path, "shared.db") == {}
        server = stack.enter_context(started(module, str(tmp_path), kind, "--free", log=log))
        address = f"127.0.0.1:{server.line().split()[1]}"
        again = stack.enter_context(RawClient(address, grant=False))
        again.client_id, again.token = client.client_id, client.token
        assert _again(again) == {"executed"}
        assert again.call(method, held, 1, attempt=2).outcome == "executed"
    assert set(effects_in(tmp_path, "shared.db").values()) == {1}


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_killed_during_the_shared_fsync_all_stands_or_nothing(tmp_path, kind):
    """No answer before the fsync; after the kill every call was executed, or none (§1, §6)."""
    with contextlib.ExitStack() as stack:
        syncs = Syncs(tmp_path / "socket", stack)
        server = Machine(tmp_path, kind, stack, "--hold-fsync", syncs.path)
        stack.callback(server.server.kill)
        assert server.call("shared", b"shared@:first", 1).ok
        syncs.hold = True
        calls = [server.client.future(METHODS["shared"], _payload(seq), seq) for seq in _CALLS]
        _, name = syncs.next()
        assert name == "shared.db-wal"
        server.control(b"ping")
        assert not any(call.done() for call in calls)
        server.server.kill()
        assert {read(call).code.name for call in calls} == {"UNAVAILABLE"}
        server.start()
        outcomes = _again(server.client)
        # Those of the commit that was under way, and those that waited for the next.
        assert outcomes <= {"executed", "replayed"}
    effects = effects_in(tmp_path, "shared.db")
    assert set(effects.values()) == {1}
    assert len(effects) == len(_CALLS) + 1
