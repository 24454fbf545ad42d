"""A process that says what it is, and ends with the code that it reads."""

from __future__ import annotations

import json
import os
import sys
import threading

if __name__ == "__main__":
    said = {
        "pid": os.getpid(),
        "arguments": sys.argv[1:],
        "NAME": os.environ.get("NAME"),
        "main": __name__,
        "threads": threading.active_count(),
    }
    print(json.dumps(said))
    line = sys.stdin.readline()
    if sys.argv[1:] == ["fail"]:
        print(1 / 0)
    sys.exit(int(line or 0))
