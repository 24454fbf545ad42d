"""The commands of consumers: who has which substream, and what is stopped."""

from __future__ import annotations

import argparse
import json
from typing import Any

from sharedlog._cli.exits import ExitCode, Refused
from sharedlog._cli.shown import print_json, print_table, print_value
from sharedlog._core.consumer.members import Seen, all_consumers, look, resume, shard_fence
from sharedlog._core.consumer.shard import hold_name
from sharedlog._core.fences import fence_key, number_of
from sharedlog._log.log import Log


def consumers(log: Log, arguments: argparse.Namespace) -> int:
    """List the consumers' substreams, or let those go on that were stopped."""
    names = log._run(all_consumers())
    if arguments.resume is not None:
        if arguments.resume not in names:
            raise Refused(f"there is no consumer {arguments.resume!r}", ExitCode.NOT_FOUND)
        print_value(arguments.json, {"resumed": log._run(resume(arguments.resume))})
        return ExitCode.DONE
    rows = [row for name in names for row in _shards(log, name)]
    if arguments.json:
        print_json(rows)
        return ExitCode.DONE
    print_table(
        "",
        ("consumer", "substream", "state", "process", "fence#", "done through", "entries behind#"),
        [
            (
                row["consumer"],
                row["substream"],
                row["state"] + (f": {row['why']}" if row["why"] else ""),
                row["process"] or "",
                str(row["fence"]),
                row["position"] or "",
                str(row["entries_behind"]),
            )
            for row in rows
        ],
    )
    return ExitCode.DONE


def _shards(log: Log, name: str) -> list[dict[str, Any]]:
    """What is known in the log of each; holds follow the store within half a second."""
    seen = log._run(look(name))
    tail = log._engine.tail()
    found = []
    for hold in log.holds(hold_name(name)):
        tag = hold.tag
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
            }
        )
    return found


def _state(seen: Seen, tag: str) -> str:
    if tag in seen.stopped:
        return "stopped"
    if tag not in seen.owners:
        return "nobody's"
    return "its process is gone" if seen.dead(tag) else "runs"


def _process(seen: Seen, tag: str) -> str | None:
    says = seen.members.get(seen.owners.get(tag, ""))
    if says is None:
        return None
    told = json.loads(says)
    return f"{told['pid']} on {told['host']}"
