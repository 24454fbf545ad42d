"""Services of a group whose code raises (DESIGN §7)."""

from __future__ import annotations

import sys
from typing import Any

import grpc
import pytest

from curp._replica.services import Services
from examples.bank.v1 import bank_pb2
from rifl.core._shared.call import Call

SERVICE = bank_pb2.DESCRIPTOR.services_by_name["Bank"].full_name
METHOD = f"/{SERVICE}/Deposit"


def leave(_: Any) -> Any:
    """End this program, as its author thinks."""
    sys.exit(3)


@pytest.mark.parametrize("raises", ["deserializer", "callable"])
def test_sys_exit_of_keys_and_deserializers_stops_no_replica(raises: str) -> None:
    """The call conflicts with everything, and is answered when it is replayed as it was (§7)."""
    given: Any = {METHOD: leave if raises == "callable" else bytes}
    services = Services(conflict_keys=given)
    read = leave if raises == "deserializer" else bytes
    handler = grpc.unary_unary_rpc_method_handler(lambda request, _: request, read, bytes)
    services.add(SERVICE, {"Deposit": handler})
    services.settle()
    assert services.keys(METHOD, b"a") == frozenset()
    call = Call(1, b"", 1, None, 1)
    call.method = METHOD
    record = services.run(call, b"a")
    told = (record.code, record.details, record.response)
    failed = (13, "Exception deserializing request!", None)
    assert told == (failed if raises == "deserializer" else (0, "", b"a"))
