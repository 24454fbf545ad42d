"""The client SDK over several targets, whose servers are suspended and killed (DESIGN §1, §5)."""

from __future__ import annotations

import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

import rifl
from tests.stores.redis.test_processes import Process

_CALLERS = 4
_ROUNDS = 6


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_storm_over_several_targets(shared_server, seed):
    """Answered calls have one effect, those of unknown outcome one at most; few of them (§1)."""
    dice = random.Random(seed)
    url = shared_server.url(namespace=f"storm{seed}", beat_s=0.05, dead_after_s=0.6)
    processes = [Process(url, shared_server.url(), "sync") for _ in range(3)]
    for process in processes:
        process.connect()
    done, pause = threading.Event(), threading.Event()

    def disturb():
        for round_ in range(_ROUNDS):
            if round_ == _ROUNDS // 2:
                processes[0].signal(signal.SIGKILL)
            process = dice.choice(processes[1:])
            process.signal(signal.SIGSTOP)
            pause.wait(dice.uniform(0.1, 1.2))
            process.signal(signal.SIGCONT)
            pause.wait(dice.uniform(0.05, 0.3))
        done.set()

    trouble = threading.Thread(target=disturb, daemon=True)
    try:
        with rifl.connect([process.address for process in processes]) as channel:
            method = channel.unary_unary("/s/Atomic")

            def caller(number):
                results = []
                while not done.is_set():
                    request = b"storm%d-%d-%d" % (seed, number, len(results))
                    try:
                        results.append((request, method(request, timeout=30)))
                    except grpc.RpcError as error:
                        results.append((request, error.outcome))
                return results

            method(b"storm%d-first" % seed, timeout=30)
            trouble.start()
            with ThreadPoolExecutor(_CALLERS) as pool:
                results = [each for found in pool.map(caller, range(_CALLERS)) for each in found]
    finally:
        pause.set()
        if trouble.is_alive():
            trouble.join()
        for process in processes:
            process.close()
    with shared_server.client() as client:
        counts = {request: int(client.get(b"effects:" + request) or 0) for request, _ in results}
    answered = [request for request, found in results if isinstance(found, bytes)]
    assert all(counts[request] == 1 for request in answered)
    for request, found in results:
        if not isinstance(found, bytes):
            assert counts[request] <= (found is rifl.Outcome.UNKNOWN)
    assert len(answered) >= max(_ROUNDS, len(results) * 0.9)
