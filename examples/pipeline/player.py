"""The player's process: ``python -m examples.pipeline.player LOG ADDRESS``."""

from __future__ import annotations

import sys

import sharedlog
from examples.pipeline.billing import METHOD
from examples.pipeline.rides import BILLS


def main(log_url: str, address: str) -> None:
    """Deliver until standard input closes."""
    billing = sharedlog.Target(name="billing", address=address, streams={BILLS: METHOD})
    with sharedlog.open(log_url) as log, sharedlog.Player(log, [billing], name="pipeline"):
        print("listening 0", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
