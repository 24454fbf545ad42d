"""The keys that a log keeps, held against what its rows say (DESIGN-LOG §12).

They have no checksums of their own: one that is gone, or makes no sense, would have ids granted
twice, or a stream made anew with other substreams.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sharedlog._core.catalog import all_streams
from sharedlog._core.commit import LSN_BYTES
from sharedlog._core.errors import LogError
from sharedlog._core.fences import MAX_NUMBER, fence_key, number_of
from sharedlog._core.holds import HOLDS
from sharedlog._core.incarnation import read_incarnation
from sharedlog._core.named import named_key, seq_of
from sharedlog._core.producers import (
    GRANTED,
    answer_key,
    identity_key,
    number,
    seq_key,
    window_of,
)
from sharedlog._core.steps import Ends, Get, Lsns, Rule, Scan
from sharedlog._core.streams import stream_of

_PIECE = 100


def judge_keys(tags: Iterable[str], seqs: Mapping[int, int], holds: int) -> Rule[list[str]]:
    """Return what is wrong with the keys, in words.

    ``tags``: which rows have; ``seqs``: the highest ones of producers, in rows; ``holds``: how
    many there are. All was read before the keys are.
    """
    problems: list[str] = []
    try:
        made = {each.name: each.substreams for each in (yield from all_streams())}
        problems += _streams(made, tags)
    except LogError as error:
        problems.append(str(error))
    problems += yield from _producers(seqs)
    problems += yield from _names()
    problems += yield from _fences()
    try:
        yield from read_incarnation()
    except LogError as error:
        problems.append(str(error))
    if holds:
        value: bytes | None = (yield Get((HOLDS,)))[HOLDS]
        if value is None or len(value) != 8:
            problems.append("the count of the holds that were made is gone, and there are some")
    return problems


def _streams(made: Mapping[str, int], tags: Iterable[str]) -> Iterator[str]:
    gone: set[str] = set()
    for tag in sorted(tags):
        name, substream = stream_of(tag), tag.rpartition("/")[2]
        # Of consumers' states there is no stream.
        if not name or name in gone or name.startswith("*"):
            continue
        if name not in made:
            gone.add(name)
            yield f"stream {name!r} is gone, and entries have its tags"
        elif substream.isdigit() and int(substream) >= made[name]:
            yield f"stream {name!r} has {made[name]} substreams, and entries have the tag {tag!r}"


def _producers(seqs: Mapping[int, int]) -> Rule[list[str]]:
    if not seqs:
        return []
    problems: list[str] = []
    granted: bytes = (yield Get((GRANTED,)))[GRANTED] or b""
    count = int.from_bytes(granted, "big")
    if granted and len(granted) != len(number(0)):
        problems.append("the count of producers is not what was written")
    if count < max(seqs):
        problems.append(f"{count} producers were granted, and entries are of producer {max(seqs)}")
    ids = sorted(seqs)
    for first in range(0, len(ids), _PIECE):
        piece = ids[first : first + _PIECE]
        keys = [key for each in piece for key in (identity_key(each), seq_key(each))]
        found = yield Get(tuple(keys))
        for each in piece:
            if found[identity_key(each)] is None:
                problems.append(f"producer {each} is gone, and entries are of it")
            seq: bytes = found[seq_key(each)] or b""
            highest = int.from_bytes(seq, "big")
            if seq and len(seq) != len(number(0)):
                problems.append(f"the seq of producer {each} is not what was written")
            if highest < seqs[each]:
                problems.append(
                    f"producer {each} is at seq {highest}, and an entry is its seq {seqs[each]}"
                )
            elif highest > seqs[each] and (window := window_of(found[identity_key(each)])):
                # Appended since the entries were read, or changed: the two are put together.
                answer = answer_key(each, highest, window)
                now = yield Get((seq_key(each), answer))
                if now[seq_key(each)] == seq and (now[answer] or b"")[:8] != seq:
                    problems.append(
                        f"producer {each} is at seq {highest}, of which the log has no answer"
                    )
    return problems


def _fences() -> Rule[list[str]]:
    found: Mapping[str, bytes] = yield Scan(fence_key(""))
    return [
        f"{key} is not what was written"
        for key, value in sorted(found.items())
        if len(value) != len(number(0)) or not 0 < number_of(value) <= MAX_NUMBER
    ]


def _names() -> Rule[list[str]]:
    found: Mapping[str, bytes] = yield Scan(named_key(""))
    ends: Lsns = yield Ends()
    problems: list[str] = []
    for key, value in sorted(found.items()):
        try:
            seq_of(value)
        except LogError as error:
            problems.append(f"{key}: {error}")
            continue
        lsn = int.from_bytes(value[-LSN_BYTES:], "big")
        if lsn > ends.last:
            problems.append(f"{key} says LSN {lsn}, and the log ends at {ends.last}")
    return problems
