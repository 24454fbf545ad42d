"""Processes that an interrupted run of the tests left behind: servers, and what they started.

A worker that is killed ends none of its servers. Run as a module, with the directory that was
``TMPDIR`` of the run, this kills all of them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["end_leftovers"]


def end_leftovers(directory: Path) -> list[str]:
    """Kill the processes whose ``TMPDIR`` is this directory, or that work below it.

    Returns the name of each. Some servers write over their environment, and those work in
    their own directory.
    """
    ended: dict[str, str] = {}
    # A process may start another one until it is killed, and takes a moment to end.
    while found := list(_left(directory)):
        for process in found:
            with contextlib.suppress(OSError):
                ended[process.name] = (process / "comm").read_text().strip()
                os.kill(int(process.name), signal.SIGKILL)
    return list(ended.values())


def _left(directory: Path) -> Iterator[Path]:
    marker = f"TMPDIR={directory}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        # It may end at any time, or be another user's.
        with contextlib.suppress(OSError):
            given = (process / "environ").read_bytes().split(b"\0")
            works = Path(os.readlink(process / "cwd").removesuffix(" (deleted)"))
            mine = marker in given or works.is_relative_to(directory)
            ended = (process / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            if mine and not ended and int(process.name) != os.getpid():
                yield process


if __name__ == "__main__":
    if names := end_leftovers(Path(sys.argv[1])):
        print("ended what the tests left behind:", ", ".join(sorted(names)), file=sys.stderr)
