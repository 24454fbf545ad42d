"""``python -m benchmarks.house [--way] [--picture FILE]``: figures, a way, or the picture."""

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
    parser.add_argument("--way", action="store_true", help="the files that one call goes through")
    arguments = parser.parse_args()
    if arguments.picture is not None:
        arguments.picture.write_text(picture())
        return
    if arguments.way:
        # Imports the product, which the others only read.
        from benchmarks.house.way import way

        sys.stdout.writelines(f"{line}\n" for line in way())
        return
    for name, value in figures():
        sys.stdout.write(f"{name:34} {value}\n")


if __name__ == "__main__":
    main()
