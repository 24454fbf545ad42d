"""``curp poison``: calls that killed who ran them, and an operator's word about one."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from contextlib import closing
from datetime import UTC, datetime

from _rifl_ground.audit import acting
from _rifl_ground.options import add_url
from curp._cli.operator_client import GroupError
from curp._core.poison import HELD, Case, Ledger
from curp._replica.poisoning import read_ledger, read_left, update_ledger
from curp.log._commits import GroupLog
from curp.log._errors import LeadershipOver, LeaseHeld
from curp.log._opening import open_engine

_TRIES = 10
_TERM_S = 10.0
_MOST_TEXT = 300


def add_poison_commands(parser: argparse.ArgumentParser, engine: str) -> None:
    """Add the commands; ``run`` of what is parsed takes that, and returns the exit code."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="calls that processes died running")
    add_url(listing, "url", about=engine)
    listing.set_defaults(run=_list)
    show = commands.add_parser("show", help="one of them")
    add_url(show, "url", about=engine)
    show.add_argument("call", metavar="CALL", help="as the list names it")
    show.set_defaults(run=_show)
    aside = commands.add_parser(
        "set-aside", help="have the next leader log one as unknown, and not run it"
    )
    add_url(aside, "url", about=engine)
    aside.add_argument("call", metavar="CALL", help="as the list names it")
    aside.add_argument("--who", default="", help="who says so (default: the user's name)")
    aside.add_argument("--why", required=True, help="kept in the log, with who")
    aside.add_argument("--yes", action="store_true", help="do not ask")
    aside.add_argument(
        "--accept-loss",
        metavar="CALL",
        help="the call again, if the group does not wait for this decision",
    )
    aside.set_defaults(run=_set_aside)


def told_case(case: Case) -> str:
    """Return a line about a case."""
    told = "suspected"
    if case.deaths:
        last = datetime.fromtimestamp(case.last_us / 1e6, UTC).isoformat(timespec="seconds")
        told = f"deaths {case.deaths}, the last {last}"
    aside = "  set aside" if case.closed else ""
    return f"{case.rpc_id}  {case.method}  {case.how}  {told}{aside}"


def _list(arguments: argparse.Namespace) -> int:
    with closing(open_engine(arguments.url, read_only=True)) as engine:
        cases = [(_awaited(engine, case), case) for case in read_ledger(engine).cases]
        for awaited, case in sorted(cases, key=lambda each: (not each[0], -each[1].deaths)):
            sys.stdout.write(_line(case, awaited) + "\n")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    with closing(open_engine(arguments.url, read_only=True)) as engine:
        left = read_left(engine)
        case = _find(left.ledger, arguments.call)
        lines = [_line(case, _awaited(engine, case)), f"  first seen {_time(case.since_us)}"]
        lines += [
            f"  a death under configuration {death.configuration}: {_time(death.time_us)}"
            for death in case.died
        ]
        if case.who:
            lines.append(f"  to be set aside: {case.who}: {case.why}")
        if any(note.rpc_id == case.rpc_id for note in left.notes):
            lines.append("  noted: it runs now, or its leader died")
        if case.lsn:
            lines.append(f"  answered, and logged at LSN {case.lsn}: replicas died replaying it")
        if case.how == HELD:
            lines.append("  a witness held it: it may have been answered before it was logged")
        sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _set_aside(arguments: argparse.Namespace) -> int:
    who = arguments.who or getpass.getuser()
    with closing(open_engine(arguments.url)) as engine:
        case = _find(read_ledger(engine), arguments.call)
        if len(who) + len(arguments.why) > _MOST_TEXT:
            raise GroupError(f"who and why have at most {_MOST_TEXT} characters")
        if case.closed:
            raise GroupError(f"{arguments.call} was set aside already")
        awaited = _awaited(engine, case)
        if not awaited and arguments.accept_loss != arguments.call:
            raise GroupError(
                f"the group does not wait for a decision about {arguments.call}: it may have been "
                "acknowledged, and its effect would be lost. Set aside the call that curp poison "
                f"list marks as waited for, or add --accept-loss {arguments.call}"
            )
        sys.stdout.write(
            f"{_line(case, awaited)}\n"
            "It will not run again. A client that asks for its answer is told that its outcome is "
            "unknown. If a client already got an answer, that answer and its effect are lost.\n"
        )
        sys.stdout.flush()
        if not arguments.yes and not _agreed():
            sys.stdout.write("nothing was changed\n")
            return 1
        with acting("set_aside", arguments.call, who):
            _decide(engine, case, who, arguments.why)
    sys.stdout.write(f"{arguments.call} will be set aside by the next leader\n")
    return 0


def _awaited(engine: GroupLog, case: Case) -> bool:
    """Whether the group waits for a decision about it; replicas load a snapshot behind it."""
    if case.closed or case.who or not case.awaited:
        return False
    snapshot = engine.load_snapshot() if case.lsn else None
    return snapshot is None or snapshot.lsn < case.lsn


def _decide(engine: GroupLog, case: Case, who: str, why: str) -> None:
    if case.lsn:
        _decide_logged(engine, case, who, why)
        return
    for _ in range(_TRIES):
        leadership = engine.leadership()
        number = 0 if leadership is None else leadership.configuration
        try:
            # Under whatever number there is: a recovery that waits for this has it.
            update_ledger(
                engine,
                number,
                lambda ledger: ledger.decided(ledger.find(case.rpc_id) or case, who, why),
            )
        except LeadershipOver:
            continue
        return
    raise GroupError("the group's configuration changes all the time")


def _decide_logged(engine: GroupLog, case: Case, who: str, why: str) -> None:
    """Decide while no replica leads: a leader that has the effect would go on with it."""
    try:
        number = engine.take_leadership(
            f"curp-poison/{os.urandom(4).hex()}", "operator", term_s=_TERM_S
        )
    except LeaseHeld as error:
        raise GroupError(
            f"a replica leads, and has the effect of LSN {case.lsn}: have a snapshot taken, "
            f"after which no replica replays it, or stop the leader first ({error})"
        ) from error
    try:
        update_ledger(
            engine,
            number,
            lambda ledger: ledger.decided(ledger.find(case.rpc_id) or case, who, why),
        )
    finally:
        engine.end_leadership(number)


def _find(ledger: Ledger, name: str) -> Case:
    for case in ledger.cases:
        if str(case.rpc_id) == name:
            return case
    raise GroupError(f"no process is known to have died running {name}")


def _line(case: Case, awaited: bool) -> str:
    line = told_case(case)
    return f"{line}  the group waits for this decision" if awaited else line


def _time(time_us: int) -> str:
    if not time_us:
        return "among others, when a leader died"
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="seconds")


def _agreed() -> bool:
    sys.stdout.write("Type 'set it aside' to go on: ")
    sys.stdout.flush()
    return sys.stdin.readline().strip() == "set it aside"
