"""Microsoft's durabletask: worker and client as they are, over our channel (libraries.md)."""

from __future__ import annotations

from typing import Any

from durabletask import client, task, worker
from durabletask.testing.in_memory_backend import InMemoryOrchestrationBackend

import rifl
from tests.helpers.ports import free_port


def test_orchestrations_run_to_their_end_and_each_activity_once(wrapped: Any) -> None:
    """Its stream of work items passes through; answers that are lost repeat nothing."""
    ran: list[int] = []

    def double(context: task.ActivityContext, number: int) -> int:
        ran.append(number)
        return 2 * number

    def doubled(context: task.OrchestrationContext, numbers: list[int]) -> Any:
        found = []
        for number in numbers:
            found.append((yield context.call_activity(double, input=number)))
        return found

    port = free_port()
    backend = InMemoryOrchestrationBackend(port=port)
    address = backend.start()
    try:
        with (
            rifl.instrument(address),
            worker.TaskHubGrpcWorker(host_address=address) as works,
        ):
            works.add_orchestrator(doubled)
            works.add_activity(double)
            works.start()
            asks = client.TaskHubGrpcClient(host_address=address)
            for name in ("StartInstance", "CompleteActivityTask", "CompleteOrchestratorTask"):
                wrapped.faults.arm("drop-answer", 2, method=f"/TaskHubSidecarService/{name}")
            started = asks.schedule_new_orchestration(doubled, input=[1, 2, 3])
            state = asks.wait_for_orchestration_completion(started, timeout=60)
            assert state is not None
            assert state.serialized_output == "[2, 4, 6]"
            assert wrapped.faults.struck("drop-answer") == 6
        assert ran == [1, 2, 3]
    finally:
        backend.stop()
