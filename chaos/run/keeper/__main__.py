"""A keeper: ``python -m chaos.run.keeper URL SILENT_S TRIM_S``; sweeps and trims in its turn.

Until standard input closes.
"""

from __future__ import annotations

import contextlib
import os
import sys
from datetime import timedelta

import sharedlog


def main() -> int:
    """Keep the log until standard input closes; the exit code."""
    url, silent_s, trim_s = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    log = None
    while log is None:
        with contextlib.suppress(sharedlog.LogUnavailable):
            log = sharedlog.open(url)
    with (
        log,
        log.sweeper(timedelta(seconds=silent_s)),
        log.trim_every(timedelta(seconds=trim_s)),
    ):
        print("keeping", flush=True)
        os.read(0, 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
