"""Figures of the tree, their details, its picture, and the reference pages that it writes.

``python -m benchmarks.house [--way | --names | --picture FILE | --reference DIR]``
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.house.figures import figures
from benchmarks.house.picture import picture

__all__ = ["main"]


def main() -> None:
    """Print the figures, or write what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.house", description=__doc__)
    parser.add_argument("--picture", type=Path, help="write the picture there instead")
    parser.add_argument("--reference", type=Path, help="write the reference pages there instead")
    parser.add_argument("--way", action="store_true", help="files of one call, of one message")
    arguments = parser.parse_args()
    if arguments.picture is not None:
        arguments.picture.write_text(picture())
        return
    if arguments.reference is not None:
        from benchmarks.house.reference import write

        write(arguments.reference)
        return
    if arguments.way:
        # Imports the product, which the others only read.
        from benchmarks.house.way import way, way_of_a_message

        sys.stdout.writelines(f"{line}\n" for each in (way, way_of_a_message) for line in each())
        return
    for name, value in figures():
        sys.stdout.write(f"{name:38} {value}\n")


if __name__ == "__main__":
    main()
