"""The attending to consumers: who has which substream, what fails; pause, resume and reset."""

from __future__ import annotations

import argparse
import json
import time
from datetime import UTC, datetime
from typing import Any

from _rifl_ground.exits import CommandRefused, ExitCode
from _rifl_ground.texts import print_table
from sharedlog._cli.shown import print_json, print_value
from sharedlog._core.catalog import hold_retention_us
from sharedlog._core.consumer.members import PAUSED, Seen, all_consumers, look, resume
from sharedlog._core.consumer.names import CHANGES, hold_name, shard_fence
from sharedlog._core.consumer.operating import Told, pause, reset, tags_of, told_of
from sharedlog._core.fences import fence_key, number_of
from sharedlog._core.holds import Start
from sharedlog._core.position import Position
from sharedlog._core.streams import stream_of, substream_number
from sharedlog._core.times import first_after
from sharedlog._log.following import After
from sharedlog._log.log import Log


def consumers(log: Log, arguments: argparse.Namespace) -> int:
    """List the consumers' substreams; pause them, let them go on, or have them go on elsewhere."""
    names = log._run(all_consumers())
    asked = arguments.resume or arguments.pause or arguments.reset
    if asked is not None and asked not in names:
        raise CommandRefused(
            f"there is no consumer {asked!r} (a new one begins where 'sharedlog run --start' says)",
            ExitCode.NOT_FOUND,
        )
    if (arguments.reset is None) is not (arguments.to is None):
        raise CommandRefused("--reset NAME goes with --to WHERE", ExitCode.USAGE)
    if arguments.resume is not None:
        print_value(arguments.json, {"resumed": log._run(resume(asked))})
    elif arguments.pause is not None:
        print_value(arguments.json, {"paused": log._run(pause(asked))})
    elif arguments.reset is not None:
        epoch = _reset(log, asked, arguments.to)
        print_value(arguments.json, {"reset": asked, "epoch": epoch})
    else:
        rows = [row for name in names for row in _shards(log, name)]
        if arguments.json:
            print_json(rows)
        else:
            print_table("", _COLUMNS, [_shown(row) for row in rows])
    return ExitCode.DONE


_COLUMNS = (
    *("consumer", "substream", "state", "process", "fence#", "done through"),
    *("entries behind#", "attempts#", "dead letters#"),
)


def _shown(row: dict[str, Any]) -> tuple[str, ...]:
    why = row["why"] or row["error"]
    if (since_us := row["failing_since_us"]) and not row["why"]:
        since = datetime.fromtimestamp(since_us // 1_000_000, UTC)
        why = f"tried again since {since:%Y-%m-%d %H:%M:%S} UTC: {why}"
    return (
        row["consumer"],
        row["substream"],
        row["state"] + (f": {why}" if why else ""),
        row["process"] or "",
        str(row["fence"]),
        row["position"] or "",
        str(row["entries_behind"]),
        str(row["attempts"]),
        str(row["dead_letters"]),
    )


def _reset(log: Log, name: str, where: After) -> int:
    """Have a consumer go on elsewhere, and return its new epoch."""
    tags = tags_of(log._run(look(name)))
    streams = {stream_of(tag): log._placing.stream(stream_of(tag)) for tag in tags}
    retention_us = max(map(hold_retention_us, streams.values()))
    starts: dict[str, Start]
    if isinstance(where, Position):
        if len(streams) > 1:
            raise CommandRefused(
                f"{name} follows {', '.join(streams)}: a position is of one stream, give a time",
                ExitCode.USAGE,
            )
        starts = {tag: where for tag in tags if substream_number(tag) == where.substream}
    elif isinstance(where, datetime):
        lsn = log._run(first_after(int(where.timestamp() * 1_000_000)))
        starts = dict.fromkeys(tags, lsn)
    else:
        starts = dict.fromkeys(tags, str(where))
    now_us = time.time_ns() // 1000
    return log._run(reset(name, starts, log.incarnation, now_us, retention_us))


def _shards(log: Log, name: str) -> list[dict[str, Any]]:
    """What is known in the log of each; holds follow the store within half a second."""
    seen, told = log._run(look(name)), log._run(told_of(name))
    tail = log._engine.tail()
    found = []
    for hold in log.holds(hold_name(name)):
        tag = hold.tag
        if tag.startswith(CHANGES):
            continue
        key = fence_key(shard_fence(name, tag))
        found.append(
            {
                "consumer": name,
                "substream": tag,
                "state": _state(seen, tag),
                "why": seen.stopped.get(tag, ""),
                "process": _process(seen, tag),
                "fence": number_of(log._engine.get((key,))[key]),
                "position": None if hold.position is None else str(hold.position),
                "entries_behind": tail - (hold.lsn - 1 if hold.position is None else hold.lsn),
                **told.get(tag, Told())._asdict(),
            }
        )
    return found


def _state(seen: Seen, tag: str) -> str:
    if tag in seen.stopped:
        return "paused" if seen.stopped[tag].encode() == PAUSED else "stopped"
    if tag not in seen.owners:
        return "free"
    return "its process is gone" if seen.dead(tag) else "runs"


def _process(seen: Seen, tag: str) -> str | None:
    says = seen.members.get(seen.owners.get(tag, ""))
    if says is None:
        return None
    told = json.loads(says)
    return f"{told['pid']} on {told['host']}"
