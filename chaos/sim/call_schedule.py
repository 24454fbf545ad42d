"""Model of the world: the calls of a schedule, single ones, rows, batches, by a key."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from chaos.sim.planned import ACTIVE_S, PlannedCall, Setting

__all__ = ["as_batches", "by_keys", "draw_calls", "travel_together"]

_CALLS = 200
# Rows of a query; those that are sent again come to these.
_ROWS = 110
_BATCHES = 6


def draw_calls(kind: str, random: Random, setting: Setting) -> tuple[PlannedCall, ...]:
    """Draw the calls of a schedule of this kind."""
    calls = []
    at = 0.1
    # A client that only reads is content with a leader that can do no more than that.
    reader = setting.clients - 1 if kind == "curp" and random.random() < 0.5 else None
    count = _ROWS if kind == "spark" else _CALLS
    atomic = kind not in ("memory", "curp")
    accounts = random.randint(1, 6) if kind != "curp" else random.choice((1, 4, 12, 40))
    for number in range(1, count + 1):
        # Bursts and pauses: an idle client's lease is renewed by nothing but heartbeats.
        at += random.expovariate(count * 3 / ACTIVE_S)
        if random.random() < 0.02:
            at += random.random() * ACTIVE_S * 2 / (3 * 0.02 * count)
        client = random.randrange(setting.clients)
        if kind == "curp" and random.random() < 0.06:
            # Comes for this one call, and is never heard of again.
            client = setting.clients + number
        chance = random.random()
        if client == reader:
            chance = 0.0
        method, op, behaviour = "Add", "add", "effect"
        account = f"a{random.randrange(accounts)}"
        if chance < 0.2:
            method, op, behaviour = "Read", "read", "read"
        elif chance < 0.3 and kind != "curp":
            method, op = "Touch", "touch"
            account = f"t{random.randrange(2)}"
            if random.random() < 0.3:
                behaviour = "later"
            elif number % 2:
                behaviour = "unsure"
        elif chance < 0.5 and atomic:
            method = "AddAtomic"
        deadline_s = random.choice((None, None, 0.05, 1.0, 5.0))
        if op == "touch" and random.random() < 0.5:
            # Its caller asks what became of it, rather than again and again.
            deadline_s = 0.3
        if op == "add":
            fate = random.random()
            if fate < 0.05:
                behaviour = "abort"
            elif fate < 0.1 and method == "Add" and kind != "curp":
                behaviour = "raise"
            elif fate < 0.1 and method == "AddAtomic":
                behaviour = "forget"
        slow = random.random()
        work_s = random.expovariate(1 / 0.003)
        if slow < 0.1:
            # In a group all that conflict wait for it.
            longest = 4.0 if kind != "curp" else 1.0
            work_s = random.random() * (0.5 if slow < 0.08 else longest)
        calls.append(
            PlannedCall(
                number,
                client,
                at,
                f"/sim.Accounts/{method}",
                op,
                account,
                random.randint(1, 1_000_000),
                behaviour,
                work_s,
                deadline_s,
                random.random() < 0.7,
            )
        )
    return tuple(calls)


def as_batches(
    calls: tuple[PlannedCall, ...], random: Random, setting: Setting
) -> tuple[tuple[PlannedCall, ...], tuple[tuple[float, str], ...]]:
    """Make rows of calls: batches in sessions, tasks that run again, zombies, late closes."""
    rows: list[PlannedCall] = []
    closings = []
    batch_s = ACTIVE_S / _BATCHES
    commits = [batch_s * (batch + 1.2 + 0.5 * random.random()) for batch in range(_BATCHES)]
    for place, call in enumerate(calls):
        batch = min(place * _BATCHES // len(calls), _BATCHES - 1)
        row = replace(call, session=f"query/{batch}", key=b"row %d" % call.number)
        rows.append(row)
        chance = random.random()
        if chance < 0.25:
            # A speculative copy, or the same task on another executor, soon after.
            rows.append(_again(row, random, setting, row.at + random.random() * batch_s))
        elif chance < 0.35:
            # A zombie: its batch is committed, or closed, by then.
            late = commits[batch] + random.random() * 2 * batch_s
            rows.append(_again(row, random, setting, late))
    for batch in range(_BATCHES):
        if random.random() < 0.3:
            # The driver restarts before its commit is known: all of the batch again.
            again = [row for row in rows if row.session == f"query/{batch}"][:30]
            at = commits[batch] - 0.4 * batch_s * random.random()
            rows += [_again(row, random, setting, at) for row in again]
        if batch:
            # A commit closes the sessions of the batches before.
            closings.append((commits[batch], f"query/{batch - 1}"))
    while len(rows) < _CALLS:
        row = random.choice(rows)
        rows.append(_again(row, random, setting, row.at + random.random() * batch_s))
    return tuple(sorted(rows, key=lambda row: row.at)), tuple(closings)


def travel_together(
    calls: tuple[PlannedCall, ...], random: Random, share_alone: float
) -> tuple[PlannedCall, ...]:
    """Have many calls of one client and method travel in one RPC, in any order."""
    open_batches: dict[tuple[int, str, str], tuple[int, int, float]] = {}
    numbers = 0
    members: dict[int, list[PlannedCall]] = {}
    alone: list[PlannedCall] = []
    for call in calls:
        if random.random() < share_alone:
            alone.append(call)
            continue
        shared = call.client, call.session, call.method
        number, room, until = open_batches.get(shared, (0, 0, 0.0))
        if not room or call.at > until:
            numbers += 1
            number, room = numbers, random.choice((1, 3, 6, 12, 40))
            until = call.at + random.choice((0.5, 3.0))
        open_batches[shared] = number, room - 1, until
        members.setdefault(number, []).append(call)
    for number, batch in members.items():
        at, deadline_s = batch[0].at, batch[0].deadline_s
        random.shuffle(batch)
        alone += [replace(call, at=at, deadline_s=deadline_s, batch=number) for call in batch]
    return tuple(sorted(alone, key=lambda call: call.at))


def by_keys(calls: tuple[PlannedCall, ...], random: Random) -> tuple[PlannedCall, ...]:
    """Have some calls made by a key of their own, now and then by two callers."""
    made: list[PlannedCall] = []
    for call in calls:
        if call.batch or call.op == "read" or random.random() < 0.6:
            made.append(call)
            continue
        call = replace(call, key=b"key %d" % call.number, plain=True)
        made.append(call)
        if random.random() < 0.3:
            made.append(replace(call, at=call.at + 10.0 * random.random() ** 4))
    return tuple(sorted(made, key=lambda call: call.at))


def _again(row: PlannedCall, random: Random, setting: Setting, at: float) -> PlannedCall:
    return replace(row, client=random.randrange(setting.clients), at=at)
