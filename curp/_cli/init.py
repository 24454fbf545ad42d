"""``curp init``: the one command that creates a log."""

from __future__ import annotations

import argparse
import sys
from urllib.parse import parse_qs, urlencode

from _rifl_ground.urls import split_url
from curp._cli.operator_client import GroupError
from curp.log._creation import create_log


def add_init_command(parser: argparse.ArgumentParser, engine: str) -> None:
    """Add arguments; ``run`` of what is parsed takes that, and returns the exit code."""
    parser.add_argument("--log", required=True, metavar="URL", help=engine)
    parser.add_argument("--group", metavar="NAME", help="where the URL does not name it")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
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
