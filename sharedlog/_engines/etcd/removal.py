"""Removal of what was trimmed from a log in etcd: it deletes, and needs no room for that."""

from __future__ import annotations

import contextlib

from sharedlog._core.errors import CorruptLog, LogFull, LogUnavailable
from sharedlog._engines.etcd.calls import delete, put, scan, unchanged
from sharedlog._engines.etcd.connection import EtcdConnection, Facts
from sharedlog._engines.etcd.keys import AppendPlace
from sharedlog._engines.etcd.records import unpack
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb

# Appends that are read to learn their tags, and tags that one transaction deletes from.
_PAGE = 32
_MOST_TAGS = 90
_ROUNDS = 100


class Removal:
    """Removes one log's rows. Any thread."""

    def __init__(self, log: EtcdConnection) -> None:
        self._log = log

    def remove(self, through: int) -> None:
        """Remove rows, and their listings with them; see ``Engine``."""
        keys, rivals = self._log.keys, 0
        while True:
            facts, (found,) = self._log.read(scan(keys.log, keys.log_end, _PAGE))
            last = min(through, facts.head.tail)
            doomed, tags, more = self._doomed(found, last)
            if facts.removed is not None and facts.removed >= last and not doomed:
                return
            target = doomed[-1].last if more else last
            deletes = []
            if doomed:
                deletes.append(delete(keys.log, keys.from_lsn(target + 1)))
                behind = b"%016x" % (target + 1)
                deletes += [delete(keys.tag(tag), keys.tag(tag) + behind) for tag in sorted(tags)]
            if self._step(facts, deletes, target):
                rivals = 0
                if not more:
                    return
            elif (rivals := rivals + 1) > _ROUNDS:
                raise LogUnavailable("others remove entries at the same time")

    def _doomed(
        self, found: pb.RangeResponse, last: int
    ) -> tuple[list[AppendPlace], set[str], bool]:
        """Return appends that go now, their tags, and whether there may be more."""
        doomed: list[AppendPlace] = []
        tags: set[str] = set()
        for kv in found.kvs:
            place = AppendPlace.read(kv.key)
            if place.last > last:
                return doomed, tags, False
            mine: set[str] = set()
            # A damaged one goes without its listings: below what is removed none is read.
            with contextlib.suppress(CorruptLog):
                mine.update(tag for row in unpack(place, kv.value) for tag in row.tags)
            if doomed and len(tags | mine) > _MOST_TAGS:
                return doomed, tags, True
            doomed.append(place)
            tags |= mine
        return doomed, tags, len(found.kvs) == _PAGE

    def _step(self, facts: Facts, deletes: list[pb.RequestOp], target: int) -> bool:
        """Do it in one step, if nobody else removed anything meanwhile."""
        keys = self._log.keys
        compare = [unchanged(keys.removed, facts.removed_revision)]
        noted = [put(keys.removed, b"%d" % max(target, facts.removed or 0))]
        try:
            _, instead, _ = self._log.write(compare, [*noted, *deletes], (), again=True)
        except LogFull:
            if not deletes:
                raise
            # It takes no transactions. What is there tells how far it went: listings of what is
            # not there are below all that is read.
            for one in (delete(keys.removed), *deletes):
                self._log.cluster.delete(one.delete_range)
            return True
        return instead is None
