"""Three server processes over one Redis, clients hopping, one killed or suspended."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

import rifl
from lease_server.v1 import lease_server_pb2
from rifl._grpc.status import read_error_info
from rifl._wire.envelope import BATCH_KEY, BATCH_VALUE, encode_batch, parse_reply
from rifl.v1 import rifl_pb2
from tests.helpers.forked import Forked
from tests.helpers.waiting import until
from tests.stores.suspended import check_settling

pytestmark = pytest.mark.faults

SERVER = "tests.stores.redis.server_process"
# More than the replicas take to see that one is gone; what it is too short for hops on.
HOP_S = 1.5
RETRIED = {"IN_PROGRESS", "RECORD_PENDING", "STORE_UNAVAILABLE", "DRAINING", ""}
POINTS = {
    "plain": ["before effect", "after effect", "after record"],
    "idempotent": ["before effect", "after effect", "after record"],
    "atomic": ["before effect", "after record queued", "after effect"],
}


class Process:
    """One server process."""

    def __init__(self, url: str, effects: str, kind: str, point: str = "-", port: int = 0) -> None:
        self.process = Forked([SERVER, url, effects, kind, point, str(port)])
        self.channel: grpc.Channel

    def connect(self) -> None:
        """Wait for the port, and connect."""
        port = int(self.process.stdout.readline())
        self.address = f"127.0.0.1:{port}"
        self.channel = grpc.insecure_channel(self.address, [("grpc.enable_retries", 0)])

    def suspended(self) -> bool:
        """Whether the process stands still."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    def signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.process.pid, number)

    def close(self) -> None:
        """Kill it."""
        self.channel.close()
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait(60)


class Cluster:
    """Three replicas, of which the first suspends itself where it is told."""

    def __init__(self, url: str, effects: str, kind: str) -> None:
        self._arguments = (url, effects, kind)
        self.processes = [self._start(stops) for stops in ("stops", "-", "-")]
        for process in self.processes:
            process.connect()

    def _start(self, stops: str) -> Process:
        return Process(*self._arguments, stops)

    def replace_first(self) -> None:
        """Start another process in place of the one that was killed."""
        self.processes[0].close()
        self.processes[0] = self._start("stops")
        self.processes[0].connect()

    def close(self) -> None:
        """Kill all."""
        for process in self.processes:
            process.close()


@pytest.fixture(scope="module")
def clusters(shared_server):
    """One cluster of each kind, made when it is asked for."""
    made = {}

    def get(kind):
        if kind not in made:
            url = shared_server.url(namespace=f"p-{kind}", beat_s=0.05, dead_after_s=0.6)
            made[kind] = Cluster(url, shared_server.url(), kind)
        return made[kind]

    yield get
    for cluster in made.values():
        cluster.close()


class Hopper:
    """A client with no SDK that sends each attempt to the next replica."""

    def __init__(self, processes) -> None:
        self.processes = processes
        grant = processes[1].channel.unary_unary("/lease_server.v1.LeaseServer/Grant")
        reply = lease_server_pb2.GrantReply.FromString(grant(b"", timeout=20, wait_for_ready=True))
        self.client_id, self.token = reply.client_id, reply.token

    def attempt(self, process, method, seq, request, attempt=1, timeout=20.0):
        """Send one attempt; (response, reason)."""
        header = rifl_pb2.CallHeader(
            client_id=self.client_id, token=self.token, seq=seq, attempt=attempt
        )
        try:
            return (
                process.channel.unary_unary(method)(
                    request,
                    metadata=(("rifl-bin", header.SerializeToString()),),
                    timeout=timeout,
                    wait_for_ready=process.process.poll() is None,
                ),
                "",
            )
        except grpc.RpcError as error:
            info = read_error_info(tuple(error.trailing_metadata() or ()))
            return None, info.reason if info else ""

    def call(self, method, seq, request, first=0):
        """Hop until there is a final answer: the response, or the reason of a refusal."""
        end = time.monotonic() + 40
        for attempt in range(1, 1000):
            process = self.processes[(first + attempt) % 3]
            response, reason = self.attempt(process, method, seq, request, attempt, HOP_S)
            if response is not None:
                return response.decode()
            if reason not in RETRIED:
                return reason
            assert time.monotonic() < end, f"no final answer: {reason}"
        raise AssertionError("no final answer")


# Each point with each fate, and where the aio shell differs.
CASES = [
    *(
        ("sync", declared, point, fate)
        for declared, points in POINTS.items()
        for point in points
        for fate in ("continued", "killed")
    ),
    *(("aio", declared, "after effect", "continued") for declared in POINTS),
    ("aio", "atomic", "before effect", "continued"),
    ("aio", "atomic", "after record queued", "continued"),
    ("aio", "atomic", "after record queued", "killed"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "declared", "point", "fate"), CASES)
def test_one_replica_lost_at_a_named_point(clusters, shared_server, kind, declared, point, fate):
    """Effects and answers are counted with a replica killed, or suspended (DESIGN §1, §6)."""
    cluster = clusters(kind)
    stopping = cluster.processes[0]
    method = f"/s/{declared.capitalize()}"
    hopper = Hopper(cluster.processes)
    # Both clusters' effects are in one Redis, and their client ids overlap.
    request = b"stop %s%d %s" % (kind.encode(), hopper.client_id, point.encode())
    seq = 7 if point == "after record" else 1
    other = b"other%s%d-%%d" % (kind.encode(), hopper.client_id)
    late = []
    first = threading.Thread(
        target=lambda: late.append(hopper.attempt(stopping, method, seq, request))
    )
    first.start()
    until(stopping.suspended, "the replica stops at its point")
    if fate == "killed":
        stopping.signal(signal.SIGKILL)
    with ThreadPoolExecutor(8) as pool:
        duplicates = [pool.submit(hopper.call, method, seq, request, n) for n in range(2)]
        others = [pool.submit(hopper.call, method, 10 + n, other % n, n) for n in range(4)]
        answers = {future.result() for future in duplicates}
        fine = [future.result() for future in others]
    if fate == "continued":
        stopping.signal(signal.SIGCONT)
    first.join(30)
    answers.add(hopper.call(method, seq, request, 1))
    with shared_server.client() as client:
        effects = int(client.get(b"effects:" + request) or 0)
        counts = [int(client.get(b"effects:" + other % n)) for n in range(4)]
    if fate == "killed":
        cluster.replace_first()
    assert counts == [1] * 4
    assert not any(answer in RETRIED or answer.isupper() for answer in fine)
    assert len(answers) == 1, "one answer, ever"
    (answer,) = answers
    response, reason = late[0]
    if response is not None:
        assert response.decode() == answer
    if declared == "plain":
        assert (answer == "OUTCOME_UNKNOWN") == (point != "after record")
        ran = point != "before effect" or fate == "continued"
        assert effects == int(ran)
        assert reason in ("", "OUTCOME_UNKNOWN")
    elif declared == "atomic":
        assert effects == 1
    else:
        ran = point != "before effect" or fate == "continued"
        assert effects == (1 if point == "after record" else 1 + ran)


@pytest.mark.slow
def test_clients_hop_between_replicas_while_one_is_suspended(clusters, shared_server):
    """Every call of many hopping clients has one effect and one answer (DESIGN §1)."""
    processes = clusters("sync").processes
    hoppers = [Hopper(processes) for _ in range(4)]
    done = threading.Event()

    def disturb():
        while not done.is_set():
            processes[2].signal(signal.SIGSTOP)
            done.wait(0.9)
            processes[2].signal(signal.SIGCONT)
            done.wait(0.5)

    def one(number, seq):
        hopper = hoppers[number]
        request = b"many%d-%d" % (hopper.client_id, seq)
        with ThreadPoolExecutor(2) as pair:
            twice = [pair.submit(hopper.call, "/s/Atomic", seq, request, at) for at in (0, 1)]
            return request, {future.result() for future in twice}

    trouble = threading.Thread(target=disturb)
    trouble.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(one, n, seq) for seq in range(1, 9) for n in range(4)]
            results = [call.result() for call in calls]
    finally:
        done.set()
        trouble.join()
    with shared_server.client() as client:
        for request, answers in results:
            assert len(answers) == 1
            assert client.get(b"effects:" + request) == b"1"


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "then"), [("sync", b""), ("sync", b"beats"), ("aio", b"beats")])
def test_a_batch_begins_no_call_after_its_replica_was_suspended(
    clusters, shared_server, kind, then
):
    """Another one has answered it: also if the beats go on before the batch does (DESIGN §4)."""
    stopping, other, _ = (cluster := clusters(kind)).processes
    hopper = Hopper(cluster.processes)
    name = b"%s%d%s" % (kind.encode(), hopper.client_id, then)
    first, second = b"stop batch%s after effect" % name, b"second%s" % name
    answers = []

    def send():
        header = rifl_pb2.CallHeader(client_id=hopper.client_id, token=hopper.token, attempt=1)
        metadata = (("rifl-bin", header.SerializeToString()), (BATCH_KEY, BATCH_VALUE))
        body = encode_batch([first, second], [], [1, 2])
        call = stopping.channel.unary_unary("/s/Idempotent")
        answers.append(parse_reply(call(body, metadata=metadata, timeout=60), 2).items())

    batch = threading.Thread(target=send)
    batch.start()
    until(stopping.suspended, "the replica stops between two calls")
    elsewhere = []

    def answered():
        response, reason = hopper.attempt(other, "/s/Idempotent", 2, second, 2, HOP_S)
        assert response is not None or reason in RETRIED
        elsewhere.append(response)
        return response is not None

    until(answered, "another replica answers the second call")
    stopping.signal(signal.SIGCONT)
    batch.join(60)
    with shared_server.client() as client:
        assert [client.get(b"effects:" + each) for each in (first, second)] == [b"1", b"1"]
    ((ended, refused),) = answers
    assert ended.record.response == b"1 %d" % stopping.process.pid
    assert refused.outcome is not rifl.Outcome.EXECUTED
    assert hopper.call("/s/Idempotent", 2, second) == elsewhere[-1].decode()


@pytest.mark.slow
@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("fate", ["continued", "killed"])
def test_not_executed_waits_for_the_end_of_the_process(clusters, shared_server, fate, told):
    """A suspended process may have its effect yet: no second one comes before it (DESIGN §4)."""
    cluster = clusters("sync")

    def effects(request):
        with shared_server.client() as client:
            return int(client.get(b"effects:" + request) or 0)

    check_settling(cluster, Hopper(cluster.processes), fate, effects, told)
