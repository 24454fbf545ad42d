"""``--version`` of the commands."""

from __future__ import annotations

import argparse
from typing import Any

__all__ = ["PrintVersion"]


class PrintVersion(argparse.Action):
    """Print the program's name and the installed release, and exit.

    An action of argparse. It reads the release only when it is asked for: the import for that
    takes a tenth of a command's start.
    """

    def __init__(self, option_strings: list[str], dest: str) -> None:
        super().__init__(
            option_strings,
            argparse.SUPPRESS,
            nargs=0,
            default=argparse.SUPPRESS,
            help="show program's version number and exit",
        )

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Do it."""
        from importlib.metadata import PackageNotFoundError, version

        try:
            release = version("rifl-grpc")
        except PackageNotFoundError:
            # A bare tree.
            release = "not installed"
        print(parser.prog, release)
        parser.exit()
