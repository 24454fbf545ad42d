"""``curp forget``: a replica that does not come back."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing

from curp._cli.operator_client import GroupError
from curp._replica.replica_list import change_replicas, read_replicas
from curp.log._opening import open_engine


def add_forget_command(parser: argparse.ArgumentParser, engine: str) -> None:
    """Add arguments; ``run`` of what is parsed takes that, and returns the exit code."""
    parser.add_argument("url", metavar="LOG", help=engine)
    parser.add_argument("replica", metavar="HOST:PORT", help="as curp status names it")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    with closing(open_engine(arguments.url)) as engine:
        listed = read_replicas(engine)
        if arguments.replica not in listed:
            raise GroupError(
                f"{arguments.replica} is not listed: {', '.join(listed) or 'no replica'} is"
            )
        change_replicas(engine, lambda found: found - {arguments.replica})
    sys.stdout.write(f"{arguments.replica} is not listed any more, unless it runs\n")
    return 0
