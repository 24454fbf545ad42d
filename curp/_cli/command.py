"""``curp``: a group's log, replicas and witnesses, what they do, and changes of them."""

from __future__ import annotations

import argparse
import functools
import getpass
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qs, urlencode

from _rifl_ground.audit import acting
from _rifl_ground.exits import CommandRefused, failed, told_exit_codes
from _rifl_ground.findings import failed_look
from _rifl_ground.log import log_to_stderr
from _rifl_ground.options import add_url, find_url
from _rifl_ground.tls import ServedCertificate
from _rifl_ground.urls import split_url
from _rifl_ground.version import PrintVersion
from curp._cli.operator_client import GroupError, open_group
from curp._cli.poison import add_poison_commands
from curp._cli.recover import add_recover_command
from curp._cli.serve import ServeOptions, add_tuning_options, serve, tuning_of
from curp._cli.status import add_status_command, told_left_out
from curp._group_token import why_kept_off
from curp._replica.replica_list import change_replicas, read_replicas
from curp._security import (
    add_client_options,
    add_open_option,
    add_plaintext_option,
    add_server_options,
    add_token_option,
    channel_credentials,
    check_group_token,
    check_options,
    read_tokens,
)
from curp.log._commands import add_log_commands, doctor
from curp.log._creation import create_log
from curp.log._errors import LogError
from curp.log._opening import open_engine
from curp.v1 import curp_pb2 as pb
from lease_server._sessions import SessionsFrom
from rifl._leases.openers import session_openers
from rifl.core._serving.policy import PolicyError

_ENGINE = (
    "the log's URL, with ?group=NAME: sqlite:///file, redis://host, postgresql://host/database, "
    "etcd://host1,host2,host3"
)
_REPEATED = (
    ("--witness", "HOST:PORT", "a witness of the first list; may be given again, as the next four"),
    ("--replica", "HOST:PORT", "another replica, which status names though it never ran"),
    ("--conflict-key", "/PKG.SVC/METHOD=FIELD", "calls that share a value of it keep their order"),
    ("--read-only", "/PKG.SVC/METHOD", "answered by the leader alone, and not logged"),
    ("--nondeterministic", "/PKG.SVC/METHOD", "in the log before it is answered"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, 1 if it failed, 2 for wrong arguments.

    ``status`` and ``serve`` have further codes, which their help names.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["witness"] and given[1:2] and given[1].startswith("-"):
        from curp.witness.__main__ import main as witness

        return witness(given[1:])
    arguments = _parser().parse_args(given)
    if hasattr(arguments, "tls_key"):
        check_options(arguments.parser, arguments)
    fail = failed_look if arguments.run is doctor and arguments.json else failed
    try:
        find_url(arguments)
        code: int = arguments.run(arguments)
    except CommandRefused as error:
        return fail("curp", error, error.code)
    except (GroupError, LogError, PolicyError, ImportError, OSError, ValueError, RuntimeError) as e:
        return fail("curp", e)
    return code


@functools.cache
def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="curp",
        description="Replicated groups of gRPC servers.",
        epilog=told_exit_codes("curp"),
    )
    parser.add_argument("--version", action=PrintVersion)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    init = commands.add_parser("init", help="create the log of a new group, once")
    add_url(init, "--log", about=_ENGINE, dest="log")
    init.add_argument("--group", metavar="NAME", help="if the URL does not name it")
    init.set_defaults(run=_init)

    run = commands.add_parser(
        "serve",
        help="run a replica until a signal",
        epilog=told_exit_codes("curp serve"),
    )
    run.add_argument(
        "servicer", nargs="+", metavar="MODULE:SERVICER", help="its class, made without arguments"
    )
    add_url(run, "--engine", about=_ENGINE, dest="engine")
    run.add_argument("--name", required=True, help="unique in the group")
    run.add_argument("--listen", required=True, metavar="HOST:PORT")
    run.add_argument(
        *("--address", "--advertise"),
        metavar="HOST:PORT",
        help="where clients and other replicas reach it, if not at --listen; required if that is "
        "every address of the machine",
    )
    for name, metavar, text in _REPEATED:
        run.add_argument(name, action="append", default=[], metavar=metavar, help=text)
    run.add_argument("--threads", type=int, default=32, help="of the server's pool (default 32)")
    run.add_argument(
        "--application-version",
        type=int,
        default=0,
        metavar="N",
        help="of the servicers; grows when what they answer changes (default 0)",
    )
    add_tuning_options(run)
    add_server_options(run)
    run.add_argument(
        "--witness-authorities",
        type=Path,
        metavar="PEM",
        help="speak TLS to witnesses whose certificates one of these signed, with our certificate; "
        "with --tls-certificate alone: one of the system's authorities",
    )
    add_token_option(run)
    add_open_option(run)
    add_plaintext_option(run)
    run.add_argument(
        "--sessions-from",
        type=session_openers,
        default=SessionsFrom.SECRET.value,
        metavar="peers|secret|anyone|NAMES",
        help="who opens named sessions: clients with a certificate, also those with the session's "
        "secret (default), any, or the certificates with one of these names (kind:name,kind:name)",
    )
    run.add_argument("--health", action="store_true", help="gRPC health: SERVING on the leader")
    run.add_argument("--reflection", action="store_true", help="gRPC reflection")
    run.add_argument("--metrics", metavar="HOST:PORT", help="Prometheus metrics over HTTP")
    run.add_argument("--log-json", action="store_true", help="events as JSON lines")
    run.set_defaults(run=_serve, parser=run)

    status = commands.add_parser(
        "status",
        help="show what each replica does",
        epilog=told_exit_codes("curp status"),
    )
    add_status_command(status)

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
    replace = changes.add_parser("replace", help="replace a witness by another")
    replace.add_argument("target", metavar="HOST:PORT", help="any replica")
    replace.add_argument("witness", nargs=2, metavar="HOST:PORT")
    add_client_options(replace)
    replace.set_defaults(run=_change, change="replace", parser=replace)

    transfer = commands.add_parser("transfer", help="hand the leadership to another replica")
    transfer.add_argument(
        "target",
        nargs="+",
        metavar="HOST:PORT",
        help="a replica, which names the others",
    )
    transfer.add_argument("--to", default="", metavar="NAME", help="the replica that should lead")
    add_client_options(transfer)
    transfer.set_defaults(run=_transfer, parser=transfer)

    forget = commands.add_parser("forget", help="stop listing a replica that does not come back")
    add_url(forget, "url", about=_ENGINE)
    forget.add_argument("replica", metavar="HOST:PORT", help="as curp status names it")
    forget.set_defaults(run=_forget)

    upgraded = commands.add_parser(
        "upgrade", help="show the application version of each replica, or finalize an upgrade"
    )
    upgraded.add_argument("target", nargs="+", metavar="HOST:PORT", help="a replica")
    upgraded.add_argument(
        "--finalize",
        action="store_true",
        help="make the leader's version the active one: older replicas cannot follow any more",
    )
    upgraded.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="finalize though this replica does not answer, or is older; may be given again",
    )
    upgraded.add_argument(
        "--alone", action="store_true", help="finalize though no replica but the leader is known"
    )
    upgraded.add_argument("--who", default="", help="who decides (default: the user's name)")
    add_client_options(upgraded)
    upgraded.set_defaults(run=_upgrade, parser=upgraded)

    end = commands.add_parser("end-session", help="end a named session of any client")
    end.add_argument("target", metavar="HOST:PORT", help="any replica")
    end.add_argument("name", metavar="NAME")
    add_client_options(end)
    end.set_defaults(run=_end_session, parser=end)

    rotate = commands.add_parser("rotate-secret", help="make a new secret for client tokens")
    rotate.add_argument("target", metavar="HOST:PORT", help="any replica")
    add_client_options(rotate)
    rotate.set_defaults(run=_rotate_secret, parser=rotate)

    recover = commands.add_parser(
        "recover", help="show what a group without a leader waits for, or let it go on without that"
    )
    add_recover_command(recover, _ENGINE)

    poison = commands.add_parser(
        "poison", help="show calls that killed replicas, or set one aside for good"
    )
    add_poison_commands(poison, _ENGINE)

    log = commands.add_parser("log", help="inspect or check a log")
    add_log_commands(log)
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    address = arguments.address or arguments.listen
    check_group_token(arguments.parser, arguments, arguments.listen, address)
    keys: dict[str, list[str]] = {}
    for text in arguments.conflict_key:
        method, equals, field = text.partition("=")
        if not equals:
            raise GroupError(f"{text!r} is not /PKG.SVC/METHOD=FIELD")
        keys.setdefault(method, []).append(field)
    witness_credentials = channel_credentials(
        arguments.witness_authorities, arguments.tls_key, arguments.tls_certificate
    )
    for witness in arguments.witness:
        if why := why_kept_off(witness, witness_credentials):
            arguments.parser.error(why)
    log_to_stderr(as_json=arguments.log_json)
    options = ServeOptions(
        listen=arguments.listen,
        address=address,
        threads=arguments.threads,
        certificate=ServedCertificate(arguments),
        health=arguments.health,
        reflection=arguments.reflection,
        metrics=arguments.metrics,
        max_message_s=arguments.max_message_s,
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
        application_version=arguments.application_version,
        tuning=tuning_of(arguments),
        peer_property=arguments.peer_property,
        sessions_from=arguments.sessions_from,
        group_token=read_tokens(arguments.group_token_file),
        open_group=arguments.open_group,
        witness_credentials=witness_credentials,
    )


def _init(arguments: argparse.Namespace) -> int:
    created = create_log(_with_group(arguments.log, arguments.group))
    sys.stdout.write(f"created log {created:016x}\n")
    return 0


def _with_group(url: str, group: str | None) -> str:
    if group is None:
        return url
    parts = split_url(url)
    if parse_qs(parts.query, keep_blank_values=True).get("group", [group]) != [group]:
        raise GroupError("--group and the URL name two groups")
    if "group" in parse_qs(parts.query):
        return url
    query = "&".join(filter(None, (parts.query, urlencode({"group": group}))))
    return f"{url.partition('?')[0]}?{query}"


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

    group = open_group(arguments, [arguments.target])
    found = group.change_witnesses(noted)
    listed = ", ".join(found.witnesses) or "none"
    sys.stdout.write(f"configuration {found.configuration}: witnesses {listed}\n")
    absent = [one for one in wanted if one not in found.witnesses]
    if absent:
        status = group.leading()
        for one in absent:
            told = told_left_out(status, one)
            sys.stdout.write(f"  {one} {told}; it is listed when it can be\n")
    return 0


def _forget(arguments: argparse.Namespace) -> int:
    with closing(open_engine(arguments.url)) as engine:
        listed = read_replicas(engine)
        if arguments.replica not in listed:
            raise GroupError(
                f"{arguments.replica} is not listed: {', '.join(listed) or 'no replica'} is"
            )
        with acting("forget_replica", arguments.replica):
            change_replicas(engine, lambda found: found - {arguments.replica})
    sys.stdout.write(f"{arguments.replica} is not listed any more, unless it runs\n")
    return 0


def _upgrade(arguments: argparse.Namespace) -> int:
    """Tell the versions; finalize if asked to. The exit code; raises ``GroupError``."""
    group = open_group(arguments, arguments.target)
    statuses = group.statuses()
    for address, status in statuses:
        sys.stdout.write(f"{_version_line(address, status)}\n")
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


def _version_line(address: str, status: pb.GroupStatusReply | None) -> str:
    if status is None:
        return f"{address}  no answer"
    told = (
        f"{address}  {status.replica}  {status.role}  version {status.application_version}  "
        f"active {status.active_version}"
    )
    return f"{told}\n  waits for {status.waiting_for}" if status.waiting_for else told


def _end_session(arguments: argparse.Namespace) -> int:
    ended = open_group(arguments, [arguments.target]).end_session(arguments.name)
    if not ended:
        raise GroupError(f"no session {arguments.name!r} is open")
    sys.stdout.write(f"ended: {' '.join(map(str, ended))}\n")
    return 0


def _rotate_secret(arguments: argparse.Namespace) -> int:
    key_id = open_group(arguments, [arguments.target]).rotate_secret()
    sys.stdout.write(f"key_id: {key_id}\n")
    return 0


def _transfer(arguments: argparse.Namespace) -> int:
    led, leads = open_group(arguments, arguments.target).transfer(arguments.to)
    sys.stdout.write(f"{led} hands over; {leads.replica} leads\n")
    return 0
