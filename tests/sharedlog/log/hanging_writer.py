"""A process that stops itself when its append is about to be judged, and tells what became of it.

    python -m tests.sharedlog.log.hanging_writer URL FENCE

Under the fence's number it publishes one message that gets there, and one at which it stops.
"""

import signal
import sys

import sharedlog


def main(url, fence):
    """Print what each ``publish`` was told."""
    with sharedlog.open(url) as log:
        producer = log.producer(fence=sharedlog.Fence(fence, 1))
        engine = log._engine
        print("told", producer.publish("s", "first").lsn, flush=True)
        commit = engine.commit

        def stop_first(step):
            engine.commit = commit
            signal.raise_signal(signal.SIGSTOP)
            return commit(step)

        engine.commit = stop_first
        try:
            producer.publish("s", "late")
        except sharedlog.Fenced as error:
            print("fenced", error.appended, flush=True)
        print("told", log.publish("s", "after it").lsn, flush=True)


main(*sys.argv[1:])
