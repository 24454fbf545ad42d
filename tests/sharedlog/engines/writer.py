"""A process that appends until it is killed: ``... -m tests.sharedlog.engines.writer FILE NAME``.

Each acknowledged append is told on standard output, after it was acknowledged.
"""

import sys
from pathlib import Path

from sharedlog._core.producers import append, grant
from sharedlog._engines.driving import carry_out
from sharedlog._engines.sqlite import SqliteEngine
from tests.sharedlog.logs import TOKEN, message

if __name__ == "__main__":
    engine = SqliteEngine(Path(sys.argv[1]))
    mine = carry_out(engine, grant(TOKEN))
    for seq in range(1, 10_000):
        texts = [f"{sys.argv[2]}.{seq}.{part}" for part in range(3)]
        found = carry_out(engine, append(mine, seq, [message(text, seq % 2) for text in texts]))
        sys.stdout.write(f"{seq} {found.lsn}\n")
        sys.stdout.flush()
