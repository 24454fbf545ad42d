"""google-cloud-pubsub publishes each message once to a server of one's own (libraries.md)."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.api_core.exceptions import FailedPrecondition
from google.cloud import pubsub_v1
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.types import PublishRequest, PublishResponse

from rifl.testing import serve

_PUBLISH = "/google.pubsub.v1.Publisher/Publish"
_TOPIC = "projects/p/topics/t"


class _Publisher(grpc.GenericRpcHandler):
    def __init__(self) -> None:
        self.data: list[bytes] = []
        self._ids = itertools.count(1)

    def service(self, details: Any) -> Any:
        if details.method != _PUBLISH:
            return None
        return grpc.unary_unary_rpc_method_handler(
            self._publish,
            request_deserializer=PublishRequest.deserialize,
            response_serializer=PublishResponse.serialize,
        )

    def _publish(self, request: Any, context: Any) -> Any:
        self.data += [message.data for message in request.messages]
        return PublishResponse(message_ids=[str(next(self._ids)) for _ in request.messages])


def test_a_message_is_published_once_though_answers_are_lost() -> None:
    """By a channel given to its transport, and by one that it makes itself."""
    publisher = _Publisher()

    def add(server: Any) -> None:
        server.add_generic_rpc_handlers((publisher,))

    with serve(add) as service:
        service.faults.arm("drop-answer", 3)
        given = PublisherGrpcTransport(channel=service.connect())
        with pubsub_v1.PublisherClient(transport=given) as client:
            assert client.publish(_TOPIC, b"one").result(timeout=30) == "1"
        assert service.faults.struck("drop-answer") == 3
        assert publisher.data == [b"one"]


def test_an_unknown_outcome_is_not_published_again(tmp_path: Path) -> None:
    """Google's retry policy repeats ABORTED and more, but not what we raise of a call in doubt."""
    publisher = _Publisher()

    def add(server: Any) -> None:
        server.add_generic_rpc_handlers((publisher,))

    with serve(add, url=f"sqlite:///{tmp_path / 'p.db'}") as service:
        given = PublisherGrpcTransport(channel=service.connect())
        with pubsub_v1.PublisherClient(transport=given) as client:
            assert client.publish(_TOPIC, b"one").result(timeout=60) == "1"
            # The process dies with the message published, and nothing recorded.
            service.faults.arm("kill-after-effect")
            with pytest.raises(FailedPrecondition):
                client.publish(_TOPIC, b"two").result(timeout=60)
        assert publisher.data == [b"one", b"two"]
