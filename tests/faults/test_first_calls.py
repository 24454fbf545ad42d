"""The first call of a client, whose server is killed while its handler runs (DESIGN §1, §5)."""

from __future__ import annotations

import contextlib
from pathlib import Path

import grpc
import pytest

from rifl._wire.envelope import encode_batch
from tests.faults.server import METHODS
from tests.faults.test_kill_points import effects_in
from tests.helpers.processes import started
from tests.helpers.raw import RawClient, header, read

pytestmark = pytest.mark.slow

# Where each is held. Neither has left anything durable there but its client's row.
_CASES = [
    ("idempotent", "before"),
    ("idempotent", "effect"),
    ("atomic", "before"),
    ("shared", "before"),
    ("second", "before"),
    # The last: it holds the lock of the store's own file.
    ("atomic", "uncommitted"),
]


def _request(kind: str, point: str) -> bytes:
    return f"{kind}@{point}:first".encode()


@pytest.mark.parametrize("server_kind", ["sync", "aio"])
def test_the_promise_holds_for_a_clients_first_call(tmp_path: Path, server_kind: str) -> None:
    """After a SIGKILL in its handler it runs again, or once, as any other call does (§1, §5)."""
    module, log = "tests.faults.server", tmp_path / "log"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(started(module, str(tmp_path), server_kind, log=log))
        address = f"127.0.0.1:{server.line().split()[1]}"
        clients, held = [], []
        for case in _CASES:
            # Each has a client of its own, which has called nothing before.
            client = stack.enter_context(RawClient(address))
            clients.append(client)
            held.append(client.future(METHODS[case[0]], _request(*case), 1))
            assert server.line() == f"held {_request(*case).decode()}"
        server.kill()
        assert {read(call).code for call in held} == {grpc.StatusCode.UNAVAILABLE}
        server = stack.enter_context(started(module, str(tmp_path), server_kind, "--free", log=log))
        address = f"127.0.0.1:{server.line().split()[1]}"
        again = stack.enter_context(RawClient(address, grant=False))
        for case, client in zip(_CASES, clients, strict=True):
            again.client_id, again.token = client.client_id, client.token
            outcomes = []
            for attempt in (2, 3):
                reply = again.call(METHODS[case[0]], _request(*case), 1, attempt=attempt)
                assert reply.response == b"done " + _request(*case), reply
                outcomes.append(reply.outcome)
            assert outcomes == ["executed", "replayed"]
    effects = effects_in(tmp_path)
    for case in _CASES:
        twice = case == ("idempotent", "effect")
        assert effects[_request(*case).decode()] == (2 if twice else 1)


@pytest.mark.parametrize("server_kind", ["sync", "aio"])
def test_a_client_is_known_after_a_crash_before_its_first_handler(
    tmp_path: Path, server_kind: str
) -> None:
    """What a grant tells is durable: a first call that died with the server runs (§5)."""
    module, log = "tests.faults.server", tmp_path / "log"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(started(module, str(tmp_path), server_kind, log=log))
        client = stack.enter_context(RawClient(f"127.0.0.1:{server.line().split()[1]}"))
        server.kill()
        server = stack.enter_context(started(module, str(tmp_path), server_kind, "--free", log=log))
        address = f"127.0.0.1:{server.line().split()[1]}"
        again = stack.enter_context(RawClient(address, grant=False))
        again.client_id, again.token = client.client_id, client.token
        for seq, kind in enumerate(("idempotent", "atomic", "plain", "second"), 1):
            reply = again.call(METHODS[kind], f"{kind}@:first".encode(), seq, attempt=2)
            assert (reply.ok, reply.outcome) == (True, "executed"), reply


def test_it_holds_for_a_clients_first_batch(tmp_path: Path) -> None:
    """One registration stands for all items; killed in the first, each runs once (§4, §5)."""
    module, log = "tests.faults.server", tmp_path / "log"
    requests = [b"atomic@before:0", b"atomic@:1", b"atomic@:2"]
    body = encode_batch(requests, [], [1, 2, 3])
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(started(module, str(tmp_path), "sync", log=log))
        client = stack.enter_context(RawClient(f"127.0.0.1:{server.line().split()[1]}"))

        def batch(attempt: int) -> bytes:
            return header(client.client_id, client.token, first=1, attempt=attempt)

        marker = (("rifl-batch", "1"),)
        call = client.future(METHODS["atomic"], body, raw=batch(1), metadata=marker)
        assert server.line() == f"held {requests[0].decode()}"
        server.kill()
        assert read(call).code is grpc.StatusCode.UNAVAILABLE
        server = stack.enter_context(started(module, str(tmp_path), "sync", "--free", log=log))
        address = f"127.0.0.1:{server.line().split()[1]}"
        again = stack.enter_context(RawClient(address, grant=False))
        assert again.call(METHODS["atomic"], body, raw=batch(2), metadata=marker).ok
    effects = effects_in(tmp_path, "store.db")
    assert {effects[request.decode()] for request in requests} == {1}
