"""``curp status``: what each replica does, and whether all is well."""

from __future__ import annotations

import argparse
import json
import sys

from google.protobuf.json_format import MessageToDict

from _rifl_ground.exits import ExitCode
from _rifl_ground.texts import printable
from curp._cli.operator_client import open_group, serves
from curp._cli.poison import told_case
from curp._security import add_client_options
from curp._wire.poison import case_from_message
from curp.v1 import curp_pb2 as pb

# Of a line.
_MOST_CHARS = 2000


def add_status_command(parser: argparse.ArgumentParser) -> None:
    """Add arguments; ``run`` of what is parsed takes that, and returns the exit code."""
    parser.add_argument("target", nargs="+", metavar="HOST:PORT")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--timeout",
        type=float,
        default=3.0,
        metavar="SECONDS",
        help="how long a replica may take to answer, all being asked at once (default 3)",
    )
    add_client_options(parser)
    parser.set_defaults(run=_status, parser=parser)


def _status(arguments: argparse.Namespace) -> int:
    group = open_group(arguments, arguments.target, timeout_s=arguments.timeout)
    statuses = group.statuses()
    if arguments.json:
        told = [
            {
                "address": address,
                **({"error": group.silent[address]} if address in group.silent else {}),
                **({} if status is None else MessageToDict(status)),
            }
            for address, status in statuses
        ]
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        for address, status in statuses:
            lines = (
                [f"{address}  no answer: {group.silent.get(address, 'timed out')}"]
                if status is None
                else _lines(address, status)
            )
            # What engines, witnesses and handlers said.
            sys.stdout.write("".join([f"{printable(each[:_MOST_CHARS])}\n" for each in lines]))
    if not any(status is not None and serves(status) for _, status in statuses):
        return ExitCode.UNAVAILABLE
    well = all(_well(status) for _, status in statuses)
    return ExitCode.DONE if well else ExitCode.DEGRADED


def _well(status: pb.GroupStatusReply | None) -> bool:
    if status is None or status.role not in ("leader", "standby"):
        return False
    missing = bool(_left_out(status))
    silent = any(witness.mode != "normal" for witness in status.witnesses)
    return not (missing or silent or status.waiting_for or status.engine)


def told_left_out(status: pb.GroupStatusReply, witness: str) -> str:
    """Say that a wanted witness is not listed, and why, as the leader has it."""
    why = next((each.why for each in status.left_out if each.witness == witness), "")
    return f"could not be started{f': {why}' if why else ''}"


def _left_out(status: pb.GroupStatusReply) -> list[str]:
    listed = status.configuration.witnesses
    return [wanted for wanted in status.wanted_witnesses if wanted not in listed]


def _lines(address: str, status: pb.GroupStatusReply) -> list[str]:
    lag = max(0, status.tail - status.applied)
    role = status.role
    if role == "leader" and not serves(status):
        role = "leader whose lease is over"
    lines = [
        f"{address}  {status.replica}  {role}  configuration "
        f"{status.configuration.configuration}  applied {status.applied} of {status.tail} "
        f"(lag {lag}, unsynced {status.unsynced})  clients {status.clients}"
    ]
    if status.waiting_for:
        lines.append(f"  waits for {status.waiting_for}")
    if status.engine and status.engine != status.waiting_for:
        lines.append(f"  {status.engine}")
    witnesses = zip(status.configuration.witnesses, status.witnesses, strict=False)
    for listed, witness in witnesses:
        lines.append(
            f"  witness {listed}  {witness.mode}  configuration {witness.configuration}  "
            f"holds {witness.held} of {witness.slots}"
        )
    lines += [
        f"  witness {wanted}  {told_left_out(status, wanted)}" for wanted in _left_out(status)
    ]
    for case in status.poison if status.role != "standby" else ():
        lines.append(f"  poison {told_case(case_from_message(case))}")
    lines += [f"  warning: {warning}" for warning in status.warnings]
    return lines
