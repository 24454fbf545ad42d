"""A process that trims a log while it has that duty.

    python -m tests.sharedlog.log.dutiful URL PATIENCE_S [stops|once]

``stops``: it stops itself in its first turn. ``once``: it trims in that one only, and goes on
having the duty.
"""

import signal
import sys

import sharedlog
from sharedlog._core.errors import Fenced
from sharedlog._log.rounds import Rounds
from sharedlog._log.trimming import trim_once


def main(url, patience_s, how):
    """Print what becomes of each turn, with the fence's number; ends with its input."""
    turns = []

    def act(fence, now_s):
        turns.append(fence)
        if len(turns) == 1 and how == "stops":
            # This very thread: one that is meant for the process may stop it a moment later.
            signal.raise_signal(signal.SIGSTOP)
        elif len(turns) > 1 and how == "once":
            return
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
