"""The command line: arguments in, one line for an error, an exit code out."""

from __future__ import annotations

import argparse
import re
import sys
from contextlib import closing
from pathlib import Path

from _rifl_ground.audit import acting
from _rifl_ground.exits import CommandRefused, ExitCode, failed, told_exit_codes, unread
from _rifl_ground.findings import failed_look, tell
from _rifl_ground.options import add_url, find_url
from _rifl_ground.version import PrintVersion
from rifl._cli.export import export
from rifl._cli.identity import candidates
from rifl._cli.lease_service import add_lease_server, serve_leases
from rifl._cli.report import Report, print_call, print_client, print_store, print_value
from rifl._cli.unknown import add_unknown
from rifl._stores.errors import MissingExtra, StoreError, StoreLocked, UnsupportedStore
from rifl._stores.inspection import Inspection
from rifl._stores.opening import end_session, examine, open_inspection
from rifl.core._shared.errors import RiflError
from rifl.core._shared.identity import RpcId

_ABOUT = """
Look into a store of completion records, also beside the servers that use it, and repair it by
hand. An error is one line on standard error.
"""
_URL = """\
sqlite:///file (four slashes: from the root), or redis://, postgresql:// as the server has
it; options such as dead_after_s too"""
_WARNING = """\
Forgetting a call is final. The server will not know it any more: a retry of it RUNS AGAIN.
You must find out whether the first one had its effect. Stop the clients that may retry it,
or be sure that running it again is what you want."""
_LOSS = """\
A lost call RUNS AGAIN when it is retried, also if the store had acknowledged it: find out
which calls these may be before you go on. All its clients end: their calls are refused,
but for those whose records are there. Restart every running server."""
_RESTORED = """\
All earlier clients and sessions end: the servers refuse their calls. If one of these calls was
sent after the backup, you must find out whether it ran. Plain idempotency keys do not end: a
key that was used after the backup RUNS AGAIN when it is sent again. Stop the servers first."""
_ENDED = """\
Calls in the session are refused from now on, and its answers go: what its clients retry later is
refused, too. Its name stays refused for a week. Sessions of numbered names end with those below
them. Of a SQLite store its server must be stopped."""
_NAMESPACE = re.compile(r"-\d+(/|$)")


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code. Errors are one line on standard error."""
    arguments = _arguments(argv)
    fail = failed_look if arguments.run is _doctor and arguments.json else failed
    try:
        find_url(arguments)
        if arguments.run is serve_leases:
            return int(serve_leases(arguments))
        if arguments.run is _doctor:
            return int(_doctor(arguments))
        with closing(open_inspection(arguments.url)) as store:
            arguments.run(store, arguments)
            sys.stdout.flush()
        return ExitCode.DONE
    except CommandRefused as error:
        return fail("rifl", error, error.code)
    except MissingExtra as error:
        return fail("rifl", error, ExitCode.MISSING_EXTRA)
    except UnsupportedStore as error:
        return fail("rifl", error, ExitCode.USAGE)
    except StoreLocked as error:
        return fail("rifl", error, ExitCode.OWNED)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        return unread()
    except (StoreError, RiflError, OSError) as error:
        return fail("rifl", error)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    given = sys.argv[1:] if argv is None else argv
    # A namespace's id begins as an option does.
    return _parser().parse_args([f" {text}" if _NAMESPACE.match(text) else text for text in given])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rifl", description=_ABOUT, epilog=told_exit_codes("rifl")
    )
    parser.add_argument("--version", action=PrintVersion)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    url = argparse.ArgumentParser(add_help=False)
    add_url(url, "url", about=_URL)
    url.add_argument("--json", action="store_true", help="print one JSON object instead")

    inspect = commands.add_parser("inspect", parents=[url], help="show clients, calls, sizes, ages")
    inspect.add_argument(
        "--limit", type=int, default=50, metavar="N", help="list at most N clients (default 50)"
    )
    inspect.set_defaults(run=_inspect)

    show = commands.add_parser("show", parents=[url], help="show one client, or one call")
    show.add_argument(
        "what", metavar="CLIENT_ID[/SEQ|/KEY]", help="a key is text, or 0x and hexadecimal"
    )
    show.add_argument("--response", action="store_true", help="show the stored response, too")
    show.set_defaults(run=_show)

    release = commands.add_parser("release", parents=[url], help="forget a stuck call by hand")
    release.add_argument("what", metavar="RPC_ID", help="CLIENT_ID/SEQ or CLIENT_ID/KEY")
    release.add_argument("--yes", action="store_true", help="confirm")
    release.set_defaults(run=_release)

    export_ = commands.add_parser("export", parents=[url], help="write all calls to a file")
    export_.add_argument("--out", type=Path, required=True, metavar="FILE.csv|FILE.parquet")
    export_.add_argument("--responses", action="store_true", help="with the stored responses")
    export_.set_defaults(run=_export)

    rotate = commands.add_parser(
        "rotate-secret", parents=[url], help="make a new secret for client tokens"
    )
    rotate.set_defaults(run=_rotate_secret)

    restored = commands.add_parser(
        "restored", parents=[url], help="go on with a store that was restored from a backup"
    )
    restored.add_argument("--yes", action="store_true", help="confirm")
    restored.set_defaults(run=_restored)

    accept = commands.add_parser(
        "accept-loss", parents=[url], help="serve again from a store that lost what it had"
    )
    accept.add_argument("--who", required=True, help="who decided this; kept with the store")
    accept.add_argument("--why", required=True, help="the reason; kept with the store")
    accept.add_argument("--yes", action="store_true", help="confirm")
    accept.set_defaults(run=_accept_loss)
    end = commands.add_parser(
        "end-session", parents=[url], help="end a named session of any client"
    )
    end.add_argument("name", metavar="NAME")
    end.add_argument("--yes", action="store_true", help="confirm")
    end.set_defaults(run=_end_session)
    add_unknown(commands, url)
    add_lease_server(commands)
    doctor = commands.add_parser(
        "doctor",
        parents=[url],
        help="say what a server would refuse, or is weak; only reads",
        epilog=told_exit_codes("doctor"),
    )
    doctor.set_defaults(run=_doctor)
    return parser


def _inspect(store: Inspection, arguments: argparse.Namespace) -> None:
    summary = store.summary()
    # Few: a plain call has one only while it runs.
    intents = list(store.calls(only_intents=True))
    clients = store.clients(max(0, arguments.limit))
    print_store(Report(as_json=arguments.json), summary, clients, intents)


def _show(store: Inspection, arguments: argparse.Namespace) -> None:
    report = Report(as_json=arguments.json)
    found = _candidates(arguments.what)
    if isinstance(found, int):
        client = store.client(found)
        if client is None:
            raise CommandRefused(f"there is no client {found}", ExitCode.NOT_FOUND)
        print_client(report, client, list(store.calls(found)))
        return
    rpc_id = _find(store, found, arguments.what)
    call = store.call(rpc_id)
    if call is None:
        raise CommandRefused(f"{arguments.what} has just gone", ExitCode.NOT_FOUND)
    print_call(report, call, store.record(rpc_id), with_response=arguments.response)


def _release(store: Inspection, arguments: argparse.Namespace) -> None:
    found = _candidates(arguments.what)
    if isinstance(found, int):
        raise CommandRefused("name one call: CLIENT_ID/SEQ or CLIENT_ID/KEY", ExitCode.USAGE)
    rpc_id = _find(store, found, arguments.what)
    if holder := store.holder(rpc_id):
        raise CommandRefused(
            f"a running server ({holder}) has it and would not notice: stop it", ExitCode.OWNED
        )
    if not arguments.yes:
        sys.stderr.write(_WARNING + "\n")
        raise CommandRefused(f"nothing was done; to forget {rpc_id} say --yes", ExitCode.USAGE)
    with acting("release", str(rpc_id)):
        released = store.release(rpc_id)
    if not released:
        raise CommandRefused(f"{rpc_id} has just gone", ExitCode.NOT_FOUND)
    print_value(Report(as_json=arguments.json), "released", str(rpc_id))


def _doctor(arguments: argparse.Namespace) -> ExitCode:
    return tell(examine(arguments.url), as_json=arguments.json)


def _export(store: Inspection, arguments: argparse.Namespace) -> None:
    rows = export(store, arguments.out, with_responses=arguments.responses)
    print_value(Report(as_json=arguments.json), "calls_exported", rows)


def _rotate_secret(store: Inspection, arguments: argparse.Namespace) -> None:
    with acting("rotate_secret", "store"):
        key_id = store.rotate_secret()
    print_value(Report(as_json=arguments.json), "key_id", key_id)


def _restored(store: Inspection, arguments: argparse.Namespace) -> None:
    if not arguments.yes:
        sys.stderr.write(_RESTORED + "\n")
        raise CommandRefused(
            "nothing was done; to go on with what is there say --yes", ExitCode.USAGE
        )
    with acting("restored", "store"):
        new = store.restored()
    print_value(Report(as_json=arguments.json), "store", new)


def _accept_loss(store: Inspection, arguments: argparse.Namespace) -> None:
    if not arguments.yes:
        sys.stderr.write(_LOSS + "\n")
        raise CommandRefused(
            "nothing was done; to serve from what is there say --yes", ExitCode.USAGE
        )
    with acting("accept_loss", "store", arguments.who):
        new = store.accept_loss(arguments.who, arguments.why)
    print_value(Report(as_json=arguments.json), "store", new)


def _end_session(store: Inspection, arguments: argparse.Namespace) -> None:
    if not arguments.yes:
        sys.stderr.write(_ENDED + "\n")
        raise CommandRefused(
            f"nothing was done; to end {arguments.name!r} say --yes", ExitCode.USAGE
        )
    with acting("end_session", arguments.name):
        ended = end_session(arguments.url, arguments.name)
    if not ended:
        raise CommandRefused(f"no session {arguments.name!r} is open", ExitCode.NOT_FOUND)
    print_value(Report(as_json=arguments.json), "ended", " ".join(map(str, ended)))


def _candidates(text: str) -> int | list[RpcId]:
    try:
        return candidates(text.lstrip())
    except ValueError as error:
        raise CommandRefused(str(error), ExitCode.USAGE) from error


def _find(store: Inspection, found: list[RpcId], text: str) -> RpcId:
    kept = [rpc_id for rpc_id in found if store.call(rpc_id) is not None]
    if not kept:
        raise CommandRefused(f"nothing is kept of {text}", ExitCode.NOT_FOUND)
    if len(kept) > 1:
        keys = [str(each) for each in kept if each.key is not None]
        raise CommandRefused(
            f"{text} may be several; a key is named by {' or '.join(keys)}", ExitCode.USAGE
        )
    return kept[0]
