"""``rifl unknown``: calls with an unknown outcome, and what an operator found out about them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from _rifl_ground.exits import CommandRefused, ExitCode
from _rifl_ground.texts import print_table
from rifl._cli.identity import candidates, shown
from rifl._cli.report import Report
from rifl._stores.errors import StoreLocked
from rifl._stores.inspection import Inspection
from rifl._stores.settling import (
    STUCK_S,
    Settled,
    Settlement,
    UnknownCall,
    UnknownState,
    list_unknown,
    settle,
)
from rifl.core._shared.identity import RpcId

_WARNING = """\
Not executed is final: the next attempt of each of these calls RUNS IT. Be sure that the first
run had no effect, and that its process has ended: a process that was only suspended may go
on."""
_COLUMNS = ("call", "method", "state", "age#", "run by", "settled")


def add_unknown(commands: Any, url: argparse.ArgumentParser) -> None:
    """Add the commands; ``url`` has what all commands take."""
    unknown = commands.add_parser("unknown", help="calls with an unknown outcome")
    parts = unknown.add_subparsers(required=True, metavar="list|show|settle")

    listing = parts.add_parser("list", parents=[url], help="list them, also the settled ones")
    listing.add_argument(
        "--stuck",
        type=float,
        default=STUCK_S,
        metavar="SECONDS",
        help=f"also calls that run for longer (default {STUCK_S:g})",
    )
    listing.set_defaults(run=_list)

    show = parts.add_parser("show", parents=[url], help="show one of them")
    show.add_argument("what", metavar="RPC_ID", help="CLIENT_ID/SEQ or CLIENT_ID/KEY")
    show.set_defaults(run=_show)

    settling = parts.add_parser("settle", parents=[url], help="record what became of them")
    settling.add_argument("what", nargs="*", metavar="RPC_ID", help="one or many")
    settling.add_argument("--from", type=Path, dest="file", help="a file with one on each line")
    kind = settling.add_mutually_exclusive_group(required=True)
    kind.add_argument("--executed", action="store_true", help="it ran")
    kind.add_argument(
        "--not-executed", action="store_true", help="it did not run: its next attempt runs"
    )
    settling.add_argument(
        "--response",
        type=Path,
        metavar="FILE",
        help="the answer, a serialised message; else retries are told that it is lost",
    )
    settling.add_argument("--who", required=True, help="who found out; kept with the store")
    settling.add_argument("--why", required=True, help="how it was found out")
    settling.add_argument("--yes", action="store_true", help="confirm --not-executed")
    settling.set_defaults(run=_settle)


def _list(store: Inspection, arguments: argparse.Namespace) -> None:
    report = Report(as_json=arguments.json)
    found = list(list_unknown(store, arguments.stuck))
    if report.as_json:
        report.json({"calls": [_object(report, call) for call in found]})
    elif found:
        print_table("", _COLUMNS, [_cells(report, call) for call in found])
    else:
        sys.stdout.write("no call's outcome is unknown\n")


def _show(store: Inspection, arguments: argparse.Namespace) -> None:
    report = Report(as_json=arguments.json)
    wanted = _meant(arguments.what)
    # However long it has been running.
    found = [call for call in list_unknown(store, 0.0) if call.rpc_id in wanted]
    if not found:
        raise CommandRefused(f"nothing is known of {arguments.what}", ExitCode.NOT_FOUND)
    entry = _object(report, found[0])
    if report.as_json:
        report.json(entry)
        return
    note = entry.pop("settled") or {}
    rows = [(name, "" if value is None else str(value)) for name, value in entry.items()]
    rows += [(f"settled: {name}", str(value)) for name, value in note.items()]
    print_table("", ("call", shown(found[0].rpc_id)), rows[1:])


def _settle(store: Inspection, arguments: argparse.Namespace) -> None:
    texts = [*arguments.what]
    if arguments.file is not None:
        lines = arguments.file.read_text(errors="surrogateescape").splitlines()
        texts += [line.strip() for line in lines if line.strip()]
    if not texts:
        raise CommandRefused("name the calls: CLIENT_ID/SEQ or CLIENT_ID/KEY", ExitCode.USAGE)
    if arguments.not_executed:
        if arguments.response is not None:
            raise CommandRefused("a call that was not executed has no response", ExitCode.USAGE)
        if not arguments.yes:
            sys.stderr.write(_WARNING + "\n")
            raise CommandRefused(
                "nothing was done; to have them run again say --yes", ExitCode.USAGE
            )
    response = None if arguments.response is None else arguments.response.read_bytes()
    settlement = Settlement(arguments.executed, arguments.who, arguments.why, response)
    # All are found before any is settled, so that a slip of the pen changes nothing.
    remembered = {rpc_id for rpc_id, *_ in store.remembered()}
    wanted = [_one(store, remembered, text) for text in texts]
    report = Report(as_json=arguments.json)
    told: dict[RpcId, str] = {}
    refusals: list[StoreLocked] = []
    for rpc_id in wanted:
        try:
            told[rpc_id] = settle(store, rpc_id, settlement).value
        except StoreLocked as error:
            told[rpc_id] = "refused"
            refusals.append(error)
    if report.as_json:
        report.json({"settled": {str(rpc_id): state for rpc_id, state in told.items()}})
    else:
        rows = [(shown(rpc_id), state) for rpc_id, state in told.items()]
        print_table("", ("call", "is now"), rows)
    if refusals:
        raise CommandRefused(f"{len(refusals)} refused; {refusals[0]}", ExitCode.OWNED)
    if set(told.values()) == {Settled.ANSWERED.value}:
        raise CommandRefused("all of these calls have final answers", ExitCode.NOT_FOUND)


def _meant(text: str) -> list[RpcId]:
    try:
        found = candidates(text.lstrip())
    except ValueError as error:
        raise CommandRefused(str(error), ExitCode.USAGE) from error
    if isinstance(found, int):
        raise CommandRefused("name one call: CLIENT_ID/SEQ or CLIENT_ID/KEY", ExitCode.USAGE)
    return found


def _one(store: Inspection, remembered: set[RpcId], text: str) -> RpcId:
    meant = _meant(text)
    kept = [rpc_id for rpc_id in meant if rpc_id in remembered or store.call(rpc_id) is not None]
    if not kept:
        raise CommandRefused(f"nothing is known of {text}", ExitCode.NOT_FOUND)
    if len(kept) > 1:
        raise CommandRefused(f"{text} is a seq and a key; a key may begin with 0x", ExitCode.USAGE)
    return kept[0]


def _object(report: Report, call: UnknownCall) -> dict[str, Any]:
    return {
        "rpc_id": str(call.rpc_id),
        "method": call.method,
        "state": call.state.value,
        "age_s": report.seconds(call.since_unix_s),
        "run_by": call.owner,
        "settled": call.note,
    }


def _cells(report: Report, call: UnknownCall) -> tuple[str, ...]:
    note = call.note
    state = "its process is gone" if call.state is UnknownState.BEGUN else call.state.value
    settled = "" if note is None else f"{note['decision']}, by {note['who']}: {note['why']}"
    age = report.age(call.since_unix_s)
    return shown(call.rpc_id), call.method, state, age, call.owner or "", settled
