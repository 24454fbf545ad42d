"""The checks of every engine before it asks its store: of commits that cannot be."""

from __future__ import annotations

from sharedlog._core.commit import Commit, Stamp
from sharedlog._core.errors import InvalidRequest
from sharedlog._engines.engine import Limits

MAX_TAGS = 1024
MAX_TAG_BYTES = 200


def check_commit(commit: Commit, limits: Limits) -> None:
    """Raise ``InvalidRequest`` for a commit that is beyond the limits, or makes no sense."""
    if len(commit.entries) > limits.entries:
        raise InvalidRequest(
            f"{len(commit.entries)} entries in one append; this log takes {limits.entries}"
        )
    size = 0
    for entry in commit.entries:
        size += len(entry.body)
        if len(entry.tags) > MAX_TAGS:
            raise InvalidRequest(f"{len(entry.tags)} tags on one entry; {MAX_TAGS} are the most")
        for tag in entry.tags:
            length = len(tag) if tag.isascii() else len(tag.encode())
            if not 0 < length <= MAX_TAG_BYTES or "\n" in tag:
                raise InvalidRequest(
                    f"{tag[:200]!r} is no tag: 1 to {MAX_TAG_BYTES} bytes without a line's end"
                )
            size += length
    if size > limits.append_bytes:
        raise InvalidRequest(f"{size} bytes in one append; this log takes {limits.append_bytes}")
    if len(commit.conditions) + len(commit.puts) > limits.operations:
        raise InvalidRequest(
            f"{len(commit.conditions) + len(commit.puts)} keys in one step; "
            f"this log takes {limits.operations}"
        )
    if not commit.entries and any(put.stamp is not Stamp.NONE for put in commit.puts):
        raise InvalidRequest("a stamp needs an entry")
