"""The identity of a call, and the rules that it keeps to (RIFL §3.1; DESIGN §3)."""

from __future__ import annotations

from dataclasses import dataclass

from rifl.core._shared.errors import BadHeader

MAX_KEY_BYTES = 255
# Stores keep seqs in signed 64-bit columns.
MAX_SEQ = 2**63 - 1
# How many calls of a client id may be unacknowledged at once, by default.
DEFAULT_WINDOW = 512
# How many further leases one renewal may renew: some 12 KiB, and about a millisecond.
ALSO_AT_MOST = 256


@dataclass(frozen=True, slots=True)
class RpcId:
    """The identity all attempts of one call share.

    Exactly one of ``seq`` (from 1) and ``key`` (1 to 255 bytes) is set. Hashable,
    comparable and picklable; valid for as long as its client id is.
    """

    client_id: int
    seq: int | None = None
    key: bytes | None = None

    def __str__(self) -> str:
        # 0x: without it the digits would also be the text of another key.
        tail = str(self.seq) if self.key is None else f"0x{self.key.hex()}"
        return f"{self.client_id}/{tail}"


def is_key(key: bytes) -> bool:
    """Whether the bytes can be a key: 1 to 255 of them."""
    return 1 <= len(key) <= MAX_KEY_BYTES


def check_key(key: bytes) -> None:
    """Raise ``BadHeader`` unless the key has 1 to 255 bytes."""
    if not is_key(key):
        raise BadHeader(f"a key has 1 to {MAX_KEY_BYTES} bytes, not {len(key)}")


def key_of_text(text: str) -> bytes:
    """Return the key that a plain header's text stands for; raises ``BadHeader``."""
    if not (text.isascii() and text.isprintable()):
        raise BadHeader("a key is printable ASCII")
    key = text.encode()
    check_key(key)
    return key
