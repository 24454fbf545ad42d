"""An operator settles a call whose process is suspended, for stores that replicas share."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rifl._stores import Settled, Settlement, StoreLocked, settle_unknown
from rifl.core._shared.identity import RpcId
from tests.helpers.waiting import until

__all__ = ["check_settling"]

_NOT_RUN = Settlement(False, "ops", "not in the ledger")
_RAN = Settlement(True, "ops", "the ledger has it", b"found")


def check_settling(
    cluster: Any, hopper: Any, fate: str, effects: Callable[[bytes], int], told: bool
) -> None:
    """Whether it is told unknown or only begun: *not executed* waits for the process's end.

    Suspended it may go on, and where it did its attempt is fenced; killed it cannot.
    """
    url, stopping = cluster._arguments[0], cluster.processes[0]
    rpc_id = RpcId(hopper.client_id, 1)
    request = b"stop settle%d%s before effect" % (hopper.client_id, fate.encode())
    late: list[Any] = []
    first = threading.Thread(
        target=lambda: late.append(hopper.attempt(stopping, "/s/Plain", 1, request))
    )
    first.start()
    until(stopping.suspended, "the replica stops at its point")
    if told:
        assert hopper.call("/s/Plain", 1, request, 1) == "OUTCOME_UNKNOWN"
    # Its beats stand still, and its process is there.
    with pytest.raises(StoreLocked):
        settle_unknown(url, [rpc_id], _NOT_RUN)
    if fate == "killed":
        stopping.signal(signal.SIGKILL)
        stopping.process.wait(60)
        assert settle_unknown(url, [rpc_id], _NOT_RUN) == {rpc_id: Settled.NOT_EXECUTED}
        first.join(30)
        cluster.replace_first()
        hopper.call("/s/Plain", 1, request, 1)
        assert effects(request) == 1
        return
    stopping.signal(signal.SIGCONT)
    first.join(30)
    # What it did late was done once, and changed nothing that was told before.
    again = hopper.call("/s/Plain", 1, request, 1)
    assert effects(request) == 1
    assert (again == "OUTCOME_UNKNOWN") == told
    if told:
        # It has ended, though its process lives on.
        assert settle_unknown(url, [rpc_id], _RAN) == {rpc_id: Settled.EXECUTED}
        assert hopper.call("/s/Plain", 1, request, 1) == "found"
    assert effects(request) == 1
