"""The operator's commands: create, doctor, streams, holds, trim, relay, producers, verify, ..."""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
import time
from typing import Any

from _rifl_ground.exits import CommandRefused, ExitCode
from _rifl_ground.findings import tell
from _rifl_ground.signals import until_signal
from _rifl_ground.texts import print_table
from sharedlog._cli.shown import print_json, print_value, progress, told_time
from sharedlog._core.errors import CorruptLog, LogError, UnknownProducer
from sharedlog._core.holds import Hold
from sharedlog._core.named import all_names
from sharedlog._core.roster import granted_producers
from sharedlog._core.trim import TrimOutcome
from sharedlog._core.verifying import Verifier, VerifyReport
from sharedlog._engines.opening import examine
from sharedlog._log.log import Log
from sharedlog._log.opening import create_log
from sharedlog._outbox.adopting import adopt_outbox
from sharedlog._outbox.relay import relay as open_relay


def create(arguments: argparse.Namespace) -> int:
    """An empty log where there is none."""
    with create_log(arguments.url, timeout=arguments.timeout) as log:
        print_value(arguments.json, {"incarnation": log.incarnation, "durability": log.durability})
    return ExitCode.DONE


def doctor(arguments: argparse.Namespace) -> int:
    """Look at a log, or at a place for one, before it is opened."""
    return tell(examine(arguments.url), as_json=arguments.json)


def streams(log: Log, arguments: argparse.Namespace) -> int:
    """List the streams, or create one."""
    if arguments.create is not None:
        log.stream(arguments.create, arguments.substreams, arguments.retention)
    elif arguments.substreams is not None or arguments.retention is not None:
        raise CommandRefused("--substreams and --retention need --create NAME", ExitCode.USAGE)
    found = log.streams()
    if arguments.json:
        print_json(
            [
                {
                    "name": each.name,
                    "substreams": each.substreams,
                    "retention_s": each.retention.total_seconds(),
                }
                for each in found
            ]
        )
    else:
        rows = [(each.name, str(each.substreams), str(each.retention)) for each in found]
        print_table("", ("stream", "substreams#", "retention"), rows)
    return ExitCode.DONE


def holds(log: Log, arguments: argparse.Namespace) -> int:
    """List holds, drop a name's, or forget it."""
    if arguments.drop is not None:
        really(arguments, f"its follower will miss what is trimmed; to drop {arguments.drop!r}")
        found = _some(log.drop_hold(arguments.drop), arguments.drop)
    elif arguments.forget is not None:
        really(arguments, f"its follower begins anew; to forget {arguments.forget!r}")
        found = _some(log.forget_hold(arguments.forget), arguments.forget)
    else:
        found = log.holds()
    now_us = _now_us()
    if arguments.json:
        print_json([_hold_object(each, now_us, log.incarnation) for each in found])
    else:
        rows = [
            (
                each.name,
                each.tag,
                str(each.position or f"from LSN {each.lsn}"),
                told_time(each.renewed_us),
                _hold_state(each, now_us, log.incarnation),
            )
            for each in found
        ]
        print_table("", ("hold", "substream", "done through", "renewed", "state"), rows)
    return ExitCode.DONE


def trim(log: Log, arguments: argparse.Namespace) -> int:
    """Trim once, or on a schedule until a signal comes."""
    if arguments.every is None:
        _told_trim(log, log.trim(arguments.retention), arguments)
        return ExitCode.DONE

    def told(found: TrimOutcome | LogError) -> None:
        if isinstance(found, LogError):
            sys.stderr.write(f"sharedlog: {found}\n")
        else:
            _told_trim(log, found, arguments)
            sys.stdout.flush()

    with until_signal() as stopped, log.trim_every(arguments.every, arguments.retention, told):
        stopped.wait()
    return ExitCode.DONE


def relay(log: Log, arguments: argparse.Namespace) -> int:
    """Relay what waits in an outbox, or what comes, too, until a signal comes."""
    if arguments.adopt:
        return _adopt(log, arguments)
    stopped = threading.Event()
    counted = 0

    def told(found: int | LogError) -> None:
        nonlocal counted
        if isinstance(found, LogError):
            sys.stderr.write(f"sharedlog: {found}\n")
            if relaying.error is not None:
                stopped.set()
        else:
            counted += found

    relaying = open_relay(arguments.database, log, arguments.outbox, told)
    if arguments.once:
        with contextlib.closing(relaying):
            relaying.once()
    else:
        with until_signal(stopped), relaying:
            stopped.wait()
    if relaying.error is not None:
        raise relaying.error
    print_value(arguments.json, {"relayed": counted})
    return ExitCode.DONE


def _adopt(log: Log, arguments: argparse.Namespace) -> int:
    """Have an outbox go on with this log."""
    really(
        arguments,
        "what waits in the outbox goes to this log, and what this log lacks of it is passed over; "
        f"to adopt {arguments.outbox!r}",
    )
    found = adopt_outbox(arguments.database, log, arguments.outbox, accept_loss=True)
    lost = None if found.lost is None else list(found.lost)
    print_value(arguments.json, {"waiting": found.waiting, "lost": lost})
    return ExitCode.DONE


def producers(log: Log, arguments: argparse.Namespace) -> int:
    """List the producers that have something pending, or all."""
    if arguments.named:
        names = log._run(all_names())
        if arguments.json:
            print_json([each._asdict() for each in names])
        else:
            print_table("", ("producer", "seq#"), [(each.name, str(each.seq)) for each in names])
        return ExitCode.DONE
    found = log._run(granted_producers())
    if not arguments.all:
        found = [each for each in found if each.pending]
    if arguments.json:
        print_json([each._asdict() for each in found])
    else:
        rows = [
            (
                str(each.id),
                str(each.seq),
                "retired" if each.retired else "",
                ", ".join(f"{tag} from {begin}" for tag, begin in sorted(each.pending.items())),
            )
            for each in found
        ]
        print_table("", ("producer#", "seq#", "state", "pending"), rows)
    return ExitCode.DONE


def retire(log: Log, arguments: argparse.Namespace) -> int:
    """End a producer, and roll back what it has pending."""
    really(arguments, f"what it has pending is rolled back; to retire {arguments.producer}")
    try:
        seq = log.retire(arguments.producer)
    except UnknownProducer as error:
        raise CommandRefused(str(error), ExitCode.NOT_FOUND) from error
    print_value(arguments.json, {"producer": arguments.producer, "highest_seq": seq})
    return ExitCode.DONE


def forget(log: Log, arguments: argparse.Namespace) -> int:
    """Forget a named producer."""
    really(arguments, f"what it commits again is in the log twice; to forget {arguments.name!r}")
    seq = log.forget(arguments.name)
    if not seq:
        raise CommandRefused(f"there is no producer named {arguments.name!r}", ExitCode.NOT_FOUND)
    print_value(arguments.json, {"name": arguments.name, "highest_seq": seq})
    return ExitCode.DONE


def verify(log: Log, arguments: argparse.Namespace) -> int:
    """Read everything, and hold it against the rules."""
    verifier = Verifier(log._place.seals)
    try:
        with progress("verify", log._engine.tail()) as told:
            while log._run(verifier.read()):
                told(verifier.through)
            report = log._run(verifier.report())
    except CorruptLog as error:
        report = verifier.broken_off(error)
    return _verified(report, arguments)


def unverified(error: CorruptLog, arguments: argparse.Namespace) -> int:
    """Tell of a log that is too damaged to be opened what ``verify`` tells of others."""
    return _verified(Verifier().broken_off(error), arguments)


def _verified(report: VerifyReport, arguments: argparse.Namespace) -> int:
    if arguments.json:
        print_json(report._asdict())
    else:
        counted = {name: each for name, each in report._asdict().items() if name != "problems"}
        print_value(False, counted)
        for problem in report.problems:
            sys.stdout.write(f"{problem}\n")
    return ExitCode.DAMAGED if report.problems else ExitCode.DONE


def _told_trim(log: Log, outcome: TrimOutcome, arguments: argparse.Namespace) -> None:
    now_us = _now_us()
    told: dict[str, Any] = {
        "removed": outcome.rows,
        "remaining": outcome.remaining,
        "whole_from": outcome.trimmed.whole,
        "kept_by": outcome.kept_by,
    }
    if arguments.json:
        print_json(
            told
            | {"overdue": [_hold_object(each, now_us, log.incarnation) for each in outcome.overdue]}
        )
        return
    print_value(False, told)
    for each in outcome.overdue:
        sys.stdout.write(
            f"overdue: {each.name!r} on {each.tag} was renewed last {told_time(each.renewed_us)}\n"
        )


def _hold_state(hold: Hold, now_us: int, incarnation: str) -> str:
    if hold.dropped:
        return "dropped"
    if hold.incarnation != incarnation:
        # Made before a restore: its follower is refused, and the hold still keeps its messages.
        return "refused"
    return "overdue" if hold.overdue(now_us) else "held"


def _hold_object(hold: Hold, now_us: int, incarnation: str) -> dict[str, Any]:
    return {
        "name": hold.name,
        "substream": hold.tag,
        "lsn": hold.lsn,
        "position": None if hold.position is None else str(hold.position),
        "renewed": told_time(hold.renewed_us),
        "state": _hold_state(hold, now_us, incarnation),
    }


def really(arguments: argparse.Namespace, what: str) -> None:
    """Refuse what cannot be undone, unless ``--yes`` was given."""
    if not arguments.yes:
        raise CommandRefused(f"nothing was done: {what} say --yes", ExitCode.USAGE)


def _some(found: list[Hold], name: str) -> list[Hold]:
    if not found:
        raise CommandRefused(f"there is no such hold of {name!r}", ExitCode.NOT_FOUND)
    return found


def _now_us() -> int:
    return time.time_ns() // 1000
