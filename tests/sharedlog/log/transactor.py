"""A process that commits transactions to the log at a URL until it is killed.

Each is told on standard output after it was committed: its run, its number, and its LSN.
"""

import secrets
import sys

import sharedlog

if __name__ == "__main__":
    run = secrets.token_hex(4)
    with sharedlog.open(sys.argv[1]) as log:
        producer = log.producer()
        for number in range(100_000):
            size = 60_000 if number % 2 else 10
            with producer.transaction() as transaction:
                for part in range(30):
                    transaction.publish("s", f"{run} {number} {part} " + "x" * size)
            sys.stdout.write(f"{run} {number} {transaction.positions[0].lsn}\n")
            sys.stdout.flush()
