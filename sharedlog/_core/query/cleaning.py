"""The cleaning of a query: producers of tasks that can append no more are removed (DESIGN-LOG §16).

After a crash between a marker and this, the next process does it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from sharedlog._core.commit import Commit, Condition, NewEntry, Put, Refused
from sharedlog._core.entry import EntryKind, ProducerDecision, read_row
from sharedlog._core.errors import CorruptLog, TrimmedLog
from sharedlog._core.producers import answer_key, identity_key, open_key, seq_key
from sharedlog._core.query.state import PlanState, Query, by_name, find_query
from sharedlog._core.query.tasks import Member, member_key, members
from sharedlog._core.spans import OPEN_SPANS, begin_of, marker, ordered, span_key
from sharedlog._core.steps import Get, Read, Rows, Rule, Scan, Try

# Conditions and puts of one step: etcd takes few.
OPERATIONS = 90
# Of each producer, by tag, as its keys hold it.
Spans = dict[int, dict[str, bytes]]


def clean(name: str) -> Rule[int]:
    """Remove the producers of a query's tasks that can append no more.

    What they have pending and no marker names is rolled back; of how many, it returns.
    """
    while True:
        # In this order: of who is granted a producer afterwards nothing is seen.
        there = yield from members(name)
        query = yield from find_query(name)
        live = query is not None and query.state in (PlanState.OPEN, PlanState.CLOSING)
        over = [
            each
            for each in there
            if query is None or each.plan < query.plan or (each.plan == query.plan and not live)
        ]
        named: set[int] = set()
        if query is not None and query.lsn and over:
            named = yield from _named(query)
        try:
            return (yield from _remove(over, named))
        except Refused:
            # Another process cleans.
            continue


def left_over(name: str, named: Collection[int], spans: Spans) -> Rule[int]:
    """Return how many attempts of a query's tasks have something pending, but those named."""
    there = yield from members(name)
    return sum(each.id in spans and each.id not in named for each in there)


def open_spans() -> Rule[Spans]:
    """Return what each producer has pending, by tag, as its keys hold it."""
    found: Mapping[str, bytes] = yield Scan(OPEN_SPANS)
    spans: Spans = {}
    for key, value in found.items():
        producer, _, tag = key.removeprefix(OPEN_SPANS).partition("/")
        spans.setdefault(int(producer), {})[tag] = value
    return spans


def removal(name: str, plan: int, producer: int, tags: Iterable[str]) -> list[Put]:
    """Return what removes a task's producer, which has something pending under these tags."""
    keys = (
        identity_key(producer),
        seq_key(producer),
        open_key(producer),
        answer_key(producer, 0, 1),
        member_key(name, plan, producer),
        *(span_key(producer, tag) for tag in sorted(tags)),
    )
    return [Put(key, None) for key in keys]


def _named(query: Query) -> Rule[set[int]]:
    """Return the producers that the query's last marker names."""
    rows: Rows | CorruptLog | TrimmedLog = yield Try(Read(query.lsn - 1, 1))
    if isinstance(rows, TrimmedLog):
        # What is pending keeps the marker that names it: of these nothing is.
        return set()
    if isinstance(rows, CorruptLog):
        raise rows
    entry = read_row(rows.rows[0]) if rows.rows else None
    if entry is None or entry.lsn != query.lsn or entry.name != by_name(query.name):
        raise CorruptLog(f"LSN {query.lsn} is not what {query.name!r} committed")
    return {each.producer for each in entry.decisions}


def _remove(over: Sequence[Member], named: set[int]) -> Rule[int]:
    """Remove producers, several in one step; return of how many something is rolled back."""
    count = 0
    conditions: list[Condition] = []
    puts: list[Put] = []
    undone: list[ProducerDecision] = []
    all_spans = (yield from open_spans()) if over else {}
    for each in over:
        spans = all_spans.get(each.id, {})
        if puts and len(conditions) + len(puts) + 2 * len(spans) > OPERATIONS:
            yield from _step(conditions, puts, undone)
            conditions, puts, undone = [], [], []
        puts += removal(each.name, each.plan, each.id, spans)
        if spans and each.id not in named:
            seq = (yield Get((seq_key(each.id),)))[seq_key(each.id)]
            through = int.from_bytes(seq or b"", "big")
            begins = {tag: begin_of(value) for tag, value in spans.items()}
            undone.append(ProducerDecision(each.id, through, begins))
            count += 1
            conditions += [Condition(span_key(each.id, tag), spans[tag]) for tag in sorted(spans)]
    if puts:
        yield from _step(conditions, puts, undone)
    return count


def _step(
    conditions: Sequence[Condition], puts: Sequence[Put], undone: Sequence[ProducerDecision]
) -> Rule[None]:
    entries: tuple[NewEntry, ...] = ()
    if undone:
        entries = (marker(EntryKind.ROLLBACK, 0, 0, ordered(undone), "*queries"),)
    yield Commit(tuple(conditions), tuple(puts), entries)
