"""``curp recover``: what a group waits for, and an operator's word that it is lost."""

from __future__ import annotations

import argparse
import getpass
import sys
import time
from contextlib import closing

from _rifl_ground.audit import acting
from _rifl_ground.options import add_url
from curp._cli.operator_client import GroupError
from curp._core.recovery import AcceptedLoss
from curp._core.witness_list import WitnessList
from curp._replica.metadata import (
    BACK_KEY,
    LOSS_KEY,
    read_accepted_loss,
    read_went_back,
    read_witness_list,
)
from curp._wire.metadata import accepted_loss_to_bytes
from curp.log._commits import GroupLog
from curp.log._errors import LeadershipOver
from curp.log._opening import open_engine, why_stopped
from curp.log._values import Leadership

_TRIES = 10


def add_recover_command(parser: argparse.ArgumentParser, engine: str) -> None:
    """Add arguments; ``run`` of what is parsed takes that, and returns the exit code."""
    add_url(parser, "url", about=engine)
    parser.add_argument(
        "--accept-loss",
        action="store_true",
        help="have the next leader begin without the witnesses that it waits for",
    )
    parser.add_argument("--who", default="", help="who says so (default: the user's name)")
    parser.add_argument("--why", default="", help="kept in the log, with who")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    with closing(open_engine(arguments.url, read_only=not arguments.accept_loss)) as engine:
        if not arguments.accept_loss:
            stopped = why_stopped(engine, arguments.url)
            if stopped is not None:
                raise stopped
            return _tell(engine)
        if not arguments.why:
            raise GroupError("--accept-loss needs --why: the log keeps it")
        listed = _in_doubt(engine)
        sys.stdout.write(_warning(engine, listed))
        sys.stdout.flush()
        if not arguments.yes and not _agreed():
            sys.stdout.write("nothing was changed\n")
            return 1
        who = arguments.who or getpass.getuser()
        with acting("accept_loss", f"configuration {listed.configuration}", who):
            _accept(engine, AcceptedLoss(listed.configuration, who, arguments.why))
    sys.stdout.write(
        f"accepted by {who}: the next leader begins without the witnesses of configuration "
        f"{listed.configuration}\n"
    )
    return 0


def _tell(engine: GroupLog) -> int:
    leadership, listed = engine.leadership(), read_witness_list(engine)
    went_back = read_went_back(engine)
    if went_back:
        sys.stdout.write(f"{went_back}\n")
    elif leadership is None or listed is None:
        sys.stdout.write("no replica ever led this group\n")
    elif _leads(leadership, listed):
        sys.stdout.write(f"{leadership.replica} leads configuration {leadership.configuration}\n")
    elif not listed.serving or not listed.witnesses:
        sys.stdout.write("nothing is in doubt: any replica can lead\n")
    else:
        sys.stdout.write(
            f"the next leader needs one of {', '.join(listed.witnesses)}, not restarted since "
            f"configuration {listed.configuration} began\n"
        )
    accepted = read_accepted_loss(engine)
    if accepted is not None:
        sys.stdout.write(
            f"a loss was accepted for configuration {accepted.configuration} by "
            f"{accepted.who}: {accepted.why}\n"
        )
    return 0


def _leads(leadership: Leadership, listed: WitnessList) -> bool:
    current = leadership.configuration == listed.configuration
    return current and listed.serving and leadership.expires_in_s > 0


def _in_doubt(engine: GroupLog) -> WitnessList:
    leadership, listed = engine.leadership(), read_witness_list(engine)
    if read_went_back(engine):
        return listed or WitnessList(0, (), False, ())
    if leadership is None or listed is None:
        raise GroupError("no replica ever led this group: nothing can be lost")
    if _leads(leadership, listed):
        raise GroupError(f"{leadership.replica} leads: nothing is lost")
    if not listed.serving or not listed.witnesses:
        raise GroupError("everything that was answered is in the log: nothing can be lost")
    return listed


def _warning(engine: GroupLog, listed: WitnessList) -> str:
    if read_went_back(engine):
        return (
            f"This log is an older copy, which ends at {engine.tail()}: all that was answered "
            "since it was made is lost. If the newest one can be found, bring that back instead.\n"
        )
    return (
        f"Calls that were answered under configuration {listed.configuration} and are not in the "
        f"log, which ends at {engine.tail()}, may be lost: those of the last moments before the "
        "leader died.\n"
        f"They may still be on: {', '.join(listed.witnesses)}. If one of these runs and was never "
        "restarted since, start or reach it instead: then nothing is lost.\n"
    )


def _agreed() -> bool:
    sys.stdout.write("Type 'lose them' to go on: ")
    sys.stdout.flush()
    return sys.stdin.readline().strip() == "lose them"


def _accept(engine: GroupLog, accepted: AcceptedLoss) -> None:
    data = accepted_loss_to_bytes(accepted, time.time_ns() // 1000)
    for _ in range(_TRIES):
        # A replica that waits for the witnesses has the number; another may take the next one.
        listed = _in_doubt(engine)
        if listed.configuration != accepted.configuration:
            raise GroupError("another configuration is in doubt by now: look again")
        leadership = engine.leadership()
        number = 0 if leadership is None else leadership.configuration
        try:
            engine.put_metadata({LOSS_KEY: data, BACK_KEY: None}, configuration=number)
        except LeadershipOver:
            continue
        return
    raise GroupError("the group's configuration changes all the time")
