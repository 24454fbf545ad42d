"""The commands of dead letters: list, show, retry."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from _rifl_ground.exits import CommandRefused, ExitCode
from _rifl_ground.texts import print_table
from sharedlog._cli.operating import really
from sharedlog._cli.shown import message_object, print_json, print_value, told_time
from sharedlog._core.dead_letters import DeadLetter, read
from sharedlog._core.envelope import About
from sharedlog._core.message import Message
from sharedlog._core.streams import stream_of
from sharedlog._log.log import Log


def dead_letters(log: Log, arguments: argparse.Namespace) -> int:
    """List the dead letters, show one, or publish its message again."""
    if arguments.action == "list":
        return list_letters(log, arguments)
    if arguments.position is None:
        raise CommandRefused(
            f"{arguments.action} which? its position is in the list", ExitCode.USAGE
        )
    return show(log, arguments) if arguments.action == "show" else retry(log, arguments)


def list_letters(log: Log, arguments: argparse.Namespace) -> int:
    """List the dead letters, oldest first."""
    found = [each for each in _letters(log, arguments.stream) if _chosen(each, arguments)]
    found.sort(key=lambda each: each.letter.position[:2])
    if arguments.json:
        for each in found:
            print_json(_object(each))
        return ExitCode.DONE
    rows = [
        (
            str(each.letter.position),
            each.consumer or each.target,
            each.tag,
            str(each.position),
            told_time(int(each.letter.append_time.timestamp() * 1_000_000)),
            each.by or f"{each.attempts} attempts",
            each.reason,
        )
        for each in found
    ]
    columns = ("dead letter", "of", "substream", "message", "since", "by", "reason")
    print_table("", columns, rows)
    return ExitCode.DONE


def show(log: Log, arguments: argparse.Namespace) -> int:
    """Show one dead letter, with the message."""
    found = _found(log, arguments)
    shown = _object(found) | {"message": _inside(log, found)}
    if arguments.json:
        print_json(shown)
    else:
        inside = shown.pop("message")
        print_value(False, shown | {f"message: {name}": each for name, each in inside.items()})
    return ExitCode.DONE


def retry(log: Log, arguments: argparse.Namespace) -> int:
    """Publish the message of a dead letter again: once, however often that is said."""
    found = _found(log, arguments)
    inside = _message(log, found)
    to = arguments.to or stream_of(found.tag)
    really(arguments, f"all targets and consumers of {to!r} get it; to publish it again")
    place = found.letter.position
    producer = log.producer(f"deadletters-retry/{place.lsn}.{place.ordinal}/{place.substream}")
    about = About(
        inside.headers,
        inside.content_type,
        inside.schema_name,
        inside.trace_parent,
        inside.trace_state,
        causation_id=str(place),
        method=inside.method,
    )
    at = producer.publish(to, inside.value, inside.key, about=about, seq=1, follows=0)
    if arguments.json:
        print_json({"stream": to, "position": str(at)})
    else:
        sys.stdout.write(f"published to {to} at {at}\n")
    return ExitCode.DONE


def _letters(log: Log, stream: str) -> Iterator[DeadLetter]:
    for each in log.streams():
        if each.name == stream:
            for number in range(each.substreams):
                last: Message | None = None
                while batch := log.read(stream, number, last):
                    last = batch[-1]
                    yield from filter(None, map(read, batch))


def _chosen(letter: DeadLetter, arguments: argparse.Namespace) -> bool:
    return arguments.of in (None, letter.consumer or letter.target)


def _found(log: Log, arguments: argparse.Namespace) -> DeadLetter:
    for each in _letters(log, arguments.stream):
        if each.letter.position[:2] == arguments.position[:2]:
            return each
    raise CommandRefused(f"there is no dead letter at {arguments.position}", ExitCode.NOT_FOUND)


def _message(log: Log, letter: DeadLetter) -> Message:
    if letter.cut:
        raise CommandRefused(
            f"the message was too large for its dead letter, or damaged: read {letter.position}",
            ExitCode.GONE,
        )
    return letter.message(log._place.seals)


def _inside(log: Log, letter: DeadLetter) -> dict[str, Any]:
    if letter.cut:
        return {"position": str(letter.position)}
    found = _message(log, letter)
    return message_object(found) | ({} if found.sealed else {"method": found.method})


def _object(letter: DeadLetter) -> dict[str, Any]:
    who = (
        {"consumer": letter.consumer, "attempts": letter.attempts}
        if letter.consumer
        else {
            "player": letter.player,
            "target": letter.target,
            "number": letter.number,
            "by": letter.by,
        }
    )
    return {
        "dead_letter": str(letter.letter.position),
        **who,
        "substream": letter.tag,
        "position": str(letter.position),
        "at": letter.letter.append_time.isoformat(),
        "reason": letter.reason,
    }
