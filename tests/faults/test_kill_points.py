"""A real server killed at every point, restarted, and held to its promise (DESIGN §1)."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from dataclasses import dataclass, field

import grpc
import pytest

from tests.faults.server import METHODS, URLS
from tests.helpers.processes import started
from tests.helpers.raw import RawClient, Reply, read
from tests.helpers.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.faults]

_POINTS = ("before", "effect", "record", "reply", "uncommitted")
# The store's own database last: its lock, once taken, holds everyone's commits.
_KINDS = ("plain", "idempotent", "second", "third", "shared", "atomic")
_ATOMIC = ("atomic", "second", "third", "shared")
_CASES = [
    (kind, point)
    for point in _POINTS
    for kind in _KINDS
    if kind in _ATOMIC or point != "uncommitted"
]


@dataclass
class Story:
    """What became of each call: its first answer, the answers after the kill, effects."""

    first: dict[tuple[str, str], Reply | None] = field(default_factory=dict)
    retried: dict[tuple[str, str], list[Reply]] = field(default_factory=dict)
    effects: Counter[str] = field(default_factory=Counter)


def effects_in(folder, *files):
    """Count the effects in some of the databases."""
    counted: Counter[str] = Counter()
    for name in files or ("effects.db", "store.db", *URLS.values()):
        with contextlib.closing(sqlite3.connect(folder / name)) as connection:
            counted.update(row[0] for row in connection.execute("SELECT what FROM effect"))
    return counted


def _rows(file):
    with contextlib.closing(sqlite3.connect(file)) as connection:
        return connection.execute("SELECT * FROM rifl_call").fetchall()


def _request(kind, point):
    return f"{kind}@{point}:x".encode()


@pytest.fixture(scope="module", params=["sync", "aio"])
def story(request, tmp_path_factory):
    """All calls held at their points, one SIGKILL, a restart, every call again, twice."""
    folder = tmp_path_factory.mktemp("kill")
    told = Story()
    seqs = {case: seq for seq, case in enumerate(_CASES, 1)}
    module, log = "tests.faults.server", folder / "log"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(started(module, str(folder), request.param, log=log))
        client = stack.enter_context(RawClient(f"127.0.0.1:{server.line().split()[1]}"))
        held = {}
        for case, seq in seqs.items():
            kind, point = case
            if point == "reply":
                told.first[case] = client.call(METHODS[kind], _request(*case), seq)
            else:
                held[case] = client.future(METHODS[kind], _request(*case), seq)
                assert server.line() == f"held {_request(*case).decode()}"
        assert not any(call.done() for call in held.values())
        server.kill()
        for call in held.values():
            assert read(call).code is grpc.StatusCode.UNAVAILABLE
        for restart in range(2):
            server = stack.enter_context(
                started(module, str(folder), request.param, "--free", log=log)
            )
            address = f"127.0.0.1:{server.line().split()[1]}"
            again = stack.enter_context(RawClient(address, grant=False))
            again.client_id, again.token = client.client_id, client.token
            for case, seq in seqs.items():
                for attempt in (2, 3):
                    reply = again.call(
                        METHODS[case[0]], _request(*case), seq, attempt=attempt + 2 * restart
                    )
                    told.retried.setdefault(case, []).append(reply)
            server.kill()
        told.effects = effects_in(folder)
        yield told


@pytest.mark.parametrize(("kind", "point"), _CASES)
def test_the_promise_is_kept_at_every_point(story, kind, point):
    """Effects and answers after a SIGKILL are those of the guarantees table (§1)."""
    case = (kind, point)
    effects = story.effects[_request(*case).decode()]
    replies = story.retried[case]
    caught = point in ("before", "effect", "uncommitted")
    if kind == "plain" and caught:
        # Lasting, through any number of retries and restarts.
        assert effects == (0 if point == "before" else 1)
        assert {reply.refusal for reply in replies} == {("ABORTED", "OUTCOME_UNKNOWN", "unknown")}
        return
    runs_again = kind == "idempotent" or (kind in _ATOMIC and point != "effect")
    assert effects == (2 if kind == "idempotent" and point == "effect" else 1)
    assert {(reply.ok, reply.response) for reply in replies} == {(True, b"done " + _request(*case))}
    outcomes = [reply.outcome for reply in replies]
    assert outcomes == ["executed" if caught and runs_again else "replayed"] + ["replayed"] * 3
    if point == "reply":
        assert story.first[case].response == replies[0].response


def test_an_expired_client_after_a_restart(tmp_path):
    """Expired before the kill: after the restart the client has a new term, then none (§5)."""
    module, log = "tests.faults.server", tmp_path / "log"
    arguments = (str(tmp_path), "sync", "--free")
    expired = ("FAILED_PRECONDITION", "LEASE_EXPIRED", "unknown")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(started(module, *arguments, log=log))
        address = f"127.0.0.1:{server.line().split()[1]}"
        client = stack.enter_context(RawClient(address))
        never = stack.enter_context(RawClient(address))
        assert client.call(METHODS["plain"], b"plain@:x", 1).ok
        assert client.call(METHODS["second"], b"second@:x", 2).ok
        server.kill()
        server = stack.enter_context(started(module, *arguments, log=log))
        address = f"127.0.0.1:{server.line().split()[1]}"
        again = stack.enter_context(RawClient(address, grant=False))
        again.client_id, again.token = never.client_id, never.token
        # What it was granted was durable before it knew of it: its first call has its effect.
        assert again.call(METHODS["plain"], b"plain@:first", 1).ok
        again.client_id, again.token = client.client_id, client.token
        reply = again.call(METHODS["second"], b"second@:x", 2, attempt=2)
        assert (reply.ok, reply.outcome) == (True, "replayed")
        # So far a term was longer than anything takes here; from now on it is short.
        server.kill()
        server = stack.enter_context(started(module, *arguments, "--term-s", "0.3", log=log))
        address = f"127.0.0.1:{server.line().split()[1]}"
        # Asking the server would renew the lease.
        for file in ("store.db", "second.db"):
            until(lambda file=file: not _rows(tmp_path / file), "its records are dropped")
        again = stack.enter_context(RawClient(address, grant=False))
        again.client_id, again.token = client.client_id, client.token
        for attempt in (3, 4):
            for name, seq in (("plain", 1), ("second", 2)):
                payload = f"{name}@:x".encode()
                reply = again.call(METHODS[name], payload, seq, attempt=attempt)
                assert reply.refusal == expired
        server.kill()
        server = stack.enter_context(started(module, *arguments, log=log))
        last = stack.enter_context(RawClient(f"127.0.0.1:{server.line().split()[1]}", grant=False))
        last.client_id, last.token = client.client_id, client.token
        assert last.call(METHODS["plain"], b"plain@:x", 1, attempt=4).refusal == expired
        assert last.call(METHODS["second"], b"second@:x", 2, attempt=4).refusal == expired
    assert set(effects_in(tmp_path).values()) == {1}


def test_sigterm_loses_nothing(tmp_path):
    """A server stopped by SIGTERM answers everything after its restart (§3)."""
    module, log = "tests.faults.server", tmp_path / "log"
    for kind in ("sync", "aio"):
        folder = tmp_path / kind
        folder.mkdir()
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(started(module, str(folder), kind, "--free", log=log))
            client = stack.enter_context(RawClient(f"127.0.0.1:{server.line().split()[1]}"))
            for seq, (name, method) in enumerate(METHODS.items(), 1):
                assert client.call(method, name.encode(), seq).ok
            assert server.terminate() == 0
            server = stack.enter_context(started(module, str(folder), kind, "--free", log=log))
            again = stack.enter_context(
                RawClient(f"127.0.0.1:{server.line().split()[1]}", grant=False)
            )
            again.client_id, again.token = client.client_id, client.token
            for seq, (name, method) in enumerate(METHODS.items(), 1):
                assert again.call(method, name.encode(), seq, attempt=2).outcome == "replayed"
        assert set(effects_in(folder).values()) == {1}
