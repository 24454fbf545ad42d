"""The group token: a secret of replicas, witnesses and operators, so that others cannot stop it."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import grpc

from _rifl_ground.plaintext import is_loopback, why_not_sent
from _rifl_ground.refusals import Denied

# Metadata of what only members and operators of a group may ask.
GROUP_TOKEN_KEY = "curp-group-token"  # noqa: S105 - the entry's name


def tokens_of(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the tokens that are accepted, of which the first one is shown; empty: there is none.

    Raises ``ValueError`` for an empty one.
    """
    if given is None:
        return ()
    tokens = (given,) if isinstance(given, str) else tuple(given)
    if not tokens or not all(tokens):
        raise ValueError("an empty group token protects nothing: pass a secret, or None")
    return tokens


def denied_change(
    context: Any, tokens: Sequence[str], *, open_group: bool = False
) -> Denied | None:
    """Return why a caller may not change the group; None: it showed a token in its metadata.

    Without a token, callers of this machine may, and with ``open_group`` all callers.
    """
    if not tokens:
        near = open_group or is_loopback(unquote(context.peer()))
        return None if near else Denied("address", "beyond_loopback")
    reason = "missing"
    for key, value in context.invocation_metadata() or ():
        if key == GROUP_TOKEN_KEY:
            given = value.encode() if isinstance(value, str) else value
            if any(hmac.compare_digest(given, each.encode()) for each in tokens):
                return None
            reason = "wrong"
    return Denied("group_token", reason)


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
