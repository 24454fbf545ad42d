"""The checks of every engine before it asks its store: of commits that cannot be."""

from __future__ import annotations

import functools

from sharedlog._core.commit import Commit, Stamp
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.streams import MAX_TAGS
from sharedlog._engines.engine import Limits

MAX_TAG_BYTES = 200
MAX_KEY_BYTES = 1000
# What every store can count with.
_FOR_EVER_S = 10**9


def check_commit(commit: Commit, limits: Limits) -> None:
    """Raise ``InvalidRequest`` for a commit that is beyond the limits, or makes no sense."""
    conditions, puts, entries, _ = commit
    if len(entries) > limits.entries:
        raise InvalidRequest(
            f"{len(entries)} entries in one append; this log takes {limits.entries}"
        )
    size = 0
    for body, tags in entries:
        size += len(body) + _bytes_of_tags(tags)
    if size > limits.append_bytes:
        raise InvalidRequest(f"{size} bytes in one append; this log takes {limits.append_bytes}")
    if len(conditions) + len(puts) > limits.operations:
        raise InvalidRequest(
            f"{len(conditions) + len(puts)} keys in one step; this log takes {limits.operations}"
        )
    for key, _ in conditions:
        check_key(key)
    keys: set[str] = set()
    for key, value, _, term_s in puts:
        check_key(key)
        keys.add(key)
        if term_s is not None and not (value is not None and 0 < term_s < _FOR_EVER_S):
            raise InvalidRequest(f"a value's term is some seconds, up to {_FOR_EVER_S}")
    if len(keys) < len(puts):
        raise InvalidRequest("a key is put twice in one step")
    if not entries and any(put.stamp is not Stamp.NONE for put in puts):
        raise InvalidRequest("a stamp needs an entry")


# A producer's appends have the same few.
@functools.lru_cache(maxsize=1024)
def check_key(key: str) -> None:
    """Raise ``InvalidRequest`` for what no store could look up."""
    if not 0 < _bytes_of(key) <= MAX_KEY_BYTES:
        raise InvalidRequest(f"{key[:200]!r} is no key: 1 to {MAX_KEY_BYTES} bytes")


# Most entries have the tags of others: those of a substream.
@functools.lru_cache(maxsize=1024)
def _bytes_of_tags(tags: tuple[str, ...]) -> int:
    if len(tags) > MAX_TAGS:
        raise InvalidRequest(f"{len(tags)} tags on one entry; {MAX_TAGS} are the most")
    size = 0
    for tag in tags:
        length = _bytes_of(tag)
        if not 0 < length <= MAX_TAG_BYTES or "\n" in tag:
            raise InvalidRequest(
                f"{tag[:200]!r} is no tag: 1 to {MAX_TAG_BYTES} bytes without a line's end"
            )
        size += length
    return size


def _bytes_of(text: str) -> int:
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{text[:200]!r} is no text: {error.reason}") from None
