"""The names by which a consumer is known in its log."""

from __future__ import annotations


def hold_name(name: str) -> str:
    """Return the name of a consumer's holds."""
    return f"consumer.{name}"


def producer_name(name: str, tag: str) -> str:
    """Return the name under which a shard's outputs are appended."""
    return f"consumer/{name}/{tag}"


def shard_fence(name: str, tag: str) -> str:
    """Return the name of a shard's fence, which no user's can have."""
    return f"*consumer/{name}/{tag}"
