"""Defaults of the bounds on keys, which the disk decides where they are on one (DESIGN §9)."""

from __future__ import annotations

from rifl import Bounds


def test_the_disk_bounds_keys_where_nothing_else_does() -> None:
    """Half of what is free, and a quarter of that for one address (DESIGN §9)."""
    of_disk = Bounds().on_disk(1 << 40)
    assert (of_disk.max_keys, of_disk.max_key_bytes) == (1 << 31, 1 << 39)
    assert (of_disk.source_keys, of_disk.source_bytes) == (1 << 29, 1 << 37)
    assert of_disk.of_keys(1.0).max_keys == 1 << 31
    given = Bounds(max_keys=7, max_key_bytes=70).on_disk(1 << 40)
    assert (given.max_keys, given.max_key_bytes) == (7, 70)
    full = Bounds().on_disk(0).of_keys(None)
    assert (full.max_keys, full.max_bytes) == (1, 256)
    elsewhere = Bounds().on_disk(None).of_keys(None)
    assert (elsewhere.max_keys, elsewhere.max_bytes) == (10_000_000, 512 << 20)
