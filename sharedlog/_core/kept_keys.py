"""The keys that a log keeps, held against what its rows say (DESIGN-LOG §12).

A key that was changed has a checksum that tells. One that is gone, or is older than the rows, would
have ids granted twice, or a stream made anew with other substreams.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sharedlog._core.catalog import all_streams
from sharedlog._core.commit import LSN_BYTES
from sharedlog._core.errors import LogError
from sharedlog._core.holds import HOLDS
from sharedlog._core.incarnation import read_incarnation
from sharedlog._core.named import named_key
from sharedlog._core.producers import GRANTED, identity_key, seq_key
from sharedlog._core.steps import Ends, Get, Lsns, Rule, Scan, tried
from sharedlog._core.streams import stream_of

_PIECE = 100


def judge_keys(tags: Iterable[str], seqs: Mapping[int, int], holds: int) -> Rule[list[str]]:
    """Return what is wrong with the keys, in words.

    ``tags``: which rows have; ``seqs``: the highest ones of producers, in rows; ``holds``: how
    many there are. All was read before the keys are.
    """
    problems: list[str] = []
    for part in (_streams(tags), _producers(seqs), _names(), _incarnation(), _holds(holds)):
        try:
            problems += yield from tried(part)
        except LogError as error:
            problems.append(str(error))
    return problems


def _streams(tags: Iterable[str]) -> Rule[list[str]]:
    made = {each.name: each.substreams for each in (yield from all_streams())}
    return list(_strangers(made, tags))


def _strangers(made: Mapping[str, int], tags: Iterable[str]) -> Iterator[str]:
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
    count = int.from_bytes((yield Get((GRANTED,)))[GRANTED] or b"", "big")
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
            highest = int.from_bytes(found[seq_key(each)] or b"", "big")
            if highest < seqs[each]:
                problems.append(
                    f"producer {each} is at seq {highest}, and an entry is its seq {seqs[each]}"
                )
    return problems


def _names() -> Rule[list[str]]:
    found: Mapping[str, bytes] = yield Scan(named_key(""))
    ends: Lsns = yield Ends()
    lsns = {key: int.from_bytes(value[-LSN_BYTES:], "big") for key, value in found.items()}
    return [
        f"{key} says LSN {lsn}, and the log ends at {ends.last}"
        for key, lsn in sorted(lsns.items())
        if lsn > ends.last
    ]


def _incarnation() -> Rule[list[str]]:
    yield from read_incarnation()
    return []


def _holds(count: int) -> Rule[list[str]]:
    if not count or (yield Get((HOLDS,)))[HOLDS] is not None:
        return []
    return ["the count of the holds that were made is gone, and there are some"]
