"""Model of the world: coincidences in a group that a rule is there for."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from chaos.sim.changed_schedule import changed, some_add
from chaos.sim.faults import ALL, LEADER, Fault, PlannedFault, Point
from chaos.sim.planned import Schedule

__all__ = [
    "FAILING",
    "copies_behind_a_snapshot",
    "failing_step",
    "late_reads",
    "late_records",
    "late_starts",
    "outlives_a_note",
    "removed_behind_a_stall",
    "unlogged_answers",
]

# Where witnesses are hosts of the network.
_FIRST_WITNESS = 100
# Whom a fault meets that is for some clients, of those that make many calls.
_SOME_CLIENTS = (1, 3)
# What fails an operator's request, or the recovery after a crash, in progress, and where.
FAILING = {
    Fault.WITNESS_CHANGE: (
        (Fault.STORE_STALL, Point.NUMBERED),
        (Fault.STORE_LOSS, Point.NUMBERED),
        (Fault.WITNESS_CRASH, Point.NUMBERED),
        (Fault.STOP, Point.NUMBERED),
        (Fault.WITNESS_CRASH, Point.RELISTED),
        (Fault.STOP, Point.RELISTED),
    ),
    Fault.TRANSFER: (
        (Fault.STORE_STALL, Point.HANDING_OVER),
        (Fault.STOP, Point.HANDING_OVER),
    ),
    Fault.SNAPSHOT: (
        (Fault.STORE_STALL, Point.SAVED),
        (Fault.STORE_LOSS, Point.SAVED),
        (Fault.STOP, Point.SAVED),
    ),
    Fault.CRASH: (
        (Fault.STORE_STALL, Point.RECOVERING),
        (Fault.STORE_LOSS, Point.RECOVERING),
        (Fault.WITNESS_CRASH, Point.RECOVERING),
        (Fault.STOP, Point.RECOVERING),
    ),
}
_ON_THE_WAY = (Fault.LOSS, Fault.LOSS, Fault.DUPLICATE, Fault.PARTITION, Fault.PARTITION_FROM)
# Seconds that a slow clock counts in one: a leader with it finds its lease over 0.23 s late,
# but for the margin.
_SLOW = 0.81
_READS_AND_WRITES = 36
# At most, from any time on.
_TO_A_RENEWAL_S = 0.25


def late_records(random: Random, schedule: Schedule, active_s: float) -> Schedule:
    """Have an old leader answer a call whose records come when another has begun.

    It is cut off from the log, and another takes over before the call's handler ends, and
    serves, or dies when it has frozen a witness; what some clients send to witnesses comes
    after that. A later call tells whether the first one is known.
    """
    found = some_add(random, schedule, lambda call: call.client in _SOME_CLIENTS and call.at > 1.0)
    if found is None:
        return schedule
    at, call = found
    setting = replace(
        schedule.setting,
        plain_clients=0,
        misled_client=None,
        attempt_timeout_s=None,
        hedge_after_s=None,
        max_unsynced=1024,
    )
    work_s = 0.7 + 0.2 * random.random()
    first = replace(call, account="late", work_s=work_s, deadline_s=None)
    calls = {at: first}
    if at + 1 < len(schedule.calls):
        second = replace(first, number=schedule.calls[at + 1].number, at=call.at + 1.5, work_s=0.0)
        calls[at + 1] = second
    # Its lease is over at the latest 0.4 s after the call has come.
    stall = PlannedFault(call.at - 0.6, Fault.STORE_STALL, 2.5 + random.random(), LEADER, 0.5)
    faults = [stall]
    if random.random() < 0.5:
        faults.append(PlannedFault(call.at, Fault.CRASH, 1.0, ALL, 0.5, Point.RECOVERING))
    begins, seconds, fault = call.at - 0.05, 0.65 + 0.1 * random.random(), Fault.PARTITION_TO
    faults += [
        PlannedFault(begins, fault, seconds, _FIRST_WITNESS + each, 0.0, some=True)
        for each in range((setting.witnesses or 0) + setting.spare_witnesses)
    ]
    alone = call.at - 2.0, call.at + 1.5
    return replace(changed(schedule, calls, faults, alone), setting=setting)


def failing_step(random: Random, schedule: Schedule, active_s: float) -> Schedule:
    """Have what an operator asks for, or a recovery, fail in the middle.

    Or stop there until another leads; or lose the request, or its answer.
    """
    at = 0.3 + random.random() * active_s
    begun, (fault, point) = random.choice(
        [(begun, failing) for begun, each in FAILING.items() for failing in each]
    )
    aim = random.choice((Point.ANSWERED_FIRST, Point.HANDLER, None))
    share = random.choice((0.5, 0.9))
    # Any replica that comes there: it is another one that recovers.
    target = ALL if begun is Fault.CRASH else LEADER
    seconds = (1.0 if fault is Fault.STOP else 0.1) + random.random()
    failed = PlannedFault(at, fault, seconds, target, 0.9, point)
    if aim is None and begun in (Fault.WITNESS_CHANGE, Fault.TRANSFER):
        failed = PlannedFault(at - 0.001, random.choice(_ON_THE_WAY), 0.3, LEADER, 0.6)
    asked = PlannedFault(at, begun, random.random(), LEADER, share, aim)
    return changed(schedule, {}, [asked, failed])


def late_reads(random: Random, schedule: Schedule, active_s: float) -> Schedule:
    """Have clients read from a leader that another follows, while others write to that one.

    It hands over; or it was stopped, asked for a renewal or just granted one by a clock that
    is slow, and finds when it goes on what was sent to it meanwhile, or after that.
    """
    begins = 1.0 + random.random() * active_s * 0.8
    aim = random.choice((Point.RENEWED, Point.RENEWED, Point.RENEWING, None))
    slow = aim is Point.RENEWED
    setting = replace(schedule.setting, attempt_timeout_s=None, hedge_after_s=None)
    if aim is None:
        until = begins + 0.4
        faults = [PlannedFault(begins, Fault.TRANSFER, 0.0, LEADER, 0.1)]
        reads = writes = (until - 0.3, until + 0.1)
    else:
        seconds = 1.215 + 0.01 * random.random() if slow else 1.2 + 0.4 * random.random()
        faults = [PlannedFault(begins, Fault.STOP, seconds, LEADER, 0.5, aim)]
        # A renewal comes four times in a term: so much later the leader is stopped, and goes on.
        until = begins + seconds + _TO_A_RENEWAL_S
        reads = (until - 0.5, until - 0.2) if slow else (until, until + 0.3)
        if aim is Point.RENEWING:
            # Its renewal is granted by then; from neither the log nor its witnesses does it
            # hear of the next leader.
            cut_off, back = begins + 2 * _TO_A_RENEWAL_S, until + 0.6
            faults += [
                PlannedFault(cut_off, Fault.STORE_STALL, back - cut_off, LEADER, 0.5),
                PlannedFault(cut_off, Fault.PARTITION, back - cut_off, LEADER, 0.9, sends=True),
            ]
        # Who writes tries another replica when it is time for the next leader.
        writes = (begins + 0.5, until - 0.2)
        setting = replace(
            setting, term_s=8.0, attempt_timeout_s=0.6, plain_clients=0, misled_client=None
        )
    fault, lasts_s = Fault.PARTITION_TO, until + 0.5 - begins
    faults.append(PlannedFault(begins, fault, lasts_s, LEADER, 0.9, some=True))
    place = random.randrange(len(schedule.calls) - _READS_AND_WRITES)
    calls = {}
    its_reads: list[int] = []
    for at, call in enumerate(schedule.calls):
        if not place <= at < place + _READS_AND_WRITES or call.batch or call.plain:
            if aim is not None and call.client == 0 and begins - 0.5 <= call.at < until + 0.1:
                # Whom the stopped leader does not answer asks another one.
                calls[at] = replace(call, at=until + 0.5 + call.at - begins)
            continue
        read = random.random() < 0.6
        first, last = reads if read else writes
        calls[at] = replace(
            call,
            client=0 if read else 1,
            at=first + (last - first) * random.random(),
            method="/sim.Accounts/Read" if read else "/sim.Accounts/Add",
            op="read" if read else "add",
            account="a0",
            behaviour="read" if read else "effect",
            work_s=0.001,
            deadline_s=None,
        )
        if read:
            its_reads.append(at)
    if aim is Point.RENEWING and its_reads:
        # Whose lease was just renewed does not look for another leader while this one is stopped.
        calls[its_reads[0]] = replace(calls[its_reads[0]], at=begins - 0.2)
    if slow:
        # Drifting as well, it would be slower than the margin allows.
        setting = replace(setting, server_rate=_SLOW, drift=0.0)
    alone = begins - 1.0, until + 0.5
    return replace(changed(schedule, calls, faults, alone), setting=setting)


def unlogged_answers(random: Random, schedule: Schedule, active_s: float) -> Schedule:
    """Have a leader die, of answers that are not in the log, as its witnesses change or forget."""
    at = 0.3 + random.random() * active_s * 0.7
    aim = Point.ANSWERED_FIRST
    if random.random() < 0.5:
        struck = PlannedFault(at, Fault.WITNESS_CHANGE, 0.0, LEADER, 0.9, aim)
        aim = random.choice((Point.NUMBERED, Point.RELISTED))
    else:
        # The first one that is not spared is the first that a recovery asks.
        struck = PlannedFault(at, Fault.WITNESS_CRASH, 0.2, 0, 0.9, aim)
    crash = PlannedFault(at, Fault.CRASH, 0.5 + random.random(), LEADER, 0.5, aim)
    setting = replace(
        schedule.setting, batch_delay_s=0.5, batch_entries=64, max_unsynced=1024, misled_client=None
    )
    alone = at - 1.0, at + 2.0
    return replace(changed(schedule, {}, [struck, crash], alone), setting=setting)


def copies_behind_a_snapshot(random: Random, schedule: Schedule, active_s: float) -> Schedule:
    """Have copies of calls come late, to leaders that begin at a snapshot taken meanwhile."""
    at = 0.3 + random.random() * active_s * 0.5
    faults = [
        PlannedFault(at, Fault.DUPLICATE, 3.0, 0, 0.9),
        PlannedFault(at + 3.0, Fault.SNAPSHOT, 0.0, LEADER, 0.5),
    ]
    faults += [
        PlannedFault(at + 3.2 + 0.1 * random.random(), Fault.CRASH, 0.1, index, 0.5)
        for index in range(schedule.setting.servers)
    ]
    return changed(schedule, {}, faults, (at, at + 8.0))


def removed_behind_a_stall(random: Random, schedule: Schedule, active_s: float) -> Schedule:
    """Have a client's removal not reach the log, nor a call of it the leader, until it is over.

    The call's records are on the witnesses by then; the next leader has not heard of the removal.
    """
    found = some_add(random, schedule, lambda call: call.client in _SOME_CLIENTS and call.at > 1.0)
    if found is None or found[0] + 1 >= len(schedule.calls):
        return schedule
    at, call = found
    begins = call.at
    # No heartbeat comes either, from when the first call has renewed its lease.
    silent, back = begins + 0.02, begins + 2.0 + 0.25
    calls = {
        place: replace(other, at=begins + 4.0 + random.random())
        for place, other in enumerate(schedule.calls)
        if other.client == call.client and begins - 0.5 <= other.at < begins + 4.0
    }
    calls[at] = replace(call, account="before", work_s=0.0, deadline_s=None)
    calls[at + 1] = replace(
        calls[at],
        number=schedule.calls[at + 1].number,
        account="removed",
        at=begins + 1.75 + 0.2 * random.random(),
    )
    faults = [
        PlannedFault(silent, Fault.PARTITION_TO, back - silent, LEADER, 0.0, some=True),
        # Nor does it get a new lease before another leads.
        PlannedFault(back, Fault.PARTITION_TO, 0.7, LEADER, 0.0, some=True),
        PlannedFault(begins + 1.85, Fault.STORE_STALL, 2.0 + random.random(), LEADER, 0.5),
    ]
    setting = replace(
        schedule.setting,
        term_s=2.0,
        drift=0.0,
        max_elapsed_s=20.0,
        attempt_timeout_s=None,
        hedge_after_s=None,
        plain_clients=0,
        misled_client=None,
        max_unsynced=1024,
    )
    made = changed(schedule, calls, faults, (begins - 1.0, begins + 3.5))
    return replace(made, setting=setting)


def outlives_a_note(random: Random, schedule: Schedule, active_s: float) -> Schedule:
    """Have a leader step down, and live on, while a call runs that it noted.

    Its first attempt is lost, and the second is noted. No witness holds it, so the next leader
    finds the note and nothing else of it; its caller has given up by then.
    """
    found = some_add(random, schedule, lambda call: call.client in _SOME_CLIENTS and call.at > 1.0)
    if found is None:
        return schedule
    at, call = found
    begins = call.at
    noted = replace(
        call, account="noted", work_s=0.6, deadline_s=1.5, resolves=False, unrecorded=True
    )
    # No other call is noted meanwhile: of several none would be known to have killed.
    after = begins + 3.0
    calls = {
        place: replace(other, at=after + random.random())
        for place, other in enumerate(schedule.calls)
        if begins - 0.5 <= other.at < after
    }
    calls[at] = noted
    faults = [
        PlannedFault(begins - 0.001, Fault.LOSS, 0.1, LEADER, 1.0, some=True),
        PlannedFault(
            begins + 0.1, Fault.STORE_STALL, 2.0 + random.random(), LEADER, 0.5, Point.HANDLER
        ),
    ]
    setting = replace(
        schedule.setting,
        drift=0.0,
        attempt_timeout_s=0.4,
        hedge_after_s=None,
        plain_clients=0,
        misled_client=None,
    )
    made = changed(schedule, calls, faults, (begins - 1.0, after))
    return replace(made, setting=setting)


def late_starts(random: Random, schedule: Schedule, active_s: float) -> Schedule:
    """Have a witness forget all, take a start of a number before, and a leader die.

    Of answers that only another witness holds, which the next leader may ask, or not.
    """
    setting = replace(
        schedule.setting,
        witnesses=max(schedule.setting.witnesses or 0, 2),
        batch_delay_s=1.0,
        batch_entries=64,
        max_unsynced=1024,
        misled_client=None,
    )
    # The first leader's number has none before it.
    begins, last = 0.5, max(call.at for call in schedule.calls)
    faults = [PlannedFault(begins, Fault.CRASH, 0.5, LEADER, 0.5)]
    for call in schedule.calls:
        if call.at < faults[-1].at + 3.0 or call.op != "add":
            continue
        at, aim = call.at, Point.ANSWERED_FIRST
        # Without its journal; which witness is drawn, and so is who is asked first.
        faults += [
            PlannedFault(at, Fault.WITNESS_CRASH, 0.02, random.randrange(6), 0.1, aim),
            PlannedFault(at, Fault.CRASH, 0.5 + random.random(), LEADER, 0.5, aim),
        ]
    alone = 0.0, last + 2.0
    return replace(changed(schedule, {}, faults, alone), setting=setting)
