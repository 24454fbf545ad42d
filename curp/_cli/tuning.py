"""What ``curp serve`` can be told about times and bounds of a replica."""

from __future__ import annotations

import argparse
from typing import Any

# The option, its type and its default, the argument of ``Replica``, and what it is.
_OPTIONS: tuple[tuple[str, type, Any, str, str], ...] = (
    ("--lease-term", float, 1.0, "lease_term_s", "about how long a lost leader is missed"),
    ("--client-term", float, 60.0, "client_term_s", "how long a silent client's records are kept"),
    ("--witness-timeout", float, 2.0, "witness_timeout_s", "how long a witness is waited for"),
    ("--snapshot-entries", int, 10_000, "snapshot_entries", "a snapshot after so many entries"),
    ("--batch-entries", int, 64, "batch_entries", "append when so many entries wait"),
    ("--batch-delay", float, 0.02, "batch_delay_s", "or when one has waited so long"),
    ("--poison-deaths", int, 3, "poison_deaths", "a call that so many died of is not run again"),
    ("--max-unsynced", int, 1024, "max_unsynced", "answer first for at most so many entries"),
)


def add_tuning_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each."""
    for name, kind, default, _, text in _OPTIONS:
        parser.add_argument(
            name,
            type=kind,
            default=default,
            metavar="SECONDS" if kind is float else "N",
            help=f"{text} (default {default:g})",
        )


def tuning_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what of it ``Replica`` takes."""
    return {
        argument: getattr(arguments, name.removeprefix("--").replace("-", "_"))
        for name, _, _, argument, _ in _OPTIONS
    }
