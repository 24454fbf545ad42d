"""A real server on a disk that is full, or that fails to sync (DESIGN §3, §6)."""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import socket
import threading

import grpc
import pytest

from rifl.core._shared.errors import StoreUnavailable
from tests.faults.server import METHODS, SERVICE
from tests.faults.syscalls import Held
from tests.faults.test_kill_points import effects_in
from tests.helpers.processes import started
from tests.helpers.raw import RawClient, read
from tests.helpers.waiting import DEADLINE_S, deadlines, until

pytestmark = pytest.mark.slow

_MODULE = "tests.faults.server"
_CONTROL = f"/{SERVICE}/Control"
_FULL, _SPACE = b"limit 1024", b"limit -1"
_UNAVAILABLE = ("UNAVAILABLE", "STORE_UNAVAILABLE", "not-executed")
_PENDING = ("ABORTED", "RECORD_PENDING", "unknown")
_IN_PROGRESS = ("ABORTED", "IN_PROGRESS", "unknown")
_KINDS = ("sync", "aio")


class Machine:
    """A server process and a client; the process can be killed and started again."""

    def __init__(self, folder, kind, stack, *arguments):
        self.folder = folder
        self._kind = kind
        self._stack = stack
        self.client = None
        self.start(*arguments)

    def start(self, *arguments):
        """Start, again under the same client id."""
        self.server = self._stack.enter_context(
            started(
                _MODULE,
                str(self.folder),
                self._kind,
                "--free",
                *arguments,
                log=self.folder / "log",
            )
        )
        address = f"127.0.0.1:{self.server.line().split()[1]}"
        client = self._stack.enter_context(RawClient(address, grant=self.client is None))
        if self.client is not None:
            client.client_id, client.token = self.client.client_id, self.client.token
        self.client = client

    def control(self, command):
        """Break or mend the machine."""
        assert self.client.call(_CONTROL, command, bare=True).response == b"ok"

    def call(self, kind, payload, seq, **more):
        """Call a method of that kind."""
        return self.client.call(METHODS[kind], payload, seq, **more)

    def effects(self, payload):
        """How often a call had its effect."""
        return effects_in(self.folder)[payload.decode()]


@pytest.fixture
def machine(tmp_path):
    """Makes machines, and takes them down."""
    with contextlib.ExitStack() as stack:
        yield lambda kind, *arguments: Machine(tmp_path, kind, stack, *arguments)


@pytest.mark.parametrize("kind", _KINDS)
def test_a_disk_that_is_full_before_the_handler(machine, kind):
    """No intent can be written: STORE_UNAVAILABLE, nothing ran; it runs once when it can (§3)."""
    server = machine(kind)
    assert server.call("plain", b"known", 1).ok
    server.control(_FULL)
    for attempt in (1, 2, 3):
        assert server.call("plain", b"plain", 2, attempt=attempt).refusal == _UNAVAILABLE
    # What the store knows it still answers, and what needs no store is untouched.
    assert server.call("plain", b"known", 1, attempt=2).outcome == "replayed"
    for seq, other in ((3, "idempotent"), (4, "atomic"), (5, "second")):
        assert server.call(other, b"x", seq).refusal == _UNAVAILABLE
    assert server.effects(b"plain") == server.effects(b"x") == 0
    server.control(_SPACE)
    reply = until(
        lambda: (reply := server.call("plain", b"plain", 2, attempt=4)).ok and reply, "it recovers"
    )
    assert (reply.response, reply.outcome) == (b"done plain", "executed")
    assert server.call("plain", b"plain", 2, attempt=5).outcome == "replayed"
    for seq, other in ((3, "idempotent"), (4, "atomic"), (5, "second")):
        assert server.call(other, b"x", seq, attempt=2).ok
    assert server.effects(b"plain") == 1
    assert server.effects(b"x") == 3


@pytest.mark.parametrize("method", ["idempotent", "plain"])
@pytest.mark.parametrize("kind", _KINDS)
def test_a_disk_that_fills_up_while_the_handler_runs(machine, kind, method):
    """No record can be written: RECORD_PENDING; later the record, never a second run (§3)."""
    server = machine(kind)
    payload = b"limit:1024"
    assert server.call(method, payload, 1).refusal == _PENDING
    for timeout_s in deadlines(0.5):
        reply = server.call(method, payload, 1, attempt=2, timeout=timeout_s)
        if reply.code is not grpc.StatusCode.DEADLINE_EXCEEDED:
            break
    assert reply.refusal == _IN_PROGRESS
    until(
        lambda: server.call("idempotent", b"new", 2).refusal == _UNAVAILABLE,
        "new calls are refused meanwhile",
    )
    assert server.client.resolve(3).refusal == _UNAVAILABLE
    server.control(_SPACE)
    reply = until(
        lambda: (reply := server.call(method, payload, 1, attempt=3)).ok and reply,
        "the record is written once there is room",
    )
    assert (reply.response, reply.outcome) == (b"done " + payload, "replayed")
    assert server.call("idempotent", b"new", 2, attempt=9).ok
    server.server.kill()
    server.start()
    assert server.call(method, payload, 1, attempt=4).outcome == "replayed"
    assert server.effects(payload) == 1
    assert server.effects(b"new") == 1


def test_a_kill_while_a_record_is_pending(machine):
    """A plain call whose record never reached the full disk is unknown for ever (§1)."""
    server = machine("sync")
    assert server.call("plain", b"limit:1024", 1).refusal == _PENDING
    server.server.kill()
    server.start()
    for attempt in (2, 3):
        reply = server.call("plain", b"limit:1024", 1, attempt=attempt)
        assert reply.refusal == ("ABORTED", "OUTCOME_UNKNOWN", "unknown")
    assert server.effects(b"limit:1024") == 1


def test_grants_on_a_full_disk(machine):
    """New clients are granted from the reserved block, then refused by type (§5)."""
    server = machine("sync")
    server.control(_FULL)
    grants = []

    def grant():
        grants.append(server.client.call("/lease_server.v1.LeaseServer/Grant", b"", bare=True))
        return grants[-1].ok

    while grant():
        assert len(grants) < 5000, "a block of ids has an end"
    assert grants[-1].code.name == "UNAVAILABLE"
    assert grants[-1].reason == "STORE_UNAVAILABLE"
    server.control(_SPACE)
    until(grant, "there is room again")
    ids = {reply.response for reply in grants if reply.ok}
    assert len(ids) == sum(reply.ok for reply in grants)


def test_a_failed_fsync_of_the_lease_storage_is_not_retried(machine):
    """After a failed fsync no id block is reserved until the next start (§6)."""
    server = machine("sync")
    server.control(b"fail-fsync")
    grant = "/lease_server.v1.LeaseServer/Grant"
    replies = [server.client.call(grant, b"", bare=True)]
    while replies[-1].ok:
        assert len(replies) < 5000, "a block of ids has an end"
        replies.append(server.client.call(grant, b"", bare=True))
    again = server.client.call(grant, b"", bare=True)
    assert (again.code.name, again.reason) == ("UNAVAILABLE", "STORE_UNAVAILABLE")
    # Which file that is, and why, is the operator's to know.
    assert again.details == StoreUnavailable.told
    server.server.kill()
    server.start()
    last = server.client.call(grant, b"", bare=True)
    assert last.ok
    assert last.response not in {reply.response for reply in replies}


@pytest.mark.parametrize("kind", _KINDS)
def test_a_handlers_own_commit_whose_fsync_failed_may_have_succeeded(machine, kind):
    """What the next start may find in the log of the file is not told as not executed (§3, §6)."""
    server = machine(kind)
    assert server.call("atomic", b"known", 1).ok
    server.control(b"fail-fsync")
    reply = server.call("atomic", b"x", 2)
    assert not reply.ok
    assert reply.outcome == "unknown"
    server.server.kill()
    server.start()
    again = server.call("atomic", b"x", 2, attempt=2)
    assert again.ok
    assert server.effects(b"x") == 1


@pytest.mark.parametrize("kind", _KINDS)
def test_a_failed_fsync_stops_the_store_for_good(machine, kind):
    """After a failed fsync nothing new begins until the next start (§6).

    The kernel itself fails every fsync of the process from here on.
    """
    server = machine(kind)
    assert server.call("plain", b"known", 1).ok
    server.control(b"fail-fsync")
    if kind == "sync":
        assert server.call("plain", b"x", 2).refusal == _UNAVAILABLE
        assert server.effects(b"x") == 0
    else:
        # The handler's own file is on the same disk; there is no effect to lose.
        reply = server.call("idempotent", b"x", 2)
        assert not reply.ok
        assert reply.outcome == "unknown"
    for attempt in range(2, 8):
        new = server.call("plain", b"new", 10 + attempt)
        assert new.refusal == _UNAVAILABLE, "it never comes back by itself"
    assert server.call("plain", b"known", 1, attempt=2).outcome == "replayed"
    assert server.server.alive
    server.server.kill()
    server.start()
    assert server.call("plain", b"known", 1, attempt=3).outcome == "replayed"
    assert server.call("plain", b"after", 20).ok
    assert server.effects(b"new") == 0
    assert server.effects(b"x") <= 1


class Syncs:
    """Holds each fsync of a server process by its store's files, and lets it go when told."""

    def __init__(self, path, stack):
        self._listening = stack.enter_context(socket.socket(socket.AF_UNIX))
        self._listening.bind(str(path))
        self._listening.listen()
        self.path = str(path)
        self.hold = False
        self.held = queue.Queue()
        self.count = 0
        self._held = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        stack.callback(self.close)

    def _run(self):
        self._listening.settimeout(DEADLINE_S)
        connection, _ = self._listening.accept()
        with connection:
            _, (listener, *_), _, _ = socket.recv_fds(connection, 16, 1)
        self._held = Held(listener)
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            while not self._done.is_set():
                if not selector.select(0.05):
                    continue
                try:
                    number, name = self._held.next()
                except OSError:
                    return
                if not any(file in name for file in ("store.db", "second.db", "shared.db")):
                    self._held.release(number)
                    continue
                self.count += 1
                if self.hold:
                    self.held.put((number, os.path.basename(name)))
                else:
                    self._held.release(number)

    def next(self):
        """Wait for the next fsync that is held: its number and its file."""
        return self.held.get(timeout=DEADLINE_S)

    def release(self, number):
        """Let it go."""
        self._held.release(number)

    def close(self):
        """Let everything go."""
        self._done.set()
        self._thread.join(DEADLINE_S)
        if self._held is not None:
            self._held.close()


@pytest.fixture
def synced(tmp_path):
    """A machine whose fsyncs the test holds; the client is registered already."""
    with contextlib.ExitStack() as stack:

        def make(kind):
            syncs = Syncs(tmp_path / "socket", stack)
            server = Machine(tmp_path, kind, stack, "--hold-fsync", syncs.path)
            for seq, method in enumerate(METHODS, 1):
                assert server.call(method, b"first", seq).ok
            # The kernel must not hold those of a process that is to be killed.
            stack.callback(server.server.kill)
            return server, syncs

        yield make


@pytest.mark.parametrize(
    ("method", "files"),
    [
        ("plain", ["store.db-wal", "store.db-wal"]),
        ("idempotent", ["store.db-wal"]),
        ("atomic", ["store.db-wal"]),
        ("second", ["second.db-wal"]),
        ("shared", ["shared.db-wal"]),
    ],
)
@pytest.mark.parametrize("kind", _KINDS)
def test_what_is_promised_is_synced_before_the_answer(synced, kind, method, files):
    """Intent before handler, record before answer; as many commits as promised (§1, §4.7).

    Each fsync is held by the kernel: while it is, the handler has not begun (the
    intent's) or the answer has not left (the record's).
    """
    server, syncs = synced(kind)
    syncs.hold = True
    call = server.client.future(METHODS[method], b"held", 10)
    seen = []
    for position, _ in enumerate(files):
        number, name = syncs.next()
        seen.append(name)
        # A round trip of another call: the answer would have come by now.
        server.control(b"ping")
        assert not call.done()
        if method in ("plain", "idempotent"):
            assert server.effects(b"held") == (1 if position == len(files) - 1 else 0)
        syncs.release(number)
    assert read(call).response == b"done held"
    assert seen == files
    assert syncs.held.empty()


@pytest.mark.parametrize("kind", _KINDS)
def test_commits_are_grouped(synced, kind):
    """Calls that wait for the disk together share one fsync (§6)."""
    server, syncs = synced(kind)
    syncs.hold = True
    calls = [server.client.future(METHODS["idempotent"], b"first one", 10)]
    number, _ = syncs.next()
    count = 12
    calls += [
        server.client.future(METHODS["idempotent"], b"call %d" % n, 20 + n) for n in range(count)
    ]
    until(
        lambda: all(server.effects(b"call %d" % n) for n in range(count)),
        "all handlers ran while the disk was busy",
    )
    # Their effects are there; what is left is the way to the journal's queue.
    server.control(b"ping")
    before = syncs.count
    syncs.hold = False
    syncs.release(number)
    assert all(read(call).ok for call in calls)
    assert syncs.count - before <= 4
