"""``python -m curp``: the ``curp`` command."""

from __future__ import annotations

import sys

from curp._cli.command import main

if __name__ == "__main__":
    sys.exit(main())
