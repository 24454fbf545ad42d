"""``curp``: init, serve, witness, status, transfer, upgrade, recover, log."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog
from google.protobuf.json_format import MessageToDict

from curp.cli.asking import Group, GroupError
from curp.cli.init import add_init_command
from curp.cli.recover import add_recover_command
from curp.cli.serving import ServeOptions, serve
from curp.cli.upgrade import add_upgrade_command, upgrade
from curp.log.commands import add_log_commands
from curp.log.errors import LogError
from curp.security import (
    add_client_options,
    add_server_options,
    add_token_option,
    channel_credentials,
    check_options,
    read_token,
    server_credentials,
)
from curp.v1 import curp_pb2 as pb
from lease_server.sessions import SessionsFrom
from rifl.cli.version import installed_version
from rifl.core.policy import PolicyError

__all__ = ["main"]

_ENGINE = "the log's URL: sqlite:///file?group=NAME, redis://host?group=NAME"
_REPEATED = (
    ("--witness", "HOST:PORT", "a witness of the first list; may be given again, as the next four"),
    ("--replica", "HOST:PORT", "another replica of the group"),
    ("--conflict-key", "/PKG.SVC/METHOD=FIELD", "calls that share a value of it keep their order"),
    ("--read-only", "/PKG.SVC/METHOD", "answered by the leader alone, and not logged"),
    ("--nondeterministic", "/PKG.SVC/METHOD", "in the log before it is answered"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit code: 0, 1 for what failed, 2 for what was asked wrongly."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["witness"] and given[1:2] and given[1].startswith("-"):
        from curp.witness.__main__ import main as witness

        return witness(given[1:])
    arguments = _parser().parse_args(given)
    if hasattr(arguments, "tls_key"):
        check_options(arguments.parser, arguments)
    try:
        code: int = arguments.run(arguments)
    except (GroupError, LogError, PolicyError, ImportError, OSError, ValueError, RuntimeError) as e:
        sys.stderr.write(f"curp: {e}\n")
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="curp", description="Replicated groups of gRPC servers.")
    parser.add_argument("--version", action="version", version=f"curp {installed_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    init = commands.add_parser("init", help="create the log of a new group, once")
    add_init_command(init, _ENGINE)

    run = commands.add_parser("serve", help="run a replica until a signal")
    run.add_argument(
        "servicer", nargs="+", metavar="MODULE:SERVICER", help="its class, made without arguments"
    )
    run.add_argument("--engine", required=True, help=_ENGINE)
    run.add_argument("--name", required=True, help="unique in the group")
    run.add_argument("--listen", required=True, metavar="HOST:PORT")
    run.add_argument("--address", help="where clients reach it, if not at --listen")
    for name, metavar, text in _REPEATED:
        run.add_argument(name, action="append", default=[], metavar=metavar, help=text)
    run.add_argument("--threads", type=int, default=32, help="of the server's pool (default 32)")
    run.add_argument(
        "--lease-term",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="about how long a lost leader is missed (default 1)",
    )
    run.add_argument(
        "--application-version",
        type=int,
        default=0,
        metavar="N",
        help="of the servicers; grows when what they answer changes (default 0)",
    )
    add_server_options(run)
    run.add_argument(
        "--witness-authorities",
        type=Path,
        metavar="PEM",
        help="speak TLS to witnesses, whose certificates one of these signed, and show ours",
    )
    add_token_option(run)
    run.add_argument(
        "--sessions-from",
        choices=[each.value for each in SessionsFrom],
        default=SessionsFrom.AUTHENTICATED.value,
        help="who opens named sessions without a certificate: who shows their secret, or anyone",
    )
    run.add_argument("--health", action="store_true", help="gRPC health: SERVING on the leader")
    run.add_argument("--reflection", action="store_true", help="gRPC reflection")
    run.add_argument("--metrics", metavar="HOST:PORT", help="Prometheus metrics over HTTP")
    run.add_argument("--log-json", action="store_true", help="events as JSON lines")
    run.set_defaults(run=_serve, parser=run)

    status = commands.add_parser("status", help="what each replica does")
    status.add_argument("target", nargs="+", metavar="HOST:PORT")
    status.add_argument("--json", action="store_true")
    add_client_options(status)
    status.set_defaults(run=_status, parser=status)

    witness = commands.add_parser(
        "witness",
        help="run a witness (--listen HOST:PORT), or change the list of witnesses",
        epilog="curp witness --listen HOST:PORT ... runs one: as python -m curp.witness.",
    )
    changes = witness.add_subparsers(required=True, metavar="CHANGE")
    for name in ("add", "remove"):
        change = changes.add_parser(name)
        change.add_argument("target", metavar="HOST:PORT", help="any replica")
        change.add_argument("witness", nargs="+", metavar="HOST:PORT")
        add_client_options(change)
        change.set_defaults(run=_change, change=name, parser=change)
    replace = changes.add_parser("replace", help="one by another")
    replace.add_argument("target", metavar="HOST:PORT", help="any replica")
    replace.add_argument("witness", nargs=2, metavar="HOST:PORT")
    add_client_options(replace)
    replace.set_defaults(run=_change, change="replace", parser=replace)

    transfer = commands.add_parser("transfer", help="have another replica lead")
    transfer.add_argument("target", metavar="HOST:PORT", help="any replica")
    transfer.add_argument("--to", default="", metavar="NAME", help="the one that should")
    add_client_options(transfer)
    transfer.set_defaults(run=_transfer, parser=transfer)

    upgraded = commands.add_parser(
        "upgrade", help="of which application version each replica is; finalize an upgrade"
    )
    add_upgrade_command(upgraded)
    add_client_options(upgraded)
    upgraded.set_defaults(run=_upgrade, parser=upgraded)

    recover = commands.add_parser(
        "recover", help="what a group without a leader waits for; have it go on without"
    )
    add_recover_command(recover, _ENGINE)

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
    _log_to_stderr(as_json=arguments.log_json)
    options = ServeOptions(
        listen=arguments.listen,
        address=arguments.address or arguments.listen,
        threads=arguments.threads,
        credentials=server_credentials(arguments),
        health=arguments.health,
        reflection=arguments.reflection,
        metrics=arguments.metrics,
    )
    return serve(
        arguments.servicer,
        arguments.engine,
        options,
        name=arguments.name,
        witnesses=arguments.witness,
        replicas=arguments.replica,
        conflict_keys=keys,
        read_only=arguments.read_only,
        nondeterministic=arguments.nondeterministic,
        lease_term_s=arguments.lease_term,
        application_version=arguments.application_version,
        peer_property=arguments.peer_property,
        sessions_from=arguments.sessions_from,
        group_token=read_token(arguments.group_token_file),
        witness_credentials=channel_credentials(
            arguments.witness_authorities, arguments.tls_key, arguments.tls_certificate
        ),
    )


def _log_to_stderr(*, as_json: bool) -> None:
    # Standard output tells the address, and nothing else.
    renderer: Any = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    if as_json:
        renderer = structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _group(arguments: argparse.Namespace, targets: Sequence[str]) -> Group:
    credentials = channel_credentials(
        arguments.tls_authorities, arguments.tls_key, arguments.tls_certificate
    )
    token = read_token(arguments.group_token_file)
    return Group(targets, credentials=credentials, group_token=token)


def _status(arguments: argparse.Namespace) -> int:
    statuses = _group(arguments, arguments.target).statuses()
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
    lines += [
        f"  witness {wanted}  could not be started"
        for wanted in status.wanted_witnesses
        if wanted not in status.configuration.witnesses
    ]
    return lines


def _change(arguments: argparse.Namespace) -> int:
    given: list[str] = arguments.witness
    wanted: list[str] = []

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

    def noted(present: list[str]) -> list[str]:
        wanted[:] = changed(present)
        return wanted

    found = _group(arguments, [arguments.target]).change_witnesses(noted)
    listed = ", ".join(found.witnesses) or "none"
    sys.stdout.write(f"configuration {found.configuration}: witnesses {listed}\n")
    for absent in (one for one in wanted if one not in found.witnesses):
        sys.stdout.write(f"  {absent} could not be started, and is listed when it answers\n")
    return 0


def _upgrade(arguments: argparse.Namespace) -> int:
    return upgrade(_group(arguments, arguments.target), arguments)


def _transfer(arguments: argparse.Namespace) -> int:
    led = _group(arguments, [arguments.target]).transfer(arguments.to)
    sys.stdout.write(f"{led} hands over\n")
    return 0
