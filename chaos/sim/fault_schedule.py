"""Model of the world: the faults of a schedule, what strikes whom, when, and where in a call."""

from __future__ import annotations

from random import Random

from chaos.sim.fault_coverage import AT_AN_OPERATION, DURABLE, FAULTS, NETWORK, OPERATOR, STORE
from chaos.sim.faults import ALL, LEADER, Fault, PlannedFault, Point
from chaos.sim.planned import ACTIVE_S, Setting

__all__ = ["draw_faults"]

_AIMED = (Fault.CRASH, Fault.CRASH_DISK, Fault.STOP, Fault.DRAIN)
_BY_A_GROUP = (
    Point.HANDLER,
    Point.EFFECT,
    Point.RECORD,
    Point.WAITING,
    Point.ANSWERED_FIRST,
    Point.ANSWERED_FIRST,
    Point.LOGGED,
)
# What would let a call that may run again do so after it was answered.
_OF_REPEATABLE = {
    "sqlite": (Fault.CRASH, (Point.REPEATABLE_ANSWERED, Point.REPEATABLE_RAN)),
    "spark": (Fault.CRASH, (Point.REPEATABLE_ANSWERED, Point.REPEATABLE_RAN)),
    "replicas": (Fault.STOP, (Point.REPEATABLE_RAN,)),
}
# What makes a leader's death worth more while it lasts.
_PRELUDES = (
    Fault.LOSS,
    Fault.DELAY,
    Fault.PARTITION,
    Fault.PARTITION_TO,
    Fault.PARTITION_FROM,
    Fault.STORE_STALL,
    Fault.STORE_LOSS,
    Fault.WITNESS_CRASH,
)


def draw_faults(kind: str, random: Random, setting: Setting) -> tuple[PlannedFault, ...]:
    """Draw the faults of a schedule of this kind."""
    # A few kinds often, not all a little (Groce et al., swarm testing).
    drawn = [fault for fault in FAULTS[kind] if fault is not Fault.RESTORE]
    usual = random.sample(drawn, random.randint(3, 8))
    faults = []
    for _ in range(random.randint(5, 12)):
        fault = _draw_fault(kind, random, setting, random.choice(usual))
        faults.append(fault)
        if kind == "curp" and fault.fault in _PRELUDES and random.random() < 0.5:
            aim = fault.aim or random.choice(_BY_A_GROUP)
            # Both at one answer, or while the first lasts.
            at = fault.at if fault.aim else fault.at + fault.seconds * random.random()
            faults.append(_crash(random, at, LEADER, aim))
    if kind == "curp":
        faults += _draw_coincidences(random)
    elif random.random() < 0.5 and (repeatable := _OF_REPEATABLE.get(kind)) is not None:
        at = 0.3 + random.random() * ACTIVE_S / 2
        seconds, target = 1.2 + 4.0 * random.random(), random.randrange(setting.servers)
        point = random.choice(repeatable[1])
        faults.append(PlannedFault(at, repeatable[0], seconds, target, 0.5, point))
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _draw_coincidences(random: Random) -> list[PlannedFault]:
    """Draw what has to come together for a group's rules to be needed."""
    faults = []
    if random.random() < 0.8:
        # Cut off from the engine alone, a leader serves on, while another takes over.
        at = 0.3 + random.random() * ACTIVE_S / 2
        seconds = 1.0 + 4.0 * random.random()
        faults.append(PlannedFault(at, Fault.STORE_STALL, seconds, LEADER, 0.5))
        if random.random() < 0.4:
            faults.append(_crash(random, at, ALL, Point.RECOVERING))
        if random.random() < 0.6:
            # Some clients find the next leader, the others stay with it.
            fault = Fault.PARTITION_TO
            faults.append(PlannedFault(at, fault, seconds, LEADER, 0.9, some=True))
    if random.random() < 0.4:
        # A witness forgets an answer, and before the log has it its leader dies.
        at = 0.3 + random.random() * ACTIVE_S / 2
        target, share = random.randrange(3), random.choice((0.1, 0.9))
        aim = Point.ANSWERED_FIRST
        faults.append(PlannedFault(at, Fault.WITNESS_CRASH, 0.2, target, share, aim))
        faults.append(_crash(random, at, LEADER, aim))
    for operation in OPERATOR:
        if random.random() < 0.5:
            faults += _draw_operation(random, operation)
    return faults


def _draw_operation(random: Random, operation: Fault) -> list[PlannedFault]:
    """Draw what is asked for while answers are not in the log, and what its leader dies of."""
    at = 0.3 + random.random() * ACTIVE_S
    share = random.choice((0.1, 0.5, 0.9))
    aim = random.choice((Point.ANSWERED_FIRST, Point.HANDLER))
    faults = [PlannedFault(at, operation, 0.0, LEADER, share, aim)]
    if operation is Fault.TRANSFER and random.random() < 0.5:
        # Some clients find the next leader, the others stay with this one.
        seconds, fault = 1.0 + 2.0 * random.random(), Fault.PARTITION_TO
        faults.append(PlannedFault(at, fault, seconds, LEADER, 0.9, some=True))
    elif random.random() < 0.8:
        point = random.choice(AT_AN_OPERATION[operation])
        if point is Point.ANSWERED_FIRST:
            # Of an answer under the new list.
            at += 0.02 + 0.5 * random.random()
        faults.append(_crash(random, at, LEADER, point))
    return faults


def _crash(random: Random, at: float, target: int, aim: Point) -> PlannedFault:
    seconds = random.choice((0.02, 0.2, 2.0)) * (0.2 + random.random())
    return PlannedFault(at, Fault.CRASH, seconds, target, 0.5, aim)


def _draw_fault(kind: str, random: Random, setting: Setting, fault: Fault) -> PlannedFault:
    at = 0.3 + random.random() * ACTIVE_S
    seconds = random.choice((0.02, 0.2, 1.0, setting.term_s)) * (0.2 + random.random())
    if fault is Fault.CLIENT_LAPSE:
        # About as long as a lease: who is first, the sweep or the client?
        seconds = setting.term_s * (0.9 + 0.2 * random.random())
    if fault is Fault.STOP and kind == "replicas":
        # Long enough to be taken for dead.
        seconds += 1.2
    target = random.randrange(setting.clients)
    if not fault.value.startswith("client"):
        target = random.randrange(setting.servers)
        if setting.witnesses:
            if fault in NETWORK and random.random() < 0.5:
                target = 100 + random.randrange(setting.witnesses + setting.spare_witnesses)
            elif fault not in NETWORK and random.random() < 0.6:
                target = LEADER
            if fault in OPERATOR:
                target = LEADER
            if fault in STORE and random.random() < 0.3:
                target = ALL
    share = random.choice((0.1, 0.5, 0.9))
    if fault is Fault.WALL_JUMP:
        # A name that is closed is refused for a week by that clock.
        share = random.choice((-86_400.0 * 9, -3600.0, 3600.0, 3600.0 * 12))
    aim = None
    if fault in OPERATOR and random.random() < 0.6:
        aim = random.choice(_BY_A_GROUP)
    if fault in _AIMED and random.random() < 0.8:
        aim = random.choice(_BY_A_GROUP if kind == "curp" else (*DURABLE, Point.ANSWERED))
    if fault is Fault.WITNESS_CRASH and random.random() < 0.8:
        aim = Point.ANSWERED_FIRST
    return PlannedFault(at, fault, seconds, target, share, aim)
