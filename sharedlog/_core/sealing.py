"""The user's encryption of messages: envelopes sealed whole, and opened again.

Nothing else of a log is: LSNs, tags (streams and substreams), times, sizes, the names of
producers and followers, and what tells a named producer's contents apart stay readable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sharedlog._core.arguments import check_called, shown
from sharedlog._core.envelope import SEALED_VERSION, unpack
from sharedlog._core.errors import InvalidRequest, LogError, SealedMessage
from sharedlog.v1 import sharedlog_pb2 as pb

# The data, and what is authenticated beside it: where it belongs.
Transform = Callable[[bytes, bytes], bytes]
# With what the bytes of a sealed envelope begin: its version, the first field.
_SEALED = pb.Envelope(version=SEALED_VERSION).SerializeToString()


class Seals(NamedTuple):
    """A user's two functions, any thread, possibly in many at once.

    Each gets bytes and, as associated data, where they belong: ``stream/partition`` as UTF-8, of a
    consumer's state the name of its row. What is moved elsewhere then does not open.
    """

    seal: Transform
    unseal: Transform

    @classmethod
    def of(cls, seal: Transform | None, unseal: Transform | None) -> Seals | None:
        """Return what stands for the arguments of a user: both, or neither."""
        check_called(seal, "seal")
        check_called(unseal, "unseal")
        if seal is None and unseal is None:
            return None
        if seal is None or unseal is None:
            raise InvalidRequest("seal and unseal are given together, or not at all")
        return cls(seal, unseal)

    def sealed(self, envelope: bytes, place: str) -> bytes:
        """Return an envelope that holds this one sealed; what ``seal`` raises is raised."""
        data = self.seal(envelope, place.encode())
        if not isinstance(data, bytes):
            raise InvalidRequest(f"seal returned {shown(data)}: it returns bytes")
        found = pb.Envelope(version=SEALED_VERSION, sealed=data)
        return found.SerializeToString()


def is_sealed(envelope: bytes) -> bool:
    """Whether an envelope is one that holds another sealed."""
    return envelope.startswith(_SEALED)


def opened(envelope: bytes, seals: Seals | None, place: str) -> tuple[bytes, str]:
    """Return the envelope within a sealed one; or the sealed one, and why it cannot be opened.

    ``place``: where it is, which ``unseal`` can compare with where it was sealed for.
    """
    if not is_sealed(envelope):
        return envelope, ""
    sealed = unpack(envelope).sealed
    if seals is None:
        return envelope, "no unseal was given"
    try:
        found = seals.unseal(sealed, place.encode())
        if is_sealed(found):
            return envelope, "what unseal returned is no envelope"
        unpack(found)
    except LogError:
        return envelope, "what unseal returned is no envelope"
    except Exception as error:  # noqa: BLE001 - whatever the user's unseal raises
        return envelope, f"unseal failed: {error!r}"
    return found, ""


def check_opens(envelope: bytes, seals: Seals, place: str) -> None:
    """Raise ``SealedMessage`` for an envelope that cannot be opened."""
    _, why = opened(envelope, seals, place)
    if why:
        raise SealedMessage(f"it is sealed: {why}")
