"""``curp upgrade``: of which application version each replica is, and when there is no way back."""

from __future__ import annotations

import argparse
import getpass
import sys

from curp._cli.operator_client import GroupError, OperatorClient
from curp.v1 import curp_pb2 as pb


def add_upgrade_command(parser: argparse.ArgumentParser) -> None:
    """Add arguments."""
    parser.add_argument("target", nargs="+", metavar="HOST:PORT", help="a replica")
    parser.add_argument(
        "--finalize",
        action="store_true",
        help="make the leader's version the active one: older replicas cannot follow any more",
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="finalize though this replica does not answer, or is older; may be given again",
    )
    parser.add_argument(
        "--alone", action="store_true", help="finalize though no replica but the leader is known"
    )
    parser.add_argument("--who", default="", help="who says so (default: the user's name)")


def upgrade(group: OperatorClient, arguments: argparse.Namespace) -> int:
    """Tell the versions; finalize if asked to. The exit code; raises ``GroupError``."""
    statuses = group.statuses()
    for address, status in statuses:
        sys.stdout.write(f"{_line(address, status)}\n")
    if not arguments.finalize:
        return 0
    leader = next((each for _, each in statuses if each and each.role == "leader"), None)
    if leader is None:
        raise GroupError("none of the replicas leads now")
    version = leader.application_version
    if version <= leader.active_version:
        raise GroupError(
            f"nothing to finalize: the leader is of version {version}, and {leader.active_version} "
            "is active"
        )
    if len(statuses) < 2 and not arguments.alone:
        raise GroupError(
            "no replica but the leader is known: name the addresses of all of them, or say "
            "--alone if there is no other"
        )
    behind = [
        address
        for address, status in statuses
        if address not in arguments.without
        and (status is None or status.application_version < version)
    ]
    if behind:
        raise GroupError(
            f"not of version {version}, or silent: {', '.join(behind)}. Upgrade them, or name "
            "them by --without: they cannot follow from there on"
        )
    group.finalize_upgrade(version, arguments.who or getpass.getuser())
    sys.stdout.write(f"version {version} is active\n")
    return 0


def _line(address: str, status: pb.GroupStatusReply | None) -> str:
    if status is None:
        return f"{address}  no answer"
    told = (
        f"{address}  {status.replica}  {status.role}  version {status.application_version}  "
        f"active {status.active_version}"
    )
    return f"{told}\n  waits for {status.waiting_for}" if status.waiting_for else told
