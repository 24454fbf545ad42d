"""Checks of a log's history: what publishers were told, beside what followers have read.

The rules are what a log promises (DESIGN-LOG §12, §13), said again from outside: they share nothing
with ``sharedlog``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

from chaos.check.history import History
from chaos.check.log_history import Append, LogHistory, Place, Session, Substream
from chaos.check.violation import Violation

__all__ = ["LOG_RULES", "check_log"]

_Rule = Callable[[LogHistory], Iterator[Violation]]


def check_log(history: History) -> list[Violation]:
    """Return everything that breaks a rule; empty for a history that keeps them."""
    log = LogHistory(history)
    return [violation for rule in LOG_RULES.values() for violation in rule(log)]


def _nothing_lost(log: LogHistory) -> Iterator[Violation]:
    """What was acknowledged is in the log."""
    for append in log.appends.values():
        gone = [name for name, *_ in append.messages if name not in log.found]
        if append.acknowledged and gone:
            yield _of(append, "lost", f"acknowledged, and no follower ever read {gone}")


def _nothing_doubled(log: LogHistory) -> Iterator[Violation]:
    """No message is in the log twice."""
    for name, places in log.found.items():
        if len(places) > 1:
            yield Violation("doubled", name, "it is at " + _said(places))


def _labels_honest(log: LogHistory) -> Iterator[Violation]:
    """No refused, rolled-back or unpublished message is read, and none at another place."""
    known = {each[0]: each for append in log.appends.values() for each in append.messages}
    for append in log.appends.values():
        there = [name for name, *_ in append.messages if name in log.found]
        if append.known_not and there:
            yield _of(append, "labels", f"not appended, and {there} were read")
    for substream, places in log.contents.items():
        for place, messages in places.items():
            for name, key in messages:
                published = known.get(name)
                if published is None:
                    yield Violation("labels", name, f"no client published it; it is at {place}")
                elif published[1:] != (substream.stream, key):
                    text = f"published as {published[1:]}, read as {(substream.stream, key)}"
                    yield Violation("labels", name, text)


def _nothing_torn(log: LogHistory) -> Iterator[Violation]:
    """Of what is published together all is there or nothing, at one LSN."""
    for append in log.appends.values():
        there = [name for name, *_ in append.messages if name in log.found]
        if there and len(there) < len(append.messages):
            text = f"{len(there)} of its {len(append.messages)} messages are there"
            yield _of(append, "torn", text)
        lsns = log.lsns(append)
        if len(lsns) > 1:
            yield _of(append, "torn", f"its messages are at the LSNs {sorted(lsns)}")


def _answers_true(log: LogHistory) -> Iterator[Violation]:
    """A message is where its publisher was told; what is at a place is the same for everybody."""
    for append in log.appends.values():
        for (name, *_), told in zip(append.messages, append.told or (), strict=False):
            places = log.found.get(name, [])
            if places and told not in [[at.number, *place] for at, place in places]:
                text = f"{name} was told to be at {told}, and is at {_said(places)}"
                yield _of(append, "answers", text)
    for substream, contents in log.contents.items():
        for place, messages in contents.items():
            if len(messages) > 1:
                text = f"{place} is {sorted(name for name, _ in messages)}"
                yield Violation("answers", str(substream), text)


def _order_kept(log: LogHistory) -> Iterator[Violation]:
    """Later is behind: within a key one substream, of a caller, of an append, of all by time."""
    homes: dict[tuple[str, str], set[int]] = defaultdict(set)
    last: dict[str, tuple[int, Append]] = {}
    for append in log.appends.values():
        for name, stream, key in append.messages:
            if key is not None:
                homes[stream, key].update(at.number for at, _ in log.found.get(name, ()))
        lsns = log.lsns(append)
        if not lsns:
            continue
        if min(lsns) <= append.floor:
            text = f"at {min(lsns)}, though {append.floor} was acknowledged before it began"
            yield _of(append, "order", text)
        before, earlier = last.get(append.caller, (0, append))
        if min(lsns) <= before:
            text = f"at {min(lsns)}, and append {earlier.number} of {append.caller} before it, "
            yield _of(append, "order", text + f"at {before}")
        last[append.caller] = max(lsns), append
        yield from _own_order(log, append)
    for (stream, key), found in homes.items():
        if len(found) > 1:
            text = f"the key {key} is in the substreams {sorted(found)}"
            yield Violation("order", stream, text)


def _own_order(log: LogHistory, append: Append) -> Iterator[Violation]:
    """Within an append the messages of a substream are as they were published."""
    newest: dict[Substream, tuple[Place, str]] = {}
    for name, *_ in append.messages:
        for substream, place in log.found.get(name, ()):
            before, earlier = newest.get(substream, (Place(0, 0), ""))
            if place <= before:
                yield _of(append, "order", f"{name} is before {earlier}, published later")
            newest[substream] = place, name


def _read_in_order(log: LogHistory) -> Iterator[Violation]:
    """A follower reads on without a gap or a repetition, and its substreams by commit."""
    for session in _sessions(log):
        if any(after.lsn < before.lsn for (_, before), (_, after) in pairwise(session.reads)):
            yield _by(session, "read", "a commit came after one behind it")
        for substream in {at for at, _ in session.reads}:
            order = log.order[Substream(session.stream, substream)]
            places = {place: index for index, place in enumerate(order)}
            read = session.of(substream)
            for before, after in pairwise(read):
                step = places[after] - places[before]
                if step != 1:
                    what = f"{step - 1} between are missing" if step > 1 else "it goes back"
                    yield _by(session, "read", f"{substream}: {after} after {before}: {what}")


def _resumed_rightly(log: LogHistory) -> Iterator[Violation]:
    """Who goes on skips nothing that it has not done, and repeats nothing known to be done."""
    for sessions in log.sessions.values():
        for substream, order in log.order.items():
            mine = [each for each in sessions if each.follows(substream)]
            places = {place: index for index, place in enumerate(order)}
            # Indexes of messages: which the hold is behind, by whom it was asked and answered.
            asked = known = -1
            for session in mine:
                read = session.of(substream.number)
                if read and session.hold:
                    first = places[read[0]]
                    if first > asked + 1:
                        text = f"{substream}: {first - asked - 1} that were not done are skipped"
                        yield _by(session, "resumed", text)
                    if first <= known:
                        text = f"{substream}: {read[0]} comes again, behind which its hold was"
                        yield _by(session, "resumed", text)
                    known = max(known, first - 1)
                elif read and (behind := session.behind.get(substream.number)) is not None:
                    step = places[read[0]] - places.get(behind, -1)
                    if step != 1:
                        text = f"{substream}: {read[0]} is not the next one behind {behind}"
                        yield _by(session, "resumed", text)
                if (done := session.done.get(substream.number)) is not None:
                    asked = max(asked, places[done])
                    known = max(known, places[done]) if session.closed else known


def _read_to_the_end(log: LogHistory) -> Iterator[Violation]:
    """In the end a follower has, or had done, what is committed last; none read beyond that."""
    for substream, tail in log.tails.items():
        order = log.order.get(substream, [])
        if order and (tail is None or order[-1] > tail):
            text = f"{order[-1]} was read, and the log ends with {tail}"
            yield Violation("end", str(substream), text)
        if tail is None:
            continue
        for sessions in log.sessions.values():
            mine = [each for each in sessions if each.follows(substream)]
            if not mine or mine[-1].refused:
                continue
            *earlier, last = mine
            at = substream.number
            done = [each.done[at] for each in earlier if at in each.done]
            behind = last.behind.get(at) if not last.hold else max(done) if done else None
            reached = [behind, *last.of(at)][-1]
            if reached != tail:
                yield _by(last, "end", f"{substream}: it got to {reached}, and not to {tail}")


def _never_refused(log: LogHistory) -> Iterator[Violation]:
    """Nothing is trimmed that a hold is before, and nothing is forked or corrupt."""
    for session in _sessions(log):
        if session.refused and (session.hold or session.refused != "TrimmedLog"):
            yield _by(session, "refused", f"told {session.refused}")


def _sessions(log: LogHistory) -> Iterator[Session]:
    for sessions in log.sessions.values():
        yield from sessions


def _of(append: Append, rule: str, text: str) -> Violation:
    return Violation(rule, f"append {append.number}", text)


def _by(session: Session, rule: str, text: str) -> Violation:
    return Violation(rule, session.follower, text)


def _said(places: list[tuple[Substream, Place]]) -> str:
    return ", ".join(f"{substream} {tuple(place)}" for substream, place in places)


LOG_RULES: dict[str, _Rule] = {
    "lost": _nothing_lost,
    "doubled": _nothing_doubled,
    "labels": _labels_honest,
    "torn": _nothing_torn,
    "answers": _answers_true,
    "order": _order_kept,
    "read": _read_in_order,
    "resumed": _resumed_rightly,
    "end": _read_to_the_end,
    "refused": _never_refused,
}
