"""Names of streams, their substreams, and the tags by which entries are found (DESIGN-LOG §12)."""

from __future__ import annotations

import re
from functools import lru_cache

from sharedlog._core.arguments import shown
from sharedlog._core.errors import InvalidRequest

# Room for "/" and the substream within a tag's 200 bytes.
MAX_NAME_BYTES = 180
# Of one entry.
MAX_TAGS = 1024
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_OFFSET, _PRIME = 0x811C9DC5, 0x01000193


def check_name(name: str, what: str = "stream") -> None:
    """Raise ``InvalidRequest`` unless this can name ``what``: letters, digits, and ``_.-``."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > MAX_NAME_BYTES:
        raise InvalidRequest(
            f"{shown(name)} cannot name a {what}: 1 to {MAX_NAME_BYTES} letters, digits, "
            "_ . -, beginning with none of the last two"
        )


@lru_cache(maxsize=8192)
def fnv1a(data: bytes) -> int:
    """Return FNV-1a of 32 bits, which every language has: where a key goes must not differ."""
    found = _OFFSET
    for byte in data:
        found = ((found ^ byte) * _PRIME) & 0xFFFFFFFF
    return found


def substream_of(key: bytes, substreams: int) -> int:
    """Return the substream of a message with this key."""
    return fnv1a(key) % substreams


def tag_of(stream: str, substream: int) -> str:
    """Return the tag of a substream's messages."""
    return f"{stream}/{substream}"


@lru_cache(maxsize=8192)
def commits_tag(stream: str) -> str:
    """Return the tag of what commits messages of the stream: its last one is one look-up.

    A marker has it, and of an append that commits itself the last entry, by which it is named.
    """
    return f"{stream}/*"


@lru_cache(maxsize=8192)
def stream_of(tag: str) -> str:
    """Return the stream of a substream's tag."""
    return tag.rpartition("/")[0]


@lru_cache(maxsize=8192)
def substream_number(tag: str) -> int:
    """Return the number of a substream, of its tag."""
    return int(tag.rpartition("/")[2])
