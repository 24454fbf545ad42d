"""``python -m curp.log``: look into a log. See ``curp.log._commands``."""

from __future__ import annotations

import sys

from curp.log._commands import main

if __name__ == "__main__":
    sys.exit(main())
