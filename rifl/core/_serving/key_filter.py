"""A Bloom filter of the keys that a store can have a record of (DESIGN §6)."""

from __future__ import annotations

_LEAST_BITS, _MOST_BITS = 1 << 16, 1 << 28
# Of each key when no more fit: of those that are new 5 % then look as if they were there.
_BITS_A_KEY = 8


class KeyFilter:
    """Says of most keys that were never added that they were not; of one that was, never.

    ``keys``: how many are expected; as many again fit. Not thread-safe.
    """

    __slots__ = ("_added", "_bits", "_mask", "_most")

    def __init__(self, keys: int) -> None:
        bits = _LEAST_BITS
        while bits < min(2 * keys * _BITS_A_KEY, _MOST_BITS):
            bits *= 2
        self._bits = bytearray(bits // 8)
        self._mask = bits - 1
        self._most = max(bits // _BITS_A_KEY, 2 * keys)
        self._added = 0

    def add(self, client_id: int, key: bytes) -> bool:
        """Add a key; whether it may have been added before."""
        bits, mask = self._bits, self._mask
        number = hash((client_id, key))
        one, other = number & mask, number >> 32 & mask
        first, second = 1 << (one & 7), 1 << (other & 7)
        one, other = one >> 3, other >> 3
        if bits[one] & first and bits[other] & second:
            return True
        bits[one] |= first
        bits[other] |= second
        self._added += 1
        return False

    @property
    def full(self) -> bool:
        """Whether more were added than fit: another one, of what is there, says more."""
        return self._added > self._most
