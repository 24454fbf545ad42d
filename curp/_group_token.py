"""The group token: a secret of replicas, witnesses and operators, so that others cannot stop it."""

from __future__ import annotations

import hmac
from typing import Any
from urllib.parse import unquote

import grpc

from _rifl_ground.plaintext import is_loopback, why_not_sent

# Metadata of what changes a group: Collect, Freeze and Start at a witness, ChangeWitnesses
# and Transfer at a replica.
GROUP_TOKEN_KEY = "curp-group-token"  # noqa: S105 - the entry's name


def may_change(context: Any, token: bytes | None, *, open_group: bool = False) -> bool:
    """Return whether a caller may change the group: it showed the token in its metadata.

    Without a token, callers of this machine may, and with ``open_group`` all callers.
    """
    if token is None:
        return open_group or is_loopback(unquote(context.peer()))
    for key, value in context.invocation_metadata() or ():
        if key == GROUP_TOKEN_KEY:
            given = value.encode() if isinstance(value, str) else value
            if hmac.compare_digest(given, token):
                return True
    return False


def why_kept_off(
    address: str, credentials: grpc.ChannelCredentials | None, *, allowed: bool = False
) -> str:
    """Return why the token, and the secrets of a witness's start, do not go to an address."""
    return why_not_sent(
        "the group's token or signing secret",
        address,
        secure=credentials is not None,
        allowed=allowed,
    )
