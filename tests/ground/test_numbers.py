"""Counts among settings: whole numbers, refused when built (DESIGN §9)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

import curp
import rifl
from curp._core.leader import LeaderBounds
from curp._core.witness_table import WitnessLimits
from curp._replica.settings import ReplicaSettings
from lease_server._holders import LeaseBounds
from rifl._client.settings import Settings
from rifl.core._calling.client_session import ClientSession
from rifl.core._serving.bounds import Bounds, KeyBounds
from rifl.core._serving.policy import MethodPolicy, PolicyError

_CLASSES = (MethodPolicy, rifl.RetryPolicy, Bounds, KeyBounds, curp.Tuning, LeaderBounds)


def _replica(**given: Any) -> ReplicaSettings:
    return ReplicaSettings(name="a", address="host:1", **given)


def _leases(**given: Any) -> LeaseBounds:
    return LeaseBounds.of(**{"max_clients": 1, "max_clients_per_caller": None, **given})


def _counts() -> list[Any]:
    """Each field that its class declares as a whole number, and what is built with it."""
    found: list[tuple[Callable[..., Any], str]] = [
        (made, each.name)
        for made in (*_CLASSES, WitnessLimits)
        for each in fields(made)
        if each.type in ("int", "int | None")
    ]
    found += [(Settings, "max_response_bytes"), (_replica, "application_version")]
    found += [(ClientSession, "window"), (ClientSession, "unresolved_limit")]
    found += [(_leases, "max_clients"), (_leases, "max_clients_per_caller")]
    return [pytest.param(made, name, id=f"{made.__name__}-{name}") for made, name in found]


@pytest.mark.parametrize(("made", "name"), _counts())
def test_a_count_is_a_whole_number(made: Callable[..., Any], name: str) -> None:
    """True would count as 1, and 1.5 as 1 or 2, or fail with the first call (DESIGN §9)."""
    refusal = PolicyError if made is MethodPolicy else ValueError
    more = {"max_running": 1} if name == "max_waiting" else {}
    for wrong in (True, 1.5, 2.0, "1", -1):
        with pytest.raises(refusal, match=name.removeprefix("application_")):
            made(**{**more, name: wrong})
    made(**{**more, name: 1 << 20})
