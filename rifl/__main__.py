"""``rifl``, or ``python -m rifl``: look into stores. See ``rifl._cli``."""

from __future__ import annotations

import sys

from rifl._cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
