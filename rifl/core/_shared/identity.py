"""The identity of a call (RIFL §3.1; DESIGN §3)."""

from __future__ import annotations

from dataclasses import dataclass

MAX_KEY_BYTES = 64
# Stores keep seqs in signed 64-bit columns.
MAX_SEQ = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RpcId:
    """The identity all attempts of one call share.

    Exactly one of ``seq`` (from 1) and ``key`` (1 to 64 bytes) is set. Hashable,
    comparable and picklable; valid for as long as its client id is.
    """

    client_id: int
    seq: int | None = None
    key: bytes | None = None

    def __str__(self) -> str:
        tail = str(self.seq) if self.key is None else self.key.hex()
        return f"{self.client_id}/{tail}"
