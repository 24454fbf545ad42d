"""What ``curp serve`` can be told (operations)."""

from __future__ import annotations

import argparse
import inspect

from curp import Replica
from curp._cli.serve import add_tuning_options, tuning_of


def test_the_options_are_those_of_a_replica_with_its_defaults() -> None:
    """Nothing given is what ``Replica`` does by itself, and each option reaches it (§7)."""
    parser = argparse.ArgumentParser()
    add_tuning_options(parser)
    takes = inspect.signature(Replica).parameters
    found = tuning_of(parser.parse_args([]))
    assert found == {name: takes[name].default for name in found}
    given = tuning_of(
        parser.parse_args(["--client-term", "7", "--batch-delay", "0.1", "--snapshot-entries", "9"])
    )
    assert given == {**found, "client_term_s": 7.0, "batch_delay_s": 0.1, "snapshot_entries": 9}
