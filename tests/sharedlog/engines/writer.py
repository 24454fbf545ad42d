"""A process that appends until it is killed: ``... tests.sharedlog.engines.writer URL NAME [S]``.

``S``: so many seconds pass between two appends.

It tells its producer, then each acknowledged append, after it was acknowledged, on standard
output. Each append has three messages, in the substream that is its seq modulo two.
"""

import sys
import threading

from sharedlog._core.producers import append, grant
from sharedlog._engines.driving import carry_out
from sharedlog._engines.opening import open_engine
from tests.sharedlog.logs import TOKEN, message


def messages(name, seq):
    """What an append of this writer holds."""
    return [message(f"{name}.{seq}.{part}", seq % 2) for part in range(3)]


def main() -> None:
    """Append one after the other."""
    _, url, name, *pauses = sys.argv
    pause = threading.Event()
    engine = open_engine(url)
    mine = carry_out(engine, grant(TOKEN))
    sys.stdout.write(f"{mine.id}\n")
    for seq in range(1, 100_000):
        found = carry_out(engine, append(mine, seq, messages(name, seq)))
        sys.stdout.write(f"{seq} {found.lsn}\n")
        sys.stdout.flush()
        # A lock of SQLite is not fair: who takes it again at once keeps others out.
        if pauses:
            pause.wait(float(pauses[0]))


if __name__ == "__main__":
    main()
