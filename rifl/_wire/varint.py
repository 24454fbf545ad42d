"""Protobuf's varint, written by hand."""

from __future__ import annotations


def varint(number: int) -> bytes:
    """Return a number as protobuf writes it."""
    if number < 1 << 7:
        return bytes((number,))
    if number < 1 << 14:
        return bytes((number & 127 | 128, number >> 7))
    if number < 1 << 21:
        return bytes((number & 127 | 128, number >> 7 & 127 | 128, number >> 14))
    return bytes((number & 127 | 128, number >> 7 & 127 | 128, number >> 14 & 127 | 128)) + (
        varint(number >> 21)
    )
