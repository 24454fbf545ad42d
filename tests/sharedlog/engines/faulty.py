"""A writer on a bad disk: ``python -m tests.sharedlog.engines.faulty FILE full|sync``.

Appends once; then the disk is full (files grow no more) or does not sync any more. It prints what
became of the next appends: the name of the error, or the LSN.
"""

import resource
import sys
from pathlib import Path

from sharedlog._core.errors import LogError
from sharedlog._core.producers import append, grant
from sharedlog._engines.driving import carry_out
from sharedlog._engines.sqlite import SqliteEngine
from tests.faults import syscalls
from tests.sharedlog.logs import TOKEN, message


def main() -> None:
    """Append before, during and, where it can end, after the fault."""
    engine = SqliteEngine(Path(sys.argv[1]))
    mine = carry_out(engine, grant(TOKEN))

    def attempt(seq: int, text: str) -> None:
        try:
            sys.stdout.write(f"{carry_out(engine, append(mine, seq, [message(text)])).lsn}\n")
        except LogError as error:
            sys.stdout.write(f"{type(error).__name__}\n")

    attempt(1, "before")
    if sys.argv[2] == "full":
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
        attempt(2, "during")
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    else:
        syscalls.fail_fsync()
        attempt(2, "during")
    attempt(2, "during")
    attempt(3, "after")


if __name__ == "__main__":
    main()
