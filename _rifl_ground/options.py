"""The options that commands of several packages have."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _rifl_ground.exits import CommandRefused, ExitCode
from _rifl_ground.plaintext import VARIABLE

STORE_VARIABLE = "RIFL_STORE"


class AllowPlaintext(argparse.Action):
    """``--plaintext-secrets`` permits plaintext for a command's process, as the variable does."""

    def __init__(self, option_strings: Sequence[str], dest: str, **_: Any) -> None:
        text = "send tokens and secrets over connections that only a mesh or a proxy encrypts"
        super().__init__(option_strings, dest, nargs=0, default=False, help=text)

    def __call__(self, parser: object, namespace: object, values: object, *more: object) -> None:
        """Set the variable."""
        os.environ[VARIABLE] = "1"


def add_message_limit(parser: argparse.ArgumentParser, default_s: float) -> None:
    """Add how long a call's message may take on the servers that a command starts."""
    parser.add_argument(
        "--max-message-s",
        type=_positive,
        default=default_s,
        metavar="SECONDS",
        help="how long the message of a call may take; six times as long where it may be large",
    )


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError(text)
    return value


def add_url(parser: argparse.ArgumentParser, name: str, *, about: str, dest: str = "url") -> None:
    """Add the URL of a store or log, and what has it where no other user sees it.

    ``name``: ``url``, or an option. ``find_url`` follows, once the arguments are parsed.
    """
    if name.startswith("-"):
        parser.add_argument(name, metavar="URL", dest=dest, help=about)
    else:
        parser.add_argument(
            name, metavar="URL", help=f"{about}; - takes it from --store-file or {STORE_VARIABLE}"
        )
    parser.add_argument(
        "--store-file",
        type=Path,
        metavar="FILE",
        help=f"holds the URL, so that no argument shows its password; or set {STORE_VARIABLE}",
    )
    parser.set_defaults(url_dest=dest)


def find_url(arguments: argparse.Namespace) -> None:
    """Put the URL of a file, or of the environment, where none was given.

    Raises ``CommandRefused`` for none or two, and ``OSError``. A command without a URL is left.
    """
    dest = getattr(arguments, "url_dest", None)
    if dest is None:
        return
    given, file = getattr(arguments, dest), arguments.store_file
    if given not in (None, "-"):
        if file is not None:
            raise CommandRefused("the URL is given, or --store-file, but not both", ExitCode.USAGE)
        return
    found = os.environ.get(STORE_VARIABLE, "") if file is None else file.read_text()
    if not found.strip():
        raise CommandRefused(
            f"there is no URL: give it, or --store-file FILE, or set {STORE_VARIABLE}",
            ExitCode.USAGE,
        )
    setattr(arguments, dest, found.strip())
