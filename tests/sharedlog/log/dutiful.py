"""A process that trims a log while it has that duty; it stops itself in its first turn if told to.

python -m tests.sharedlog.log.dutiful URL PATIENCE_S [stops]
"""

import signal
import sys

import sharedlog
from sharedlog._core.errors import Fenced
from sharedlog._log.rounds import Rounds
from sharedlog._log.trimming import trim_once


def main(url, patience_s, *stops):
    """Print what becomes of each turn, with the fence's number; ends with its input."""
    stopping = list(stops)

    def act(fence, now_s):
        if stopping:
            stopping.pop()
            # This very thread: one that is meant for the process may stop it a moment later.
            signal.raise_signal(signal.SIGSTOP)
        try:
            trim_once(log._place, fence=fence)
        except Fenced:
            print("fenced", fence.number, flush=True)
        else:
            print("trimmed", fence.number, flush=True)

    with sharedlog.open(url) as log:
        rounds = Rounds(log._place, "trimmer", 0.02, float(patience_s), act, print)
        rounds.start()
        sys.stdin.read()
        rounds.close()


main(*sys.argv[1:])
