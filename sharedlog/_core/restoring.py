"""A log that was restored from a backup: another incarnation, and no earlier producer (§12)."""

from __future__ import annotations

from typing import NamedTuple

from sharedlog._core.incarnation import replace_incarnation
from sharedlog._core.query.closing import abandon
from sharedlog._core.query.state import all_queries
from sharedlog._core.roster import granted_producers
from sharedlog._core.spans import retire
from sharedlog._core.steps import Rule


class Restored(NamedTuple):
    """The incarnation from now on, and how many earlier producers were retired."""

    incarnation: str
    producers: int


def restore(incarnation: str) -> Rule[Restored]:
    """Declare a log restored: a new incarnation, every producer retired, what is pending undone.

    After the last step a process that had the log open under the old incarnation writes nothing.
    After a crash on the way, do it again: it makes another incarnation.
    """
    retired = 0
    for each in (yield from granted_producers()):
        if not each.retired:
            yield from retire(each.id)
            retired += 1
    for query in (yield from all_queries()):
        yield from abandon(query.name, query.plan)
    yield from replace_incarnation(incarnation)
    return Restored(incarnation, retired)
