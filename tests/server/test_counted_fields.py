"""Every service of rifl counts a request's fields before it parses them (DESIGN §9)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import rifl
import sharedlog
from tests.helpers.raw import RawClient
from tests.helpers.servers import generic, serve

# More messages than a valid request has. Each takes two bytes, and would become an object.
_BOMB = 5_001


def _sync(request: bytes, context: Any) -> bytes:
    return request


async def _aio(request: bytes, context: Any) -> bytes:
    return request


@pytest.fixture(scope="module", params=["sync", "aio"])
def client(request: pytest.FixtureRequest) -> Iterator[RawClient]:
    """A client of a server with all of our services."""
    with rifl.Deduplicator("memory:") as dedup:

        def add(server: Any) -> None:
            sharedlog.add_target_to_server(server, dedup, {"orders": ["/p.S/Echo"]})

        handlers = [generic("p.S", {"Echo": _sync if request.param == "sync" else _aio})]
        with (
            serve(request.param, handlers, dedup=dedup, add=add) as served,
            RawClient(served.address) as raw,
        ):
            yield raw


@pytest.mark.parametrize(
    ("method", "field", "number", "told"),
    [
        # RenewRequest.also
        ("/lease_server.v1.LeaseServer/Renew", b"\x22\x00", _BOMB, "not a RenewRequest"),
        # No field of the request.
        ("/rifl.v1.Outcomes/Resolve", b"\xa2\x06\x00", _BOMB, "not a rifl.v1.ResolveRequest"),
        # Deliveries.deliveries, of which one message has 10,000 at most.
        ("/sharedlog.v1.Target/DeliverBatch", b"\x22\x00", 160_001, "no sharedlog.v1.Deliveries"),
    ],
)
def test_a_request_of_too_many_fields_is_none(
    client: RawClient, method: str, field: bytes, number: int, told: str
) -> None:
    """It is refused by name, and nothing of it was parsed."""
    reply = client.call(method, field * number, bare=True)
    assert reply.code.name == "INVALID_ARGUMENT"
    assert told in reply.details
