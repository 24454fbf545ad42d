"""The witness list of a configuration, and the steps that start and publish one (DESIGN §7)."""

from __future__ import annotations

from collections.abc import Collection, Generator
from typing import Any, NamedTuple


class WitnessList(NamedTuple):
    """The witnesses of one configuration number, as the engine keeps them.

    ``serving``: a leader may have served under the number, so that its witnesses may
    hold what the log does not. ``wanted``: what the operator asked for; ``witnesses``
    are those of them that were started.
    """

    configuration: int
    witnesses: tuple[str, ...]
    serving: bool
    wanted: tuple[str, ...]


class StartWitnesses(NamedTuple):
    """Start witnesses, empty, under the new number, all asked at once.

    Send back those that said yes in time.
    """

    addresses: tuple[str, ...]
    configuration: int


class Publish(NamedTuple):
    """Put the witness list into the engine."""

    witnesses: WitnessList


def start_witnesses(
    addresses: tuple[str, ...], configuration: int
) -> Generator[Any, Any, tuple[str, ...]]:
    """Have witnesses started, each asked once; those that were, in the order given."""
    if not addresses:
        return ()
    said_yes: Collection[str] = yield StartWitnesses(addresses, configuration)
    return tuple(address for address in addresses if address in said_yes)


def left_out(listed: WitnessList) -> tuple[str, ...]:
    """Return those that were asked for and could not be started."""
    return tuple(address for address in listed.wanted if address not in listed.witnesses)
