"""The peer: who is at the other end of a mutually authenticated channel (DESIGN §3, §5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from _rifl_ground.refusals import Denied
from rifl._grpc.certificates import CERTIFIED, NOT_SHOWN, names_of
from rifl.core._shared.errors import NotYours


class PeerContext(Protocol):
    """The part of a sync or aio ServicerContext that tells the peer."""

    def peer_identities(self) -> Iterable[bytes] | None:
        """The authenticated identities, or None."""

    def peer_identity_key(self) -> str | None:
        """The property the identities come from."""

    # gRPC's own annotations differ between sync and aio, and from what comes.
    def auth_context(self) -> Mapping[str, Any]:
        """All properties of the channel: name to values."""


def peer_of(context: PeerContext, identity_property: str | None = None) -> bytes:
    """Return the caller's identity as one comparable value; empty if it is unauthenticated.

    The names in its certificate (``certificates.names_of``), or the values of
    ``identity_property`` of the auth context, such as ``x509_common_name``: choose what
    stays when certificates rotate. The order of names does not matter.
    Raises NotYours if the peer is authenticated but has no such name, since it
    would share the namespace of the unauthenticated.
    """
    identities = context.peer_identities()
    if not identities:
        return b""
    key = identity_property or context.peer_identity_key() or ""
    if identity_property is not None:
        identities = context.auth_context().get(identity_property) or ()
    elif key in CERTIFIED:
        key = "name"
        identities = [each.encode() for each in names_of(context.auth_context()) or ()]
    # A certificate without a common name has an empty one.
    values = sorted(value for value in identities if value not in (b"", NOT_SHOWN))
    if not values:
        raise NotYours(
            f"the peer's certificate has no {key} that gRPC shows",
            Denied("certificate", "unnamed"),
        )
    parts = [key.encode(), *values]
    # Lengths in front, so that no two lists of names read the same.
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def values_of(peer: bytes) -> list[bytes]:
    """Return the values in what ``peer_of`` returned."""
    found: list[bytes] = []
    at = 0
    while at < len(peer):
        end = at + 4 + int.from_bytes(peer[at : at + 4], "big")
        found.append(peer[at + 4 : end])
        at = end
    # The property's name comes first.
    return found[1:]
