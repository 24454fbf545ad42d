"""A queue of bits (the bit vector of Xline's trackers)."""

from __future__ import annotations

from bitarray import bitarray

_COMPACT_FROM_BITS = 4096


class BitVecQueue:
    """Bits by offset from the front; the front can be dropped.

    Testing takes constant time; dropping n bits takes
    time proportional to n over any sequence of calls. An offset outside
    ``range(len(queue))`` raises ``IndexError``. Not thread-safe.
    """

    __slots__ = ("_bits", "_head")

    def __init__(self, bits: str | bitarray = "") -> None:
        self._bits = bitarray(bits)
        # Dropped bits stay in front until they are half of all, so that one
        # shift of the rest is paid for by the drops before it.
        self._head = 0

    def __len__(self) -> int:
        return len(self._bits) - self._head

    def __getitem__(self, offset: int) -> bool:
        return bool(self._bits[self._index(offset)])

    def __repr__(self) -> str:
        return f"BitVecQueue('{self._bits[self._head :].to01()}')"

    def extend(self, count: int, bit: bool = False) -> None:
        """Add ``count`` equal bits at the back."""
        if count < 0:
            raise ValueError("count must not be negative")
        end = len(self._bits)
        self._bits.extend(bitarray(count))
        self._bits[end:] = bit

    def set_range(self, start: int, stop: int, bit: bool = True) -> None:
        """Set the bits from ``start`` up to, not with, ``stop``."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"range {start}..{stop} outside 0..{len(self)}")
        self._bits[self._head + start : self._head + stop] = bit

    def find(self, bit: bool, start: int = 0) -> int:
        """Return the offset of the first such bit from ``start`` on, or -1."""
        if start < 0:
            raise IndexError(f"offset {start} is negative")
        found = self._bits.find(bit, self._head + start)
        return found - self._head if found >= 0 else -1

    def drop(self, count: int) -> None:
        """Drop ``count`` bits at the front; more than there are raises ``IndexError``."""
        if not 0 <= count <= len(self):
            raise IndexError(f"cannot drop {count} of {len(self)} bits")
        self._head += count
        if self._head == len(self._bits):
            self._bits.clear()
            self._head = 0
        elif self._head >= _COMPACT_FROM_BITS and 2 * self._head >= len(self._bits):
            del self._bits[: self._head]
            self._head = 0

    def clear(self) -> None:
        """Drop everything."""
        self._bits.clear()
        self._head = 0

    def _index(self, offset: int) -> int:
        if not 0 <= offset < len(self):
            raise IndexError(f"offset {offset} outside 0..{len(self) - 1}")
        return self._head + offset
