"""Faults of every kind: how each is struck, and mended."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection
from pathlib import Path

from chaos.run.deployment import Deployment
from chaos.run.disk import SmallDisk
from chaos.run.postgresql import PostgresqlProcess
from chaos.run.process import Member, Process
from chaos.run.redis import RedisProcess
from chaos.run.scenario import KINDS
from chaos.run.slow_disk import SlowDisk
from chaos.run.strikes import Strike
from chaos.run.toxiproxy import PathTo
from chaos.run.wall_clock import WallClock

__all__ = ["CLOCK_KINDS", "KILLING", "Unread", "Unwritten", "strike"]

# After these a process is started again.
KILLING = ("kill", "wipe")
# These need members with wall clocks of their own.
CLOCK_KINDS = ("clock", "drift")

# Where no small disk can be mounted, files may grow so far beyond what the process said.
_ROOM_BYTES = 16 << 10
_START_AGAIN_S, _BETWEEN_STARTS_S = 60.0, 0.2


class Unread(RuntimeError):
    """No process read a clock while it was wrong: the fault shows nothing."""


class Unwritten(RuntimeError):
    """No process wrote while a disk was slow: the fault shows nothing."""


def strike(deployment: Deployment, fault: Strike, target: str) -> Callable[[], None]:
    """Strike a member, or the path to it; returns what mends it.

    Mending may take as long as a process takes to start.
    """
    if KINDS[fault.kind].toxic:
        return _poison(deployment.links[target], fault)
    if fault.kind == "down":
        link = deployment.links[target]
        link.cut()
        return link.mend
    if fault.kind in CLOCK_KINDS:
        return _set_clock(deployment.clocks[target], fault)
    if fault.kind == "slow":
        disks = deployment.slow_disks
        return _slow_down(disks.values() if target == "log" else [disks[target]], fault)
    if fault.kind == "fill":
        return _fill(deployment.disks[target], deployment.members.get(target))
    return _hit(deployment.members[target], fault.kind)


def _poison(link: PathTo, fault: Strike) -> Callable[[], None]:
    streams = ("upstream", "downstream") if fault.stream == "both" else (fault.stream,)
    kind, attributes = fault.kind, dict(fault.attributes)
    if kind == "loss":
        # Never over by itself: the connection stands, and nothing comes through.
        kind, attributes = "timeout", {"timeout": 0}
    names = [link.poison(kind, stream, attributes, fault.toxicity) for stream in streams]

    def cure() -> None:
        for name in names:
            link.cure(name)

    return cure


def _set_clock(clock: WallClock, fault: Strike) -> Callable[[], None]:
    move = clock.step if fault.kind == "clock" else clock.drift
    (amount,) = fault.attributes.values()
    before = clock.reads
    move(amount)

    def put_right() -> None:
        unread = clock.reads == before
        move(-amount)
        if unread:
            raise Unread(f"no process read the clock of {fault.target} while it was wrong")

    return put_right


def _slow_down(disks: Collection[SlowDisk], fault: Strike) -> Callable[[], None]:
    delays = [fault.attributes[each] for each in KINDS["slow"].attributes]
    before = sum(disk.delayed for disk in disks)
    for disk in disks:
        disk.slow_down(*delays)

    def mend() -> None:
        unwritten = sum(disk.delayed for disk in disks) == before
        for disk in disks:
            disk.slow_down(*(-each for each in delays))
        if unwritten:
            raise Unwritten(f"{fault.target} wrote nothing while its disk was slow")

    return mend


def _fill(disk: SmallDisk, member: Member | None) -> Callable[[], None]:
    if disk.mounted:
        disk.fill()
    elif isinstance(member, Process) and not isinstance(member, PostgresqlProcess):
        member.limit_files(_said(member) + _ROOM_BYTES)
    else:
        raise RuntimeError("a disk of several processes is a small tmpfs, which needs root")

    def make_room() -> None:
        disk.free()
        # Redis ends when it cannot write to its file.
        if member is not None and not member.runs:
            _start_again(member)
        elif isinstance(member, Process) and not disk.mounted:
            member.limit_files(-1)

    return make_room


def _hit(member: Member, kind: str) -> Callable[[], None]:
    match kind:
        case "stop":
            member.stop()
            return member.resume
        case "kill":
            member.kill()
            return lambda: _start_again(member)
        case "wipe" if isinstance(member, RedisProcess):
            member.kill()
            member.wipe()
            return lambda: _start_again(member)
        case _:
            raise ValueError(f"{kind} cannot strike {type(member).__name__}")


def _start_again(member: Member) -> None:
    """Start it until it stays, as its supervisor would: what it needs may be away."""
    until = time.monotonic() + _START_AGAIN_S
    while True:
        try:
            member.start()
        except RuntimeError:
            if time.monotonic() >= until:
                raise
            time.sleep(_BETWEEN_STARTS_S)
        else:
            return


def _said(member: Process) -> int:
    with contextlib.suppress(FileNotFoundError):
        return Path(member.log).stat().st_size
    return 0
