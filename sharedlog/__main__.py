"""``sharedlog``, or ``python -m sharedlog``: look into logs, and operate them."""

from __future__ import annotations

import sys

from sharedlog._cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
