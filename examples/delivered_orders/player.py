"""The player's process: ``python -m examples.delivered_orders.player LOG NAME=ADDRESS ...``."""

from __future__ import annotations

import sys

import sharedlog
from examples.delivered_orders.services import taken_by
from examples.delivered_orders.shop import STREAM


def main(log_url: str, addresses: list[str]) -> None:
    """Deliver until standard input closes."""
    targets = [
        sharedlog.Target(name=name, address=address, streams={STREAM: taken_by(name)})
        for name, _, address in (each.partition("=") for each in addresses)
    ]
    with sharedlog.open(log_url) as log, sharedlog.Player(log, targets, name="shop"):
        print("listening 0", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
