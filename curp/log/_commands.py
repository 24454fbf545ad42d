"""``curp log dump|verify|doctor|accept-loss URL``, ``copy FROM TO``; ``python -m curp.log``."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError

from _rifl_ground.audit import acting
from _rifl_ground.exits import CommandRefused, ExitCode, failed, told_exit_codes
from _rifl_ground.findings import failed_look, tell
from _rifl_ground.options import add_url, find_url
from curp.log._commits import GroupLog
from curp.log._copying import copy_log
from curp.log._errors import InvalidRequest, LogError
from curp.log._opening import accept_loss, examine, open_engine, why_stopped
from curp.log._values import LogEntry
from curp.log._verification import verify
from curp.v1 import curp_pb2

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class EndedBySignal(Exception):
    """The command ends by a signal while it runs nothing. ``code`` to exit with."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


@contextlib.contextmanager
def ended_by_signals() -> Iterator[Callable[[], None]]:
    """Have SIGINT and SIGTERM noted; what is yielded raises ``EndedBySignal`` once one came.

    A handler that raised would break off a commit, or be lost in whatever the interpreter
    runs just then, such as a callback of its garbage collector.
    """
    came: list[int] = []

    def check() -> None:
        if came:
            raise EndedBySignal(came[0])

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    before = {
        each: signal.signal(each, lambda number, frame: came.append(number)) for each in _SIGNALS
    }
    try:
        yield check
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


# What may hold personal data, in an operation.
_CONTENTS = ("request", "answer")


def add_log_commands(parser: argparse.ArgumentParser) -> None:
    """Add the commands to a parser; ``run`` of what it parses takes that, and returns a code."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    dump = commands.add_parser("dump", help="print entries, one JSON object a line")
    add_url(dump, "url", about="sqlite:///file?group=NAME, redis://..., etcd://...")
    dump.add_argument("--after", type=int, metavar="LSN", help="begin behind this one")
    dump.add_argument("--limit", type=int, metavar="N", help="so many at most")
    dump.add_argument("--tag", help="only those that carry it")
    dump.add_argument("--contents", action="store_true", help="with requests and answers")
    dump.set_defaults(run=_dump)

    copy = commands.add_parser("copy", help="move a stopped group's log to another engine")
    copy.add_argument("source", metavar="FROM", help="the log's URL")
    copy.add_argument("target", metavar="TO", help="a place without a log, for the same group")
    copy.set_defaults(run=_copy)

    accept = commands.add_parser(
        "accept-loss", help="have a log go on that stopped since it may have lost entries"
    )
    add_url(accept, "url", about="in SQLite, PostgreSQL or etcd")
    accept.add_argument("--who", default="", help="who says so (default: the user's name)")
    accept.add_argument("--why", required=True, help="kept with the log, and who")
    accept.set_defaults(run=_accept_loss)

    check = commands.add_parser("verify", help="read everything; 1 if anything is damaged")
    add_url(check, "url", about="the log's URL")
    check.set_defaults(run=_verify)

    looks = commands.add_parser(
        "doctor",
        help="say what a replica's start would refuse, or is weak; only reads",
        epilog=told_exit_codes("doctor"),
    )
    add_url(looks, "url", about="the log's URL")
    looks.add_argument("--json", action="store_true", help="print one JSON object")
    looks.set_defaults(run=doctor)


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns 0, 1 for a log that cannot be read whole. One line of error."""
    parser = argparse.ArgumentParser(prog="python -m curp.log", description=__doc__)
    add_log_commands(parser)
    arguments = parser.parse_args(argv)
    fail = failed_look if arguments.run is doctor and arguments.json else failed
    try:
        find_url(arguments)
        code: int = arguments.run(arguments)
    except CommandRefused as error:
        return fail("curp", error, error.code)
    except LogError as error:
        return fail("curp", error)
    return code


def _dump(arguments: argparse.Namespace) -> int:
    with closing(open_engine(arguments.url, read_only=True)) as engine:
        after = engine.first() - 1 if arguments.after is None else arguments.after
        for entry in _entries(engine, after, arguments.limit, arguments.tag):
            told = _told(entry, contents=arguments.contents)
            sys.stdout.write(json.dumps(told, ensure_ascii=False) + "\n")
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    with closing(open_engine(arguments.url, read_only=True)) as engine:
        found = verify(engine)
        stopped = why_stopped(engine, arguments.url)
    told = {**found._asdict(), "stopped": None if stopped is None else str(stopped)}
    if found.leadership is not None:
        told["leadership"] = found.leadership._asdict()
    sys.stdout.write(json.dumps(told, ensure_ascii=False) + "\n")
    return 0


def doctor(arguments: argparse.Namespace) -> int:
    """Look at a group's log before a replica starts over it."""
    try:
        found = examine(arguments.url)
    except InvalidRequest as error:
        raise CommandRefused(str(error), ExitCode.USAGE) from error
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return tell(found, as_json=arguments.json)


def _copy(arguments: argparse.Namespace) -> int:
    try:
        with ended_by_signals() as check:
            copied = copy_log(arguments.source, arguments.target, check=check)
    except EndedBySignal as ended:
        sys.stderr.write(
            f"curp: {ended}: the copy was not finished, and holds the old log no longer. The same "
            "command says how to go on\n"
        )
        return ended.code
    sys.stdout.write(json.dumps({**copied._asdict(), "log": f"{copied.log:016x}"}) + "\n")
    sys.stdout.write("moved and compared; the old log is not served from any more\n")
    return 0


def _accept_loss(arguments: argparse.Namespace) -> int:
    who = arguments.who or getpass.getuser()
    with acting("accept_loss", "log", who):
        stopped = accept_loss(arguments.url, who, arguments.why)
    if not stopped:
        sys.stderr.write("curp: the log has not stopped: nothing to accept\n")
        return 1
    sys.stdout.write(f"accepted by {who}: the log goes on ({stopped})\n")
    return 0


def _entries(
    engine: GroupLog, after: int, limit: int | None, tag: str | None
) -> Iterator[LogEntry]:
    left = limit
    while left is None or left > 0:
        found = engine.read(after, limit=min(left or 1000, 1000), tag=tag)
        if not found:
            return
        yield from found
        after = found[-1].lsn
        left = None if left is None else left - len(found)


def _told(entry: LogEntry, *, contents: bool) -> dict[str, Any]:
    told: dict[str, Any] = {"lsn": entry.lsn, "tags": list(entry.tags), "bytes": len(entry.body)}
    message = curp_pb2.LogEntry()
    try:
        message.ParseFromString(entry.body)
        kind = message.WhichOneof("entry")
    except DecodeError:
        kind = None
    if kind is None:
        # Another use of the log than a group's.
        return {**told, **({"body": entry.body.hex()} if contents else {})}
    fields = MessageToDict(message, preserving_proto_field_name=True)[kind]
    if kind == "secrets_put":
        fields = {}
    if not contents:
        fields = {name: value for name, value in fields.items() if name not in _CONTENTS}
    return {**told, "kind": kind, **fields}
