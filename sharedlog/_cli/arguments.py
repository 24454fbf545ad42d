"""The arguments of each command, and the function that carries it out."""

from __future__ import annotations

import argparse
import functools
import sys
from datetime import timedelta
from pathlib import Path

from _rifl_ground.exits import CommandRefused, ExitCode, told_exit_codes
from _rifl_ground.options import AllowPlaintext, add_url
from _rifl_ground.signals import until_signal
from _rifl_ground.texts import print_table
from _rifl_ground.version import PrintVersion
from sharedlog._cli import (
    attending,
    consuming,
    letters,
    messages,
    operating,
    playing,
    querying,
    serving,
)
from sharedlog._cli.given import after, count, duration, header, position, schedule, seals, some
from sharedlog._cli.operating import really
from sharedlog._cli.shown import print_json, print_value
from sharedlog._core.errors import LogError
from sharedlog._engines.opening import defragment as defragment_rule
from sharedlog._log.restoring import accept_loss as accept
from sharedlog._log.restoring import restore_log
from sharedlog._outbox.outbox import NAME as OUTBOX
from sharedlog._player.declared import PLAYER, STREAM

_RESTORED = """\
From now on the log refuses every position that a follower keeps outside of it, and every earlier
producer. What was pending is rolled back. What was appended after the backup is lost, and may
have been delivered. First stop all programs that have the log open."""


def restored(arguments: argparse.Namespace) -> int:
    """Declare that the log was restored from a backup."""
    _warned(arguments)
    print_value(arguments.json, restore_log(arguments.url, arguments.timeout)._asdict())
    return ExitCode.DONE


def accept_loss(arguments: argparse.Namespace) -> int:
    """Make a log that stopped since it lacks something usable; raises if it has not stopped."""
    _warned(arguments)
    found = accept(arguments.url, arguments.timeout)
    if found is None:
        raise CommandRefused("the log has not stopped: nothing was done", ExitCode.USAGE)
    print_value(arguments.json, found._asdict())
    return ExitCode.DONE


def defragment(arguments: argparse.Namespace) -> int:
    """Defragment an etcd cluster, once, or on a schedule until a signal comes."""
    if arguments.every is None:
        return _defragment(arguments)
    with until_signal() as stopped:
        while True:
            try:
                _defragment(arguments)
            except LogError as error:
                sys.stderr.write(f"sharedlog: {error}\n")
            sys.stdout.flush()
            if stopped.wait(arguments.every.total_seconds()):
                return ExitCode.DONE


def _defragment(arguments: argparse.Namespace) -> int:
    found = defragment_rule(arguments.url)
    if arguments.json:
        print_json([each._asdict() for each in found])
    else:
        rows = [(each.host, str(each.before), str(each.after), each.error) for each in found]
        print_table("", ("member", "bytes#", "bytes now#", "error"), rows)
    return ExitCode.UNAVAILABLE if any(each.error for each in found) else ExitCode.DONE


def _warned(arguments: argparse.Namespace) -> None:
    if not arguments.yes:
        sys.stderr.write(_RESTORED + "\n")
    really(arguments, "to go on with what is there")


_ABOUT = """
Inspect and operate a shared log, also while programs use it. An error is one line on standard
error.
"""
_URL = "sqlite:///file (four slashes: from the root), redis://... and so on, as for sharedlog.open"
_AFTER = "beginning, end, a position, a time, or 15m (ago)"


def parsed(argv: list[str] | None) -> argparse.Namespace:
    """Return one command's arguments: ``run`` carries it out, with a log if it ``opens`` one."""
    return _parser().parse_args(argv)


@functools.cache
def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sharedlog", description=_ABOUT, epilog=told_exit_codes("sharedlog")
    )
    parser.add_argument("--version", action=PrintVersion)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    url = argparse.ArgumentParser(add_help=False)
    add_url(url, "url", about=_URL)
    url.add_argument("--json", action="store_true", help="print JSON, a message a line")
    _add_opening(url)
    url.set_defaults(opens=True)
    sure = argparse.ArgumentParser(add_help=False)
    sure.add_argument("--yes", action="store_true", help="confirm")
    _add_operating(commands, url, sure)
    _add_players(commands, url, sure)
    _add_messages(commands, url)
    return parser


def _add_opening(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout",
        type=duration,
        default=timedelta(seconds=10),
        metavar="TIME",
        help="how long to retry while a server does not answer (10s)",
    )
    parser.add_argument(
        "--keys",
        type=seals,
        metavar="MODULE",
        help="Python module whose seal and unseal encrypt the log's messages",
    )
    parser.add_argument("--plaintext-secrets", action=AllowPlaintext)


def _add_operating(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    url: argparse.ArgumentParser,
    sure: argparse.ArgumentParser,
) -> None:
    create = commands.add_parser("create", parents=[url], help="make a new log")
    create.set_defaults(run=operating.create, opens=False)

    streams = commands.add_parser("streams", parents=[url], help="list streams, or create one")
    streams.add_argument("--create", metavar="NAME")
    streams.add_argument("--substreams", type=some, metavar="N", help="how many; fixed (8)")
    streams.add_argument("--retention", type=duration, metavar="TIME", help="kept at least (1d)")
    streams.set_defaults(run=operating.streams)

    holds = commands.add_parser(
        "holds", parents=[url, sure], help="followers, and what each keeps from being trimmed"
    )
    which = holds.add_mutually_exclusive_group()
    which.add_argument(
        "--drop", metavar="NAME", help="it keeps nothing any more; its follower gets an error"
    )
    which.add_argument("--forget", metavar="NAME", help="the name begins anew")
    holds.set_defaults(run=operating.holds)

    consumers = commands.add_parser(
        "consumers", parents=[url], help="which process has which substream, and its position"
    )
    which = consumers.add_mutually_exclusive_group()
    which.add_argument("--resume", metavar="NAME", help="resume what is stopped or paused")
    which.add_argument("--pause", metavar="NAME", help="stop consuming in all its processes")
    which.add_argument("--reset", metavar="NAME", help="move it to --to")
    consumers.add_argument(
        "--to",
        type=after,
        metavar="WHERE",
        help="of --reset: beginning, end, a position, a time (ISO 8601), or 15m for ago",
    )
    consumers.set_defaults(run=attending.consumers)

    run = commands.add_parser("run", help="run your consumer, until a signal")
    run.add_argument("consumer", metavar="MODULE:CONSUMER", help="a sharedlog.Consumer there")
    run.add_argument(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help="with 2 or more, one that crashes or exits is restarted after growing pauses; "
        "1 runs in this process, without restarts (1)",
    )
    run.add_argument(
        "--start",
        type=after,
        metavar="PLACE",
        help=f"where it begins if its name is new: {_AFTER} (as in the module)",
    )
    run.add_argument("--child", type=int, metavar="FD", help=argparse.SUPPRESS)
    run.set_defaults(run=consuming.run, opens=False)

    trim = commands.add_parser("trim", parents=[url], help="remove messages that are not needed")
    trim.add_argument(
        "--retention", type=duration, metavar="TIME", help="keep for longer than the streams say"
    )
    trim.add_argument(
        "--every",
        type=schedule,
        metavar="TIME",
        help="repeat at this interval; of several processes one works",
    )
    trim.set_defaults(run=operating.trim)

    relay = commands.add_parser(
        "relay",
        parents=[url, sure],
        help="append the messages of an outbox in a database",
    )
    relay.add_argument(
        "--from",
        dest="database",
        required=True,
        metavar="DATABASE",
        help="sqlite:///FILE or postgresql://HOST/DATABASE, where the outbox is",
    )
    relay.add_argument("--outbox", default=OUTBOX, metavar="NAME", help=f"({OUTBOX})")
    which = relay.add_mutually_exclusive_group()
    which.add_argument(
        "--once", action="store_true", help="relay what waits now, and end (until a signal)"
    )
    which.add_argument(
        "--adopt",
        action="store_true",
        help="only bind the outbox to this log, which was restored, or is another one",
    )
    relay.set_defaults(run=operating.relay)

    producers = commands.add_parser(
        "producers", parents=[url], help="producers that have something pending"
    )
    shown = producers.add_mutually_exclusive_group()
    shown.add_argument("--all", action="store_true", help="all producers")
    shown.add_argument("--named", action="store_true", help="the named ones, and their highest seq")
    producers.set_defaults(run=operating.producers)

    queries = commands.add_parser(
        "queries", parents=[url, sure], help="what Spark queries have committed and read"
    )
    which = queries.add_mutually_exclusive_group()
    which.add_argument("--abandon", metavar="NAME", help="roll back what its batch has pending")
    which.add_argument("--forget", metavar="NAME", help="the name begins anew")
    which.add_argument(
        "--forget-schema", metavar="STREAM", help="the next query declares the columns"
    )
    queries.set_defaults(run=querying.queries)

    retire = commands.add_parser(
        "retire", parents=[url, sure], help="end a producer, and roll back what it has pending"
    )
    retire.add_argument("producer", type=int, metavar="PRODUCER")
    retire.set_defaults(run=operating.retire)

    forget = commands.add_parser(
        "forget", parents=[url, sure], help="forget a named producer: it begins anew"
    )
    forget.add_argument("name", metavar="NAME")
    forget.set_defaults(run=operating.forget)

    verify = commands.add_parser(
        "verify", parents=[url], help="read everything: order, checksums, spans, markers"
    )
    verify.set_defaults(run=operating.verify)

    serve = commands.add_parser("serve", help="serve a log over gRPC, until a signal")
    serving.add_serve_options(serve)
    serve.set_defaults(run=serving.serve, opens=False)

    play = commands.add_parser("play", help="call gRPC services with a log's messages")
    playing.add_play_options(play)
    _add_opening(play)
    play.set_defaults(run=playing.play, opens=False)

    anew = commands.add_parser(
        "restored", parents=[url, sure], help="go on with a log that was restored from a backup"
    )
    anew.set_defaults(run=restored, opens=False)

    accept = commands.add_parser(
        "accept-loss",
        parents=[url, sure],
        help="go on with a log that lacks something",
    )
    accept.set_defaults(run=accept_loss, opens=False)

    doctor = commands.add_parser(
        "doctor",
        help="say what an opening would refuse, or is weak; only reads",
        epilog=told_exit_codes("doctor"),
    )
    add_url(doctor, "url", about=_URL)
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    doctor.set_defaults(run=operating.doctor, opens=False)

    tidy = commands.add_parser(
        "defragment", parents=[url], help="etcd: compact, defragment each member, disarm alarms"
    )
    tidy.add_argument("--every", type=schedule, metavar="TIME", help="repeat at this interval")
    tidy.set_defaults(run=defragment, opens=False)


def _add_players(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    url: argparse.ArgumentParser,
    sure: argparse.ArgumentParser,
) -> None:
    targets = commands.add_parser(
        "targets", parents=[url], help="the targets of players, and their states"
    )
    targets.add_argument("--player", metavar="NAME", help="only of this player (all)")
    targets.set_defaults(run=playing.targets)

    order = argparse.ArgumentParser(add_help=False, parents=[url])
    order.add_argument("target", metavar="TARGET")
    order.add_argument("--player", default=PLAYER, metavar="NAME", help=f"({PLAYER})")
    order.add_argument("--by", default="", metavar="WHO", help="who decides it (the user)")
    order.add_argument("--why", default="", metavar="TEXT")

    pause = commands.add_parser("pause", parents=[order], help="send a target nothing")
    pause.set_defaults(run=playing.pause, ordered="pause")

    resume = commands.add_parser(
        "resume", parents=[order], help="resume a paused or stopped target"
    )
    resume.add_argument(
        "--adopt", action="store_true", help="accept the store that answers there (needs --why)"
    )
    resume.set_defaults(run=playing.resume, ordered="resume")

    skip = commands.add_parser(
        "skip", parents=[order, sure], help="do not call a target with one message"
    )
    skip.add_argument(
        "--position", type=position, metavar="POSITION", help="(the one where it stopped)"
    )
    skip.add_argument("--substream", metavar="STREAM/N", help="of the position")
    skip.set_defaults(run=playing.skip, ordered="skip")

    replay = commands.add_parser(
        "replay", parents=[order, sure], help="deliver a log to a target again, from a place on"
    )
    replay.add_argument("--after", type=after, default="beginning", metavar="PLACE", help=_AFTER)
    replay.set_defaults(run=playing.replay, ordered="replay")

    dead = commands.add_parser(
        "deadletters", parents=[url], help="list, show or retry dead letters"
    )
    dead.add_argument(
        "--stream", default=STREAM, metavar="STREAM", help=f"with the dead letters ({STREAM})"
    )
    dead.add_argument("--of", metavar="NAME", help="list: only this target's or consumer's")
    dead.add_argument("--to", metavar="STREAM", help="retry: publish to this one (its own)")
    dead.add_argument("--yes", action="store_true", help="retry: confirm")
    dead.add_argument("action", choices=("list", "show", "retry"))
    dead.add_argument("position", type=position, nargs="?", metavar="POSITION")
    dead.set_defaults(run=letters.dead_letters)


def _add_messages(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], url: argparse.ArgumentParser
) -> None:
    stream = argparse.ArgumentParser(add_help=False, parents=[url])
    stream.add_argument("stream", metavar="STREAM")
    chosen = argparse.ArgumentParser(add_help=False, parents=[stream])
    chosen.add_argument(
        "--substream", type=count, action="append", metavar="N", help="only this one; repeatable"
    )
    shown = argparse.ArgumentParser(add_help=False, parents=[chosen])
    shown.add_argument(
        "--uncommitted",
        action="store_true",
        help="also print pending and rolled-back messages, marked",
    )
    shown.add_argument("--color", choices=("auto", "always", "never"), default="auto")

    publish = commands.add_parser("publish", parents=[stream], help="append a message")
    publish.add_argument(
        "value",
        nargs="?",
        metavar="VALUE",
        help="by default each line of standard input is a message",
    )
    publish.add_argument("--key", metavar="KEY", help="messages of one key are in one substream")
    publish.add_argument("--header", type=header, action="append", default=[], metavar="NAME=VALUE")
    publish.set_defaults(run=messages.publish)

    read = commands.add_parser("read", parents=[shown], help="print the messages after a place")
    read.add_argument("--after", type=after, default="beginning", metavar="PLACE", help=_AFTER)
    read.add_argument("--limit", type=some, default=100, metavar="N", help="at most (100)")
    read.set_defaults(run=messages.read)

    tail = commands.add_parser("tail", parents=[shown], help="print the last messages")
    tail.add_argument("-n", "--lines", type=count, default=10, metavar="N", help="how many (10)")
    tail.add_argument(
        "-f", "--follow", action="store_true", help="then print new ones as they come"
    )
    tail.set_defaults(run=messages.tail)

    export = commands.add_parser(
        "export", parents=[chosen], help="write the messages of a stream to a Parquet file"
    )
    export.add_argument("--out", type=Path, required=True, metavar="FILE.parquet")
    export.add_argument("--after", type=after, default="beginning", metavar="PLACE", help=_AFTER)
    export.set_defaults(run=messages.export)
