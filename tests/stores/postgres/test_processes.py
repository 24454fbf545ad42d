"""Three server processes over one PostgreSQL, clients hopping, one killed or suspended."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.helpers.waiting import until
from tests.stores.redis import test_processes as shared
from tests.stores.suspended import check_settling

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def clusters(shared_server):
    """One cluster of each kind, made when it is asked for."""
    made = {}
    with shared_server.connect(autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS effects (name text)")

    def get(kind):
        if kind not in made:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(shared, "SERVER", "tests.stores.postgres.server_process")
                options = {"schema": f"p_{kind}", "beat_s": 0.1, "dead_after_s": 0.8}
                url = shared_server.url(max_connections=8, **options)
                made[kind] = shared.Cluster(url, shared_server.url(), kind)
        return made[kind]

    yield get
    for cluster in made.values():
        cluster.close()


def count(server, name):
    """How many effects of this name are committed."""
    with server.connect() as connection:
        found = connection.execute("SELECT count(*) FROM effects WHERE name = %s", (name.decode(),))
        return found.fetchone()[0]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "declared", "point", "fate"), shared.CASES)
def test_one_replica_lost_at_a_named_point(clusters, shared_server, kind, declared, point, fate):
    """Effects and answers are counted with a replica killed, or suspended (DESIGN §1, §6)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared, "SERVER", "tests.stores.postgres.server_process")
        counted = partial(count, shared_server)
        lose_one(clusters(kind), counted, kind, declared, point, fate)


def lose_one(cluster, counted, kind, declared, point, fate):
    """Lose the first replica of a cluster at a point; ``counted``: effects of a name."""
    stopping = cluster.processes[0]
    method = f"/s/{declared.capitalize()}"
    hopper = shared.Hopper(cluster.processes)
    seq = 7 if point == "after record" else 1
    name = b"stop %d %s" if seq == 7 else b"stop " + kind.encode() + b"%d %s"
    request = name % (hopper.client_id, point.encode())
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
        others = [pool.submit(hopper.call, method, 10 + n, other % n, n) for n in range(3)]
        answers = {future.result() for future in duplicates}
        fine = [future.result() for future in others]
    if fate == "continued":
        stopping.signal(signal.SIGCONT)
    first.join(30)
    answers.add(hopper.call(method, seq, request, 1))
    if fate == "killed":
        cluster.replace_first()
    assert [counted(other % n) for n in range(3)] == [1] * 3
    assert not any(answer in shared.RETRIED or answer.isupper() for answer in fine)
    assert len(answers) == 1, "one answer, ever"
    (answer,) = answers
    response, reason = late[0]
    if response is not None:
        assert response.decode() == answer
    effects = counted(request)
    ran = point != "before effect" or fate == "continued"
    if declared == "plain":
        assert (answer == "OUTCOME_UNKNOWN") == (point != "after record")
        assert effects == int(ran)
        assert reason in ("", "OUTCOME_UNKNOWN")
    elif declared == "atomic":
        assert effects == 1
        if fate == "continued":
            assert response is not None, "both replicas answer with the reply that committed"
    else:
        assert effects == (1 if point == "after record" else 1 + ran)


@pytest.mark.slow
def test_clients_hop_between_replicas_while_one_is_suspended(clusters, shared_server):
    """Every call of many hopping clients has one effect and one answer (DESIGN §1)."""
    processes = clusters("sync").processes
    hoppers = [shared.Hopper(processes) for _ in range(3)]
    done = threading.Event()

    def disturb():
        while not done.is_set():
            processes[2].signal(signal.SIGSTOP)
            done.wait(1.1)
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
        with ThreadPoolExecutor(3) as pool:
            calls = [pool.submit(one, n, seq) for seq in range(1, 7) for n in range(3)]
            results = [call.result() for call in calls]
    finally:
        done.set()
        trouble.join()
    for request, answers in results:
        assert len(answers) == 1
        assert count(shared_server, request) == 1


@pytest.mark.slow
@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("fate", ["continued", "killed"])
def test_not_executed_waits_for_the_end_of_the_process(clusters, shared_server, fate, told):
    """A suspended process may have its effect yet: no second one comes before it (DESIGN §4)."""
    cluster = clusters("sync")
    hopper = shared.Hopper(cluster.processes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared, "SERVER", "tests.stores.postgres.server_process")
        check_settling(cluster, hopper, fate, lambda name: count(shared_server, name), told)
