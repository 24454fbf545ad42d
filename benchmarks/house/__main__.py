"""``python -m benchmarks.house [--picture FILE]``: the figures, or the picture into a file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.house.figures import figures
from benchmarks.house.picture import picture

__all__ = ["main"]


def main() -> None:
    """Print the figures, or write the picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.house", description=__doc__)
    parser.add_argument("--picture", type=Path, help="write the picture there instead")
    arguments = parser.parse_args()
    if arguments.picture is not None:
        arguments.picture.write_text(picture())
        return
    for name, value in figures():
        sys.stdout.write(f"{name:34} {value}\n")


if __name__ == "__main__":
    main()
