"""``python -m chaos.check FILE...``: exits with 1 if a history breaks a promise."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from chaos.check import History, check


def main(arguments: list[str] | None = None) -> int:
    """Check files; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m chaos.check", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    status = 0
    for path in parser.parse_args(arguments).files:
        history = History.read(path)
        violations = check(history)
        print(f"{path}: {len(history.events)} events, {len(violations)} violations")
        for violation in violations:
            print(f"  {violation}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
