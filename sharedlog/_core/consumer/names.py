"""The names by which a consumer is known in its log."""

from __future__ import annotations

from sharedlog._core.names import NameKind, own_name

# Before a consumer's name: the tags of what shards change of their states.
CHANGES = "*changes/"


def hold_name(name: str) -> str:
    """Return the name of a consumer's holds."""
    return own_name(NameKind.CONSUMER, name)


def producer_name(name: str, tag: str) -> str:
    """Return the name under which a shard's outputs are appended."""
    return own_name(NameKind.CONSUMER, name, tag)


def state_key(name: str, tag: str, what: str) -> str:
    """Return the key of what is kept of a shard's state in the log."""
    return f"state/{name}/{tag}/{what}"


def change_tag(name: str, tag: str) -> str:
    """Return the tag of what a shard has changed of its state; no stream has such a name."""
    return f"{CHANGES}{name}/{tag}"


def shard_fence(name: str, tag: str) -> str:
    """Return the name of a shard's fence, which no user's can have."""
    return f"*consumer/{name}/{tag}"


def start_key(name: str, tag: str) -> str:
    """Return the key of the position after which a shard has begun, if one was given."""
    return f"consumer/{name}/start/{tag}"


def done_key(name: str, tag: str) -> str:
    """Return the key of a shard's checkpoint."""
    return state_key(name, tag, "done")
