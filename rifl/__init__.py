"""Exactly-once RPC for Python gRPC."""

from rifl.core.identity import RpcId
from rifl.core.outcome import Outcome
from rifl.core.policy import Kind, MethodPolicy
from rifl.server import Deduplicator, record

__all__ = ["Deduplicator", "Kind", "MethodPolicy", "Outcome", "RpcId", "record"]
