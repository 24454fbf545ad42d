"""The standbys of a process: states of shards that others have, followed so that they are warm."""

from __future__ import annotations

from collections.abc import Collection

from sharedlog._consumer.carrying import Carrier
from sharedlog._core.consumer.changelog import Changelog
from sharedlog._core.errors import LogUnavailable
from sharedlog._log.place import Place


class Standbys:
    """Of one process. Nothing that it reads decides anything: who takes a shard over reads on."""

    def __init__(self, place: Place, name: str, carrier: Carrier, *, warm: bool) -> None:
        """``name``: the consumer's; ``warm``: whether others' are followed at all."""
        self._place = place
        self._name = name
        self._carrier = carrier
        self._warm = warm
        self._logs: dict[str, Changelog] = {}

    def of(self, tag: str) -> Changelog:
        """Return the change log of a shard, which whoever owns it reads on from here on."""
        found = self._logs.get(tag)
        if found is None:
            place = self._place
            found = Changelog(self._name, tag, place.incarnation, place.seals)
            self._logs[tag] = found
        return found

    def follow(self, tags: Collection[str], owned: Collection[str]) -> bool:
        """Read on in the shards of others; whether there may be more at once.

        A piece of each. What the log does not answer is read the next time.
        """
        for each in set(self._logs) - set(owned):
            if not self._warm:
                del self._logs[each]
        if not self._warm:
            return False
        more = False
        for tag in tags:
            if tag not in owned:
                try:
                    more |= self._carrier.carry(self.of(tag).read())
                except LogUnavailable:
                    return False
        return more
