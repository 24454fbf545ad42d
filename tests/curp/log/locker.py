"""A process that stops itself inside a transaction: ``python -m tests.curp.log.locker URL``."""

from __future__ import annotations

import signal
import sys

from curp.log import open_engine


def main() -> None:
    """Stop in a transaction; once continued, lead for a moment."""
    engine = open_engine(sys.argv[1])
    with engine._engine._file.writing():  # type: ignore[attr-defined]  # a GroupLog's
        signal.raise_signal(signal.SIGSTOP)
    engine.take_leadership("one", "", term_s=0.001)
    engine.close()


if __name__ == "__main__":
    main()
