"""The calls of ``curp.v1`` that a group path makes, over a sync or an aio channel.

Those to replicas carry what ``connect(metadata=)`` gives; witnesses ask for no tokens of
applications.
"""

from __future__ import annotations

from typing import Any

from curp.client._own_requests import Own, plain
from curp.v1 import curp_pb2

# For the configuration.
ASK_TIMEOUT_S = 2.0
# How long to wait for each of the replicas, where all are asked, and asked again.
SEARCH_TIMEOUT_S = 0.5


def configuration_stub(channel: Any, own: Own = plain) -> Any:
    """Return what asks for the group's configuration."""
    method = "/curp.v1.Group/Configuration"
    stub = channel.unary_unary(
        method,
        request_serializer=curp_pb2.ConfigurationRequest.SerializeToString,
        response_deserializer=curp_pb2.GroupConfiguration.FromString,
    )
    return own(stub, method)


def sync_stub(channel: Any, own: Own = plain) -> Any:
    """Return what asks the leader that a call be in the log."""
    method = "/curp.v1.Group/Sync"
    stub = channel.unary_unary(
        method,
        request_serializer=curp_pb2.SyncRequest.SerializeToString,
        response_deserializer=curp_pb2.SyncReply.FromString,
    )
    return own(stub, method)


def record_stub(channel: Any) -> Any:
    """Return a witness's Record, which takes raw bytes."""
    return channel.unary_unary(
        "/curp.v1.Witness/Record", response_deserializer=curp_pb2.RecordReply.FromString
    )


def records_stub(channel: Any) -> Any:
    """Return a witness's Records, which takes raw bytes."""
    return channel.stream_stream(
        "/curp.v1.Witness/Records", response_deserializer=curp_pb2.RecordsReply.FromString
    )


def watch_stub(channel: Any) -> Any:
    """Return a witness's Watch, which takes raw bytes."""
    return channel.unary_stream("/curp.v1.Witness/Watch")
