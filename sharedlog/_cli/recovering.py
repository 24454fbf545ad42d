"""The commands about stores: restored, accept-loss, defragment."""

from __future__ import annotations

import argparse
import sys

from _rifl_ground.exits import CommandRefused, ExitCode
from _rifl_ground.signals import until_signal
from sharedlog._cli.operating import really
from sharedlog._cli.shown import print_json, print_table, print_value
from sharedlog._core.errors import LogError
from sharedlog._engines.opening import defragment as defragment_rule
from sharedlog._log.restoring import accept_loss as accept
from sharedlog._log.restoring import restore_log

_RESTORED = """\
Every position that a follower kept outside of the log is refused from now on, every producer of
before is over, and what was pending is rolled back. What was appended after the backup is gone,
and may have been delivered. Stop everything that has the log open first."""


def restored(arguments: argparse.Namespace) -> int:
    """Declare that the log was restored from a backup."""
    _warned(arguments)
    print_value(arguments.json, restore_log(arguments.url, arguments.timeout)._asdict())
    return ExitCode.DONE


def accept_loss(arguments: argparse.Namespace) -> int:
    """Have a log go on that stopped since it lacks something; nothing where it has not."""
    _warned(arguments)
    found = accept(arguments.url, arguments.timeout)
    if found is None:
        raise CommandRefused("the log has not stopped: nothing was done", ExitCode.USAGE)
    print_value(arguments.json, found._asdict())
    return ExitCode.DONE


def defragment(arguments: argparse.Namespace) -> int:
    """Give back what is free in an etcd cluster, once, or on a schedule until a signal comes."""
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
