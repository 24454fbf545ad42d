"""``curp``: serve, witness, status, transfer, log."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from google.protobuf.json_format import MessageToDict

from curp.cli.asking import Group, GroupError
from curp.cli.serving import serve
from curp.log.commands import add_log_commands
from curp.log.errors import LogError
from curp.v1 import curp_pb2 as pb
from rifl.core.policy import PolicyError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit code: 0, 1 for what failed, 2 for what was asked wrongly."""
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except (GroupError, LogError, PolicyError, ValueError) as error:
        sys.stderr.write(f"curp: {error}\n")
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="curp", description="Replicated groups of gRPC servers.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("serve", help="run a replica until a signal")
    run.add_argument("servicer", nargs="+", metavar="MODULE:SERVICER")
    run.add_argument("--engine", required=True, help="the log's URL: sqlite:///file?group=NAME")
    run.add_argument("--name", required=True, help="unique in the group")
    run.add_argument("--listen", required=True, metavar="HOST:PORT")
    run.add_argument("--address", help="where clients reach it, if not at --listen")
    run.add_argument("--witness", action="append", default=[], metavar="HOST:PORT")
    run.add_argument("--replica", action="append", default=[], metavar="HOST:PORT")
    run.add_argument("--conflict-key", action="append", default=[], metavar="/PKG.SVC/METHOD=FIELD")
    run.add_argument("--read-only", action="append", default=[], metavar="/PKG.SVC/METHOD")
    run.add_argument("--nondeterministic", action="append", default=[], metavar="/PKG.SVC/METHOD")
    run.add_argument("--threads", type=int, default=32)
    run.add_argument("--lease-term", type=float, default=1.0, metavar="SECONDS")
    run.set_defaults(run=_serve)

    status = commands.add_parser("status", help="what each replica does")
    status.add_argument("target", nargs="+", metavar="HOST:PORT")
    status.add_argument("--json", action="store_true")
    status.set_defaults(run=_status)

    witness = commands.add_parser("witness", help="change the list of witnesses")
    changes = witness.add_subparsers(required=True, metavar="CHANGE")
    for name in ("add", "remove"):
        change = changes.add_parser(name)
        change.add_argument("target", metavar="HOST:PORT", help="any replica")
        change.add_argument("witness", nargs="+", metavar="HOST:PORT")
        change.set_defaults(run=_change, change=name)
    replace = changes.add_parser("replace", help="one by another")
    replace.add_argument("target", metavar="HOST:PORT", help="any replica")
    replace.add_argument("witness", nargs=2, metavar="HOST:PORT")
    replace.set_defaults(run=_change, change="replace")

    transfer = commands.add_parser("transfer", help="have another replica lead")
    transfer.add_argument("target", metavar="HOST:PORT", help="any replica")
    transfer.add_argument("--to", default="", metavar="NAME", help="the one that should")
    transfer.set_defaults(run=_transfer)

    log = commands.add_parser("log", help="look into a log, or check it")
    add_log_commands(log)
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    keys: dict[str, list[str]] = {}
    for text in arguments.conflict_key:
        method, equals, field = text.partition("=")
        if not equals:
            raise GroupError(f"{text!r} is not /PKG.SVC/METHOD=FIELD")
        keys.setdefault(method, []).append(field)
    return serve(
        arguments.servicer,
        arguments.engine,
        name=arguments.name,
        listen=arguments.listen,
        address=arguments.address,
        witnesses=arguments.witness,
        replicas=arguments.replica,
        conflict_keys=keys,
        read_only=arguments.read_only,
        nondeterministic=arguments.nondeterministic,
        threads=arguments.threads,
        lease_term_s=arguments.lease_term,
    )


def _status(arguments: argparse.Namespace) -> int:
    statuses = Group(arguments.target).statuses()
    if arguments.json:
        told = [
            {"address": address, **({} if status is None else MessageToDict(status))}
            for address, status in statuses
        ]
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        for address, status in statuses:
            sys.stdout.write("\n".join(_lines(address, status)) + "\n")
    leads = any(status is not None and status.role == "leader" for _, status in statuses)
    return 0 if leads else 1


def _lines(address: str, status: pb.GroupStatusReply | None) -> list[str]:
    if status is None:
        return [f"{address}  no answer"]
    lag = max(0, status.tail - status.applied)
    lines = [
        f"{address}  {status.replica}  {status.role}  configuration "
        f"{status.configuration.configuration}  applied {status.applied} of {status.tail} "
        f"(lag {lag}, unsynced {status.unsynced})  clients {status.clients}"
    ]
    if status.waiting_for:
        lines.append(f"  waits for {status.waiting_for}")
    witnesses = zip(status.configuration.witnesses, status.witnesses, strict=False)
    for listed, witness in witnesses:
        lines.append(
            f"  witness {listed}  {witness.mode}  configuration {witness.configuration}  "
            f"holds {witness.held} of {witness.slots}"
        )
    return lines


def _change(arguments: argparse.Namespace) -> int:
    given: list[str] = arguments.witness

    def changed(present: list[str]) -> list[str]:
        if arguments.change == "add":
            return [*present, *(one for one in given if one not in present)]
        absent = [
            one
            for one in given[: None if arguments.change == "remove" else 1]
            if one not in present
        ]
        if absent:
            raise GroupError(f"{absent[0]} is no witness of the group: {', '.join(present)}")
        if arguments.change == "remove":
            return [one for one in present if one not in given]
        return [given[1] if one == given[0] else one for one in present]

    found = Group([arguments.target]).change_witnesses(changed)
    listed = ", ".join(found.witnesses) or "none"
    sys.stdout.write(f"configuration {found.configuration}: witnesses {listed}\n")
    return 0


def _transfer(arguments: argparse.Namespace) -> int:
    led = Group([arguments.target]).transfer(arguments.to)
    sys.stdout.write(f"{led} hands over\n")
    return 0
