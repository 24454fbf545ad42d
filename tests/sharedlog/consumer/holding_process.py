"""A process of a consumer whose handler holds the interpreter, or kills its process.

python -m tests.sharedlog.consumer.holding_process DIRECTORY SECONDS
"""

import ctypes
import os
import sys
import threading
from datetime import timedelta
from pathlib import Path

import sharedlog


def prepare(directory):
    """Make the log; return its URL."""
    url = f"sqlite:///{Path(directory) / 'log.db'}"
    with sharedlog.create(url) as log:
        for stream in ("orders", "effects", "dead"):
            log.stream(stream, substreams=1)
    return url


def begun(directory):
    """What handlers began with, in order."""
    return (Path(directory) / "begun").read_text().split()


def hold(seconds):
    """Hold the interpreter's lock, as a regular expression does."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def main(directory, seconds):
    """Consume until standard input is closed."""
    file = os.open(Path(directory) / "begun", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with sharedlog.open(f"sqlite:///{Path(directory) / 'log.db'}") as log:
        consumer = sharedlog.Consumer(
            log,
            "holding",
            ["orders"],
            "log",
            attempts=2,
            dead_letters="dead",
            lease=timedelta(seconds=1.2),
        )

        @consumer.on("orders", str)
        def handle(what, effects):
            os.write(file, what.encode() + b"\n")
            effects.publish("effects", what)
            if what == "holds":
                hold(seconds)
            if what == "kills":
                os._exit(1)

        threading.Thread(target=lambda: sys.stdin.read() and consumer.close(), daemon=True).start()
        print("runs", flush=True)
        consumer.run()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
