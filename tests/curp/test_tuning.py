"""A replica's tuning: ``curp.Tuning``, and the options of ``curp serve`` (operations)."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import pytest

import curp
from chaos.sim.group.log import LogStore
from curp._cli.serve import add_tuning_options, tuning_of
from curp._replica.settings import ReplicaSettings
from rifl.core._serving.bounds import Bounds


def _parsed(*arguments: str) -> curp.Tuning:
    parser = argparse.ArgumentParser()
    add_tuning_options(parser)
    return tuning_of(parser.parse_args(arguments))


def _replica(**options: Any) -> curp.Replica:
    return curp.Replica(LogStore().engine(), name="r1", address="127.0.0.1:1", **options)


def test_the_options_are_those_of_a_tuning_with_its_defaults() -> None:
    """Nothing given is what ``Replica`` does by itself, and each option reaches it (§7)."""
    assert _parsed() == curp.Tuning()
    given = _parsed("--client-term", "7", "--batch-delay", "0.1", "--snapshot-entries", "9")
    assert given == curp.Tuning(client_term_s=7.0, batch_delay_s=0.1, snapshot_entries=9)


@pytest.mark.parametrize(
    "wrong",
    [
        {"lease_term_s": 0.0},
        {"client_term_s": float("inf")},
        {"witness_timeout_s": -1.0},
        {"drift": 0.0},
        {"drift": 1.0},
        {"batch_entries": 0},
        {"batch_delay_s": -0.1},
        {"max_unsynced": 0},
        {"snapshot_entries": 0},
        {"poison_deaths": 0},
        {"engine_wait_s": -1.0},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_is_no_time_or_size_is_refused_where_it_is_said(wrong: dict[str, Any]) -> None:
    """By the name of the field, and not when the replica leads at last (§9)."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        curp.Tuning(**wrong)


def test_a_tuning_reaches_what_a_leader_appends_by() -> None:
    """The replica's rules read it from the one object that the user gave (§7)."""
    tuning = curp.Tuning(batch_entries=3, batch_delay_s=0.5, max_unsynced=7)
    with _replica(tuning=tuning) as replica:
        assert replica.settings.tuning is tuning
        bounds = replica.settings.bounds
    assert (bounds.batch_entries, bounds.batch_delay_s, bounds.max_unsynced) == (3, 0.5, 7)
    by_itself = ReplicaSettings(name="r1", address="127.0.0.1:1")
    assert by_itself.bounds == curp.Tuning().leader_bounds()


def test_calls_over_a_log_have_more_room_than_clients_are_told_of() -> None:
    """What is not in the log is not acknowledged there, and an address shares less (§7, §9)."""
    tuning, given = curp.Tuning(max_unsynced=10), Bounds(window=64, max_waiters=2)
    over_log = tuning.bounds_over_log(given)
    assert over_log == replace(given, window=138, max_keys=100_000, max_key_bytes=64 << 20)
    few = tuning.bounds_over_log(replace(given, max_keys=8, max_key_bytes=1024))
    assert (few.max_keys, few.max_key_bytes) == (8, 1024)
