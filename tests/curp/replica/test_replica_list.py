"""The list of replicas in a group's log engine (DESIGN §7)."""

from __future__ import annotations

import pytest

from chaos.sim.group.log import LogStore
from curp._replica.replica_list import change_replicas, read_replicas
from curp.log._errors import ConditionFailed


def test_nothing_is_written_before_a_leader_and_while_a_log_is_copied() -> None:
    """The copy compares the metadata that it wrote with what is here, and would refuse it."""
    engine = LogStore().engine()

    def change(address: str) -> None:
        change_replicas(engine, lambda found: found | {address})

    with pytest.raises(ConditionFailed):
        change("r1:1")
    engine.take_leadership("r1", "r1:1", term_s=60.0)
    change("r1:1")
    change("r2:1")
    engine.end_leadership(1)
    # As ``curp log copy`` does.
    engine.take_leadership("curp log copy", "", term_s=60.0)
    with pytest.raises(ConditionFailed):
        change("r3:1")
    assert read_replicas(engine) == ("r1:1", "r2:1")
